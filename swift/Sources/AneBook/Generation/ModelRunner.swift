import Foundation

/// A bundle's programs, loaded, with their caches: tokens in, logits out.
///
/// Between packages nothing is copied: what one gives is the memory that the next one reads.
final class ModelRunner {
    let context: Int, vocabulary: Int
    /// K: how many tokens a call of `verify` takes; 1 without it.
    let block: Int
    /// How often the layers were called, by the slots of the tier.
    private(set) var tiers: [Int: Int] = [:]

    private let manifest: Manifest, widths: [String: Int], sorted: [Int]
    private let inputs: HostInputs
    private let layers: [any Step], head: [any Step]
    private let values: Values
    private let functions: [Int: String]  // by T

    /// A call: its function, its first slot, and the one after its last.
    struct Call: Equatable {
        let function: String, first: Int, end: Int
    }

    /// Loads all programs; `progress` is told after each how many of how many are there.
    init(_ bundle: Bundle, _ programs: any Programs, progress: (Int, Int) -> Void = { _, _ in }) throws {
        manifest = bundle.manifest
        (context, vocabulary) = (manifest.context, manifest.embedding.shape[0])
        (widths, sorted) = (manifest.functions, manifest.tiers)
        block = widths["verify"] ?? 1
        functions = Dictionary(widths.map { ($1, $0) }) { first, _ in first }
        inputs = try HostInputs(bundle)
        let values = Values(inputs), all = manifest.packages.count { $0.part != .experts }
        var loaded = 0
        func steps(_ parts: [Part]) throws -> [any Step] {
            var steps: [any Step] = []
            for (i, part) in parts.enumerated() where (part.expert ?? 0) == 0 {
                if part.part == .experts {
                    let experts = parts[i...].prefix { $0.part == .experts }
                    steps.append(Experts(bundle, Array(experts), programs, values))
                    continue
                }
                steps.append(try Shard(bundle, part, programs, values: values))
                if part.functions.values.contains(where: { $0.outputs["hidden_out"] != nil }) {
                    values.turn()
                }
                loaded += 1
                progress(loaded, all)
            }
            return steps
        }
        layers = try steps(manifest.layers)
        head = try steps(manifest.head)
        self.values = values
    }

    func clear() {
        for step in layers { step.clear() }
    }

    /// Cuts tokens from slot `position` on into calls, for each of which the cache has T slots.
    ///
    /// guesses: the number of guesses after a single token; its call takes what it has room for.
    func calls(position: Int, tokens: Int, guesses: Int = 0) -> [Call] {
        let end = position + tokens, width = widths["prefill"] ?? 1
        var calls: [Call] = [], position = position
        while position < end {
            let single = end - position == 1 || position + width > context
            let call = single ? step(position, tokens: end - position + guesses)
                : Call(function: "prefill", first: position, end: min(position + width, end))
            calls.append(call)
            position = call.end
        }
        return calls
    }

    /// The call for the token of slot `position`, and as many after it as the call takes.
    ///
    /// `verify` takes the block of K slots that the token is in, and runs the block's earlier tokens
    /// again: so a token has the same column of the same graph, and the same result to the bit,
    /// guessed or not. `decode` takes the slots at the context's end that are no whole block.
    func step(_ position: Int, tokens: Int) -> Call {
        let first = position - position % block
        if block == 1 || first + block > context {
            return Call(function: "decode", first: position, end: position + 1)
        }
        return Call(function: "verify", first: first, end: min(first + block, position + tokens))
    }

    /// Runs the tokens of a call through all layers, in the smallest tier that has room for it.
    ///
    /// `check` is called before each program, and may throw to end the call.
    func run(_ call: Call, _ ids: ArraySlice<Int32>, check: () throws -> Void) throws {
        let tokens = widths[call.function] ?? 1
        guard let slots = sorted.first(where: { call.first + tokens <= $0 }) else {
            throw AneBookError.promptTooLong("no cache has room for slot \(call.first + tokens)")
        }
        tiers[slots, default: 0] += 1
        let name = manifest.tierName(call.function, slots)
        inputs.set(name, ids, position: call.first, hidden: values.first(tokens, manifest))
        for step in layers {
            try check()
            try step.run(name, position: call.first, tokens: ids.count)
        }
    }

    /// Runs the head on one column of the last call, or on all of them; the logits are in `row`.
    func head(_ call: Call, column: Int?) throws {
        var function = call.function
        if let column, let tokens = widths[call.function], tokens > 1 {
            function = "decode"
            let from = values.last(tokens, manifest).halfs, to = values.last(1, manifest).halfs
            for channel in 0..<to.count { to[channel] = from[channel * tokens + column] }
        }
        for step in head { try step.run(function, position: 0, tokens: widths[function] ?? 1) }
    }

    /// The model's output after a column of the call that `head` ran on: parts of (V,), or a token.
    func output(_ function: String, column: Int) -> Output {
        let tokens = widths[function] ?? 1
        if manifest.givesTokens {
            return Output(parts: [], token: values["token", tokens]?.integers[column], column: column)
        }
        let parts = values.logits(tokens)
        return Output(parts: parts, token: nil, column: column)
    }
}

/// What the head gives after one token: logits in parts (1, V_i, 1, T), or the likeliest token.
struct Output {
    let parts: [Tensor]
    let token: Int32?
    let column: Int
}

/// A package, or the experts of a layer, run in its turn.
protocol Step: AnyObject {
    func clear()
    func run(_ name: String, position: Int, tokens: Int) throws
}

extension Shard: Step {}

/// The tensors that programs hand to each other: one for every name, type and T.
///
/// The hidden state has two, so that no program writes where it reads.
final class Values {
    private let inputs: HostInputs
    private var tensors: [Key: Tensor] = [:]
    private var turned = 0

    private struct Key: Hashable {
        let name: String, type: TensorSpec
    }

    init(_ inputs: HostInputs) { self.inputs = inputs }

    /// From here on, inputs called `hidden` are what was `hidden_out`.
    func turn() { turned += 1 }

    /// The tensor of a value in a function of the part that is being loaded.
    func callAsFunction(_ function: String, _ name: String, _ type: TensorSpec) -> Tensor {
        if let tensor = inputs.tensors(function)[name] { return tensor }
        return tensor(name == "hidden_out" ? hidden(turned + 1) : name == "hidden" ? hidden(turned) : name, type)
    }

    func tensor(_ name: String, _ type: TensorSpec) -> Tensor {
        let key = Key(name: name, type: type)
        if let tensor = tensors[key] { return tensor }
        let tensor = Tensor(type.dtype, type.shape)
        tensors[key] = tensor
        return tensor
    }

    /// The hidden state (1, C, 1, T) before the first layer, and after the last one.
    func first(_ tokens: Int, _ manifest: Manifest) -> Tensor { tensor(hidden(0), state(tokens, manifest)) }
    func last(_ tokens: Int, _ manifest: Manifest) -> Tensor { tensor(hidden(turned), state(tokens, manifest)) }

    /// The value of this name for T tokens, if there is one.
    subscript(_ name: String, _ tokens: Int) -> Tensor? {
        tensors.first { $0.key.name == name && $0.key.type.shape.last == tokens }?.value
    }

    /// The parts `logits_0`, `logits_1`, ... for T tokens, in order.
    func logits(_ tokens: Int) -> [Tensor] {
        if let own = rows[tokens] { return own }
        let own = sequence(first: 0) { $0 + 1 }.lazy.map { self["logits_\($0)", tokens] }
        rows[tokens] = own.prefix { $0 != nil }.compactMap { $0 }
        return rows[tokens] ?? []
    }
    private var rows: [Int: [Tensor]] = [:]

    private func state(_ tokens: Int, _ manifest: Manifest) -> TensorSpec {
        TensorSpec(dtype: .half, shape: [1, manifest.embedding.shape[1], 1, tokens])
    }

    private func hidden(_ turn: Int) -> String { turn.isMultiple(of: 2) ? "hidden" : "hidden'" }
}

/// Runs the experts of a layer where each is a program: only those that some token chose.
///
/// There may be thousands, of which a text uses a few, so one is loaded when it is first called.
final class Experts: Step {
    private let bundle: Bundle, parts: [Part], programs: any Programs, values: Values
    private var loaded: [String: any LoadedFunction] = [:]

    init(_ bundle: Bundle, _ parts: [Part], _ programs: any Programs, _ values: Values) {
        (self.bundle, self.parts, self.programs, self.values) = (bundle, parts, programs, values)
    }

    func clear() {}

    /// Sums up in single precision what the chosen experts make of `x`, as `y`.
    func run(_ name: String, position: Int, tokens: Int) throws {
        let plain = bundle.manifest.names[name] ?? name
        guard let spec = parts[0].functions[plain], let xType = spec.inputs["x"], let gateType = spec.inputs["gate"] else {
            throw AneBookError.invalidBundle("\(parts[0].package) has no function \(plain)")
        }
        let T = spec.tokens
        let x = values.tensor("x", xType), gate = values.tensor("gate", gateType)
        let part = values.tensor("an expert's y", xType), sum = values.tensor("y", xType)
        let gates = values.tensor("gates", TensorSpec(dtype: .half, shape: [1, parts.count, 1, T]))
        var total = [Float](repeating: 0, count: x.count)
        for expert in parts.indices {
            let row = gates.halfs[(expert * T)..<((expert + 1) * T)]
            guard row.prefix(tokens).contains(where: { $0 != 0 }) else { continue }
            for (t, value) in row.enumerated() { gate.halfs[t] = value }
            let key = "\(plain)_\(expert)"
            if loaded[key] == nil, let own = parts[expert].functions[plain] {
                let reference = FunctionReference(
                    package: bundle.program(parts[expert]), name: parts[expert].called(plain), spec: own)
                loaded[key] = try programs.load(reference, inputs: ["x": x, "gate": gate], outputs: ["y": part])
            }
            try loaded[key]?.predict(nil)
            for i in total.indices { total[i] += Float(part.halfs[i]) }
        }
        for i in total.indices { sum.halfs[i] = Float16(total[i]) }
    }
}
