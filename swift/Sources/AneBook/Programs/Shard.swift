import Foundation

/// Runs one package of the layers or the head, whose cache is in the program's states or the host's.
///
/// A package has one cache, of the tier that was called last. Where a function of another tier is
/// called, the rows before `position` are handed on.
final class Shard {
    private let functions: [String: Function]
    private let caches: [String: Cache]
    private var slots: Int?  // of the tier that the cache is of; nil before a call
    private var state: (any ProgramState)?

    /// A function in one tier, with the tensors of what the host keeps for it.
    private struct Function {
        let loaded: any LoadedFunction
        let spec: FunctionSpec
        let kept: [(name: String, input: Tensor, new: Tensor)]
    }

    /// What the host keeps of a cache (n, K, S, D), or of a tail's columns (n, R, 1, W + S).
    private struct Cache {
        let memory: Memory
        let tail: Tensor?
    }

    /// values: the tensors that packages hand to each other.
    init(_ bundle: Bundle, _ part: Part, _ programs: any Programs, values: Values) throws {
        var caches: [String: Cache] = [:], functions: [String: Function] = [:]
        let context = bundle.manifest.context
        for function in part.functions.values {
            for (name, spec) in function.kept where spec.shape[2] > 1 {
                let bytes = spec.shape.reduce(2, *)
                if caches[name]?.memory.bytes.count ?? 0 < bytes {
                    caches[name] = Cache(memory: Memory(bytes: bytes), tail: nil)
                }
            }
            for (name, spec) in function.kept where spec.shape[2] == 1 && caches[name] == nil {
                let tail = Tensor(.half, [spec.shape[0], spec.shape[1], 1, spec.shape[3] + context])
                caches[name] = Cache(memory: Memory(bytes: 0), tail: tail)
            }
        }
        for (name, spec) in part.functions {
            var inputs: [String: Tensor] = [:], outputs: [String: Tensor] = [:]
            for (key, type) in spec.inputs where spec.kept[key] == nil {
                inputs[key] = values(name, key, type)
            }
            for (key, type) in spec.outputs where !key.hasPrefix("new_") {
                outputs[key] = values(name, key, type)
            }
            let kept = spec.kept.compactMap { key, type -> (name: String, input: Tensor, new: Tensor)? in
                guard let cache = caches[key], let new = spec.outputs["new_\(key)"] else { return nil }
                let input = cache.tail == nil
                    ? Tensor(.half, type.shape, in: cache.memory) : Tensor(.half, type.shape)
                return (key, input, Tensor(new.dtype, new.shape))
            }
            for (key, input, new) in kept { (inputs[key], outputs["new_\(key)"]) = (input, new) }
            let reference = FunctionReference(bundle, part, spec, name: part.called(name))
            let loaded = try programs.load(reference, inputs: inputs, outputs: outputs)
            functions[name] = Function(loaded: loaded, spec: spec, kept: kept)
        }
        // Without a cache, the tiers share a function.
        for (name, plain) in bundle.manifest.names where functions[name] == nil {
            functions[name] = functions[plain]
        }
        (self.functions, self.caches) = (functions, caches)
    }

    /// Empties the cache.
    func clear() {
        (slots, state) = (nil, nil)
        for cache in caches.values {
            cache.memory.bytes.initializeMemory(as: UInt8.self, repeating: 0)
            cache.tail?.clear()
        }
    }

    /// Calls a function, and puts the rows of its first `tokens` tokens into the cache.
    func run(_ name: String, position: Int, tokens: Int) throws {
        guard let function = functions[name] else {
            throw AneBookError.invalidBundle("no function \(name) is loaded")
        }
        if let slots = function.spec.slots, self.slots != slots {
            try move(to: function, slots: slots, rows: position)
        }
        for (key, input, _) in function.kept {
            if let tail = caches[key]?.tail { copyColumns(tail, position, into: input, 0, input.shape[3]) }
        }
        try function.loaded.predict(state)
        for (key, input, new) in function.kept {
            if let tail = caches[key]?.tail {
                copyColumns(new, 0, into: tail, input.shape[3] + position, tokens)
            } else {
                copyRows(new, into: input, at: position, tokens: tokens)
            }
        }
    }

    /// Makes the cache one of another tier, with a copy of its first rows.
    private func move(to function: Function, slots: Int, rows: Int) throws {
        let made = function.spec.states.isEmpty ? nil : try function.loaded.makeState()
        for (key, spec) in function.spec.states {
            guard let former = state, let old = self.slots, rows > 0 else { continue }
            var shape = spec.shape
            shape[2] = old
            let memory = Memory(bytes: max(shape.reduce(2, *), spec.shape.reduce(2, *)))
            try former.read(key, into: Tensor(.half, shape, in: memory))
            restride(memory, spec.shape, from: old, rows: rows)
            try made?.write(key, from: Tensor(.half, spec.shape, in: memory))
        }
        if let old = self.slots {
            for (key, input, _) in function.kept where caches[key]?.tail == nil {
                if let memory = caches[key]?.memory { restride(memory, input.shape, from: old, rows: rows) }
            }
        }
        (state, self.slots) = (made, slots)
    }
}

/// Turns a cache (n, K, `old`, D) into (n, K, S, D) in the same memory, keeping the first rows.
private func restride(_ memory: Memory, _ shape: [Int], from old: Int, rows: Int) {
    let heads = shape[0] * shape[1], row = 2 * shape[3]
    let (from, to, kept) = (old * row, shape[2] * row, min(rows, old, shape[2]) * row)
    guard let base = memory.bytes.baseAddress else { return }
    // Growing, the last head moves first: none is overwritten before it has moved.
    for i in 0..<heads {
        let head = to > from ? heads - 1 - i : i
        memmove(base + head * to, base + head * from, kept)
        memset(base + head * to + kept, 0, to - kept)
    }
}

/// Copies the first rows of every head of (n, K, T, D) into (n, K, S, D), to slots `at` and after.
private func copyRows(_ new: Tensor, into cache: Tensor, at: Int, tokens: Int) {
    let row = 2 * new.shape[3], (T, S) = (new.shape[2], cache.shape[2])
    guard let from = new.bytes.baseAddress, let to = cache.bytes.baseAddress else { return }
    for head in 0..<(new.shape[0] * new.shape[1]) {
        memcpy(to + (head * S + at) * row, from + head * T * row, tokens * row)
    }
}

/// Copies columns of (n, R, 1, X) from column `first` on, into columns of another one.
private func copyColumns(_ source: Tensor, _ first: Int, into target: Tensor, _ at: Int, _ count: Int) {
    guard let from = source.bytes.baseAddress, let to = target.bytes.baseAddress else { return }
    for row in 0..<(source.shape[0] * source.shape[1]) {
        memcpy(to + 2 * (row * target.shape[3] + at), from + 2 * (row * source.shape[3] + first), 2 * count)
    }
}
