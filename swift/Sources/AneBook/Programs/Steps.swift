/// A package, or the experts of a layer, run in its turn.
protocol Step: AnyObject {
    /// Forgets all tokens; dropStates: and what programs keep themselves.
    func clear(dropStates: Bool)
    func run(_ name: String, position: Int, tokens: Int) throws
}

extension Shard: Step {}

/// Loads one function.
typealias Load = () throws -> Void

/// Packages in order, as steps; the experts of a layer are one step, which opens each at need.
///
/// functions: of a package, those that are called. What is to be done before is added to `loads`.
func loadSteps(_ bundle: ModelBundle, _ parts: [Manifest.Part], _ programs: any Programs, _ values: Values,
    _ functions: (Manifest.Part) -> Set<String>, _ loads: inout [Load]) throws -> [any Step] {
    var steps: [any Step] = []
    for (i, part) in parts.enumerated() where (part.expert ?? 0) == 0 {
        if part.part == .experts {
            let experts = parts[i...].prefix { $0.part == .experts }
            steps.append(Experts(bundle, Array(experts), programs, values))
            continue
        }
        let shard = Shard(bundle, part, values: values, functions(part))
        loads += shard.names.map { name in { try shard.load(name, programs) } }
        steps.append(shard)
        if part.functions.values.contains(where: { $0.outputs["hidden_out"] != nil }) { values.turn() }
    }
    return steps
}

/// The tensors that programs hand to each other: one for every name, type and T.
///
/// The hidden state has two, so that no program writes where it reads.
final class Values {
    private let inputs: [String: [String: Tensor]]
    private var tensors: [Key: Tensor] = [:]
    private var turned = 0

    private struct Key: Hashable {
        let name: String, type: Manifest.TensorSpec
    }

    /// inputs: of each function, the tensors that the host fills.
    init(_ inputs: [String: [String: Tensor]]) { self.inputs = inputs }

    /// From here on, inputs called `hidden` are what was `hidden_out`.
    func turn() { turned += 1 }

    /// The tensor of a value in a function of the part that is being loaded.
    func callAsFunction(_ function: String, _ name: String, _ type: Manifest.TensorSpec) -> Tensor {
        if let tensor = inputs[function]?[name] { return tensor }
        return tensor(name == "hidden_out" ? hidden(turned + 1) : name == "hidden" ? hidden(turned) : name, type)
    }

    func tensor(_ name: String, _ type: Manifest.TensorSpec) -> Tensor {
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

    private func state(_ tokens: Int, _ manifest: Manifest) -> Manifest.TensorSpec {
        Manifest.TensorSpec(dtype: .half, shape: [1, manifest.embedding.shape[1], 1, tokens])
    }

    private func hidden(_ turn: Int) -> String { turn.isMultiple(of: 2) ? "hidden" : "hidden'" }
}

/// Runs the experts of a layer where each is a program: only those that some token chose.
///
/// There may be thousands, of which a text uses a few, so one is loaded when it is first called.
final class Experts: Step {
    private let bundle: ModelBundle, parts: [Manifest.Part], programs: any Programs, values: Values
    private let names: [String: String]  // of the functions of all tiers, which experts share
    private var loaded: [String: any LoadedFunction] = [:]

    init(_ bundle: ModelBundle, _ parts: [Manifest.Part], _ programs: any Programs, _ values: Values) {
        (self.bundle, self.parts, self.programs, self.values) = (bundle, parts, programs, values)
        names = bundle.manifest.names
    }

    func clear(dropStates: Bool) {}

    /// Sums up in single precision what the chosen experts make of `x`, as `y`.
    func run(_ name: String, position: Int, tokens: Int) throws {
        let plain = names[name] ?? name
        guard let spec = parts[0].functions[plain], let xType = spec.inputs["x"], let gateType = spec.inputs["gate"] else {
            throw AneBookError.invalidBundle("\(parts[0].package) has no function \(plain)")
        }
        let T = spec.tokens
        let x = values.tensor("x", xType), gate = values.tensor("gate", gateType)
        let part = values.tensor("an expert's y", xType), sum = values.tensor("y", xType)
        let gates = values.tensor("gates", Manifest.TensorSpec(dtype: .half, shape: [1, parts.count, 1, T]))
        var total = [Float](repeating: 0, count: x.count)
        for expert in parts.indices {
            let row = gates.halfs[(expert * T)..<((expert + 1) * T)]
            guard row.prefix(tokens).contains(where: { $0 != 0 }) else { continue }
            for (t, value) in row.enumerated() { gate.halfs[t] = value }
            let key = "\(plain)_\(expert)"
            if loaded[key] == nil, let own = parts[expert].functions[plain] {
                let reference = FunctionReference(
                    bundle, parts[expert], own, name: parts[expert].called(plain))
                loaded[key] = try programs.load(reference, inputs: ["x": x, "gate": gate], outputs: ["y": part])
            }
            try loaded[key]?.predict(nil)
            for i in total.indices { total[i] += Float(part.halfs[i]) }
        }
        for i in total.indices { sum.halfs[i] = Float16(total[i]) }
    }
}
