import Foundation

/// Runs one package of the layers or the head, whose cache is in the program's states or the host's.
///
/// A package has one cache, of the tier that was called last. Where a function of another tier is
/// called, the rows before `position` are handed on.
final class Shard {
    /// The functions that are called, by name.
    let names: [String]
    private let bundle: ModelBundle, part: Manifest.Part
    private let ties: [String: Ties], plain: [String: String]
    private var functions: [String: Function] = [:]
    private let caches: [String: Cache], layout: Manifest.Layout
    private var slots: Int?  // of the tier that the cache is of; nil before a call
    private var used = 0  // slots of the host's caches that are no zeros
    private var state: (any ProgramState)?
    let layers: Range<Int>

    /// A function in one tier, with the tensors of what the host keeps for it.
    private struct Function {
        let loaded: any LoadedFunction
        let spec: Manifest.FunctionSpec
        let kept: [(name: String, input: Tensor, new: Tensor)]
    }

    /// The tensors of a function, made before it is loaded.
    private struct Ties {
        let inputs: [String: Tensor], outputs: [String: Tensor]
        let kept: [(name: String, input: Tensor, new: Tensor)]
    }

    /// What the host keeps of a cache, or of a tail's columns (n, R, 1, W + S).
    private struct Cache {
        let memory: Memory
        let tail: Tensor?
    }

    /// values: the tensors that packages hand to each other. names: of the functions that are called,
    /// each of which is to be loaded before.
    init(_ bundle: ModelBundle, _ part: Manifest.Part, values: Values, _ names: Set<String>) {
        var caches: [String: Cache] = [:], ties: [String: Ties] = [:]
        let context = bundle.manifest.context, used = part.functions.filter { names.contains($0.key) }
        for function in used.values {
            for (name, spec) in function.kept {
                let bytes = spec.shape.reduce(2, *)
                if !Manifest.Layout.isTail(name) {
                    if caches[name]?.memory.bytes.count ?? 0 < bytes {
                        caches[name] = Cache(memory: Memory(bytes: bytes), tail: nil)
                    }
                } else if caches[name] == nil {
                    let tail = Tensor(.half, [spec.shape[0], spec.shape[1], 1, spec.shape[3] + context])
                    caches[name] = Cache(memory: Memory(bytes: 0), tail: tail)
                }
            }
        }
        for (name, spec) in used {
            var inputs: [String: Tensor] = [:], outputs: [String: Tensor] = [:]
            for (key, type) in spec.inputs where spec.kept[key] == nil {
                let own = key == "per_layer" ? HostInputs.own(part.span.lowerBound) : key
                inputs[key] = values(name, own, type)
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
            ties[name] = Ties(inputs: inputs, outputs: outputs, kept: kept)
        }
        (self.bundle, self.part, self.caches, self.ties) = (bundle, part, caches, ties)
        (layout, layers, self.names) = (bundle.manifest.layout, part.span, used.keys.sorted())
        plain = bundle.manifest.names
    }

    /// Loads a function of `names`.
    func load(_ name: String, _ programs: any Programs) throws {
        guard let spec = part.functions[name], let own = ties[name] else { return }
        let reference = FunctionReference(bundle, part, spec, name: part.called(name))
        let loaded = try programs.load(reference, inputs: own.inputs, outputs: own.outputs)
        functions[name] = Function(loaded: loaded, spec: spec, kept: own.kept)
    }

    /// Hands `use` everything that is kept here, by name: caches of a tier's slots, and of tails the
    /// columns of all tokens.
    ///
    /// new: the slots of a tier that is begun anew, with zeros, and keeps what `use` puts there.
    func exchange(new: Int?, _ use: (String, Tensor) throws -> Void) throws {
        if let new { (_, used) = (clear(dropStates: true), new) }
        guard let slots = new ?? slots, let function = functions.values.first(where: { $0.spec.slots == slots })
        else { return }
        for (name, input, _) in function.kept { try use(name, caches[name]?.tail ?? input) }
        if new != nil { (self.slots, state) = (slots, function.spec.states.isEmpty ? nil : try function.loaded.makeState()) }
        for (name, spec) in function.spec.states {
            let tensor = Tensor(.half, spec.shape)
            if new == nil { try state?.read(name, into: tensor) }
            try use(name, tensor)
            if new != nil { try state?.write(name, from: tensor) }
        }
    }

    func clear(dropStates: Bool) {
        if dropStates { (slots, state) = (nil, nil) }
        guard used > 0 else { return }
        used = 0
        for cache in caches.values {
            cache.memory.bytes.initializeMemory(as: UInt8.self, repeating: 0)
            cache.tail?.clear()
        }
    }

    /// Calls a function, and puts the rows of its first `tokens` tokens into the cache.
    func run(_ name: String, position: Int, tokens: Int) throws {
        // Without a cache, the tiers share a function.
        guard let function = functions[name] ?? functions[plain[name] ?? name] else {
            throw AneBookError.invalidBundle("no function \(name) is loaded")
        }
        if let slots = function.spec.slots, self.slots != slots {
            try move(to: function, slots: slots, rows: position)
        }
        for (key, input, _) in function.kept {
            if let tail = caches[key]?.tail {
                tail.copy(position, input.shape[3], into: input, at: 0, axis: 3)
            }
        }
        used = max(used, position + tokens)
        try function.loaded.predict(state)
        for (key, input, new) in function.kept {
            if let tail = caches[key]?.tail {
                new.copy(0, tokens, into: tail, at: input.shape[3] + position, axis: 3)
            } else {
                new.copy(0, tokens, into: input, at: position, axis: layout.tokens)
            }
        }
    }

    /// Makes the cache one of another tier, with a copy of its first rows.
    private func move(to function: Function, slots: Int, rows: Int) throws {
        let made = function.spec.states.isEmpty ? nil : try function.loaded.makeState()
        for (key, spec) in function.spec.states {
            guard let former = state, let old = self.slots, rows > 0 else { continue }
            let shape = layout.sized(spec.shape, old)
            let memory = Memory(bytes: max(shape.reduce(2, *), spec.shape.reduce(2, *)))
            try former.read(key, into: Tensor(.half, shape, in: memory))
            restride(memory, spec.shape, layout, from: old, rows: rows)
            try made?.write(key, from: Tensor(.half, spec.shape, in: memory))
        }
        if let old = self.slots {
            for (key, input, _) in function.kept where caches[key]?.tail == nil {
                if let memory = caches[key]?.memory {
                    restride(memory, input.shape, layout, from: old, rows: rows)
                }
            }
        }
        (state, self.slots) = (made, slots)
    }
}

/// Turns a cache of `old` slots into one of this shape in the same memory, keeping the first rows.
private func restride(_ memory: Memory, _ shape: [Int], _ layout: Manifest.Layout, from old: Int, rows: Int) {
    let axis = layout.tokens, row = shape[(axis + 1)...].reduce(2, *)
    let count = shape[..<axis].reduce(1, *)  // of runs of slots: a head's rows, or a channel's numbers
    let (from, to, kept) = (old * row, shape[axis] * row, min(rows, old, shape[axis]) * row)
    guard let base = memory.bytes.baseAddress else { return }
    // Growing, the last run moves first: none is overwritten before it has moved.
    for i in 0..<count {
        let run = to > from ? count - 1 - i : i
        memmove(base + run * to, base + run * from, kept)
        memset(base + run * to + kept, 0, to - kept)
    }
}
