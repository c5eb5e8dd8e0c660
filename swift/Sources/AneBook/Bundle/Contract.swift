import Foundation

/// Checks of a manifest against the contract that it states, before any memory is taken for it.
///
/// What passes here can be run without a further look at shapes: every input of a program is the
/// host's, a value that a part before it gives, or kept from call to call.
extension Manifest {
    private typealias Shapes = [String: [Int]]

    /// Throws `invalidBundle`, with the first thing that does not fit.
    func check() throws {
        guard format == Manifest.format else {
            throw bad("format \(format.prefix(40)) is not \(Manifest.format): made by another version")
        }
        for part in packages {
            for function in part.functions.values
            where function.inputs["memory"] != nil || function.states["memory"] != nil {
                throw bad("layers with a memory are run by Python alone: convert another model")
            }
        }
        guard adapters == nil else {
            throw bad("slots for adapters are filled by Python alone: convert without lora_slots")
        }
        if let vectors {
            let own = vectors.causal == true || vectors.defaultPrompt != nil || vectors.dimensions != nil
            guard task == .embedding, vectors.positions != nil, vectors.pooling != .last, head.isEmpty, !own
            else {
                throw bad("an encoder with rotary tables, a causal mask, a head, a prompt or cut vectors "
                    + "is run by Python alone: take one of BERT's family")
            }
        }
        try checkNumbers()
        let widths = functions, generates = task == .textGeneration
        // With one function alone, every cache is a number of whole calls.
        let block = widths["verify", default: 2], alone = widths.count == 1 && widths["verify"] != nil
        let fits = generates
            ? block >= 2 && tiers.last == context && widths.values.max() ?? 0 <= tiers[0]
                && (alone ? tiers.allSatisfy { $0 % block == 0 }
                    : widths["decode"] == 1 && widths["prefill", default: 0] >= 2)
            : widths.values.max() == context && tiers.isEmpty
        guard fits else {
            throw bad("a context of \(context), caches of \(tiers) slots and functions of \(widths) "
                + "tokens do not fit")
        }
        // By name, T and S; 0 slots: the function attends to no cache.
        let plain = widths.mapValues { [$0, 0] }
        var tiered: [String: [Int]] = [:]
        for slots in tiers {
            for (name, tokens) in widths { tiered[tierName(name, slots)] = [tokens, slots] }
        }
        for part in packages {
            let own = part.functions.mapValues { [$0.tokens, $0.slots ?? 0] }
            let keeps = part.functions.values.contains { !$0.kept.isEmpty || !$0.states.isEmpty }
            let cached = keeps || (generates && part.package == packages[0].package)
            guard own == tiered || (own == plain && !cached), part.part == .layers || !keeps else {
                throw bad("\(part.package) has other functions than the first package")
            }
            let kept = part.functions.values.map { function in
                // Without their slots, which differ by tier.
                let all = function.kept.merging(function.states.map { ("\($0), a state", $1) }) { $1 }
                return Dictionary(uniqueKeysWithValues: all.map { name, type in
                    let slotless = type.shape.count != 4 || Layout.isTail(name)
                    return (name, slotless ? type.shape : layout.sized(type.shape, 0))
                })
            }
            guard kept.allSatisfy({ $0 == kept[0] }) else {
                throw bad("\(part.package): its functions keep different caches")
            }
        }
        guard !head.isEmpty == generates, (task == .embedding) == (vectors != nil),
            (task == .tokenClassification) == (tags != nil), generates || layout == .rows
        else { throw bad("its parts or its form are not those of the task \(task.rawValue)") }
        try checkOrder()
        try checkHead()
        for name in names.keys { try checkTypes(name) }
    }

    private func checkNumbers() throws {
        let shapes = packages.flatMap { $0.functions.values.flatMap {
            [$0.inputs, $0.states, $0.outputs].flatMap { $0.values.map(\.shape) }
        } }
        let tables = [embedding] + [perLayer, vectors?.positions].compactMap { $0 }
        let sizes = packages.flatMap { $0.functions.values.flatMap { [$0.tokens, $0.slots ?? 1] } }
        let extents = shapes.joined() + tables.flatMap(\.shape) + sizes + [context]
        let largest = 1 << 40
        guard extents.allSatisfy({ 1...largest ~= $0 }), !packages.isEmpty, context <= 1 << 31,
            files.values.allSatisfy({ $0 >= 0 }), tables.allSatisfy({ $0.shape.count == 2 }),
            0x1p-14...0x1p14 ~= host.embeddingScale,
            (shapes + tables.map(\.shape)).allSatisfy({ product($0, atMost: largest) != nil })
        else { throw bad("a shape, a size or a number is none") }
        for (name, rotary) in host.rotary {
            let fits = 1...1 << 20 ~= rotary.headDim && rotary.rotaryDim >= 0
            guard fits, rotary.rotaryDim <= rotary.headDim, rotary.rotaryDim % 2 == 0, rotary.theta > 0, rotary.theta.isFinite,
                product([context, rotary.headDim], atMost: largest) != nil
            else { throw bad("\(name): \(rotary.rotaryDim) of \(rotary.headDim) dimensions are rotated") }
        }
        guard host.masks.values.allSatisfy({ $0.map { $0 > 0 } ?? true }),
            tags.map({ $0.window > 0 && !$0.labels.isEmpty }) ?? true,
            tables.allSatisfy({ files[$0.file].map { Int.init($0) } ?? -1 >= 2 * $0.shape[0] * $0.shape[1] })
        else { throw bad("a mask, the labels or a table does not fit") }
        if let own = perLayer, let size = perLayerSize {
            let fits = task == .textGeneration && own.shape[0] == embedding.shape[0]
            guard fits, size * layerCount == own.shape[1] else {
                throw bad("per_layer of \(own.shape) does not go with the layers and the vocabulary")
            }
        }
        if let places = vectors?.positions?.shape, places != [context, embedding.shape[1]] {
            throw bad("positions of \(places), for texts of \(context) tokens")
        }
        let needed = hostBytes, here = Double(ProcessInfo.processInfo.physicalMemory)
        guard needed <= here else {
            throw bad("a context of \(context) takes \(Int(needed / 1e9)) GB, and \(Int(here / 1e9)) GB of memory "
                + "are here; convert it with a shorter one")
        }
    }

    /// Bytes of the masks, tables and caches that the host keeps; not exact, and never an overflow.
    private var hostBytes: Double {
        func count(_ shape: [Int]) -> Double { shape.reduce(2) { $0 * Double($1) } }
        var bytes = host.rotary.values.reduce(0) { $0 + 2 * count([context, $1.headDim]) }
        for function in packages.first?.functions.values ?? [:].values {
            let width = function.tokens
            let masks = task == .textGeneration ? host.masks.count : 1
            bytes += Double(masks) * count([width, width]) + Double(masks) * count([width, function.slots ?? 0])
        }
        for part in packages {
            for function in part.functions.values {
                for (name, type) in function.kept where type.shape.count == 4 {
                    let columns = count([type.shape[0], type.shape[1], context])
                    bytes += count(type.shape) + (Layout.isTail(name) ? columns : 0)
                }
            }
        }
        return bytes
    }

    /// Layer after layer, each one's experts after its gates, the head last.
    private func checkOrder() throws {
        var layer = 0, experts = 0, count = 0, headSeen = false
        var range: [Int]?
        for part in packages {
            let where_ = "\(part.package), layers \(part.layers ?? [])"
            if part.part == .experts {
                guard part.expert == experts, part.layers == range, experts < count else {
                    throw bad("\(where_), expert \(part.expert ?? -1), is out of order")
                }
                experts += 1
                continue
            }
            guard experts == count, part.expert == nil else { throw bad("\(where_): experts before it are missing") }
            (experts, count, range) = (0, 0, part.layers)
            for function in part.functions.values {
                guard let gates = function.outputs["gates"] else { continue }
                count = gates.shape.count > 1 ? gates.shape[1] : 0
            }
            if part.part == .head {
                headSeen = true
            } else {
                guard !headSeen, let own = part.layers, own.count == 2, own[0] == layer, own[1] >= own[0]
                else { throw bad("\(where_), is out of order") }
                let ends = part.functions.values.allSatisfy {
                    ["hidden_out", "gates", "logits"].contains(where: $0.outputs.keys.contains)
                }
                if ends { layer = own[1] }
            }
        }
        guard experts == count else { throw bad("experts of the last layer are missing") }
        let last = layers.last { $0.part == .layers }?.functions.values.first
        guard let last, last.outputs["hidden_out"] != nil || last.outputs["logits"] != nil else {
            throw bad("no part ends the layers by giving hidden_out")
        }
    }

    /// The head gives logits of the whole vocabulary, in parts `logits_0`, `logits_1`, ..., or a token.
    private func checkHead() throws {
        guard task == .textGeneration else { return }
        for name in functions.keys {
            let outputs = head.flatMap { Array($0.functions[name]?.outputs ?? [:]) }
            let rows = outputs.reduce(0) { $0 + ($1.value.shape.count == 4 ? $1.value.shape[1] : 0) }
            let names = outputs.map(\.key).sorted()
            let parts = outputs.indices.map { "logits_\($0)" }.sorted()
            guard names == ["token"] || (names == parts && rows == embedding.shape[0]) else {
                throw bad("the head gives \(names) of \(rows) rows, for a vocabulary of \(embedding.shape[0])")
            }
        }
    }

    /// The types of one function in every part, against the host's and those of the parts before.
    private func checkTypes(_ name: String) throws {
        var given: Shapes = [:]
        for part in packages {
            guard let function = part.functions[name] ?? part.functions[names[name] ?? name] else {
                throw bad("\(part.package) has no function \(name)")
            }
            let tokens = function.tokens, hidden = [1, embedding.shape[1], 1, tokens]
            var host = self.hostShapes(function)
            if part.part == .layers, let size = perLayerSize {
                host["per_layer"] = [part.span.count, size, 1, tokens]
            }
            if part.part == .experts { host = ["x": hidden, "gate": [1, 1, 1, tokens]] }
            let values = part.part == .experts ? host : host.merging(given) { own, _ in own }
            for (key, spec) in function.inputs {
                let fits = function.kept[key] != nil
                    ? keeps(key, function) : values[key] == spec.shape
                let type: ElementType = key == "position" ? .integer : .half
                guard fits, spec.dtype == type else { throw misfit(part, name, "input", key, spec) }
            }
            for (key, spec) in function.states {
                let fits = spec.shape.count == 4 && spec.shape == cache(spec.shape, function.slots ?? 0)
                guard fits, spec.dtype == .half else {
                    throw misfit(part, name, "state", key, spec)
                }
            }
            for (key, spec) in function.outputs where !key.hasPrefix("new_") {
                let last = [1, spec.shape.count == 4 ? spec.shape[1] : 0, 1, tokens]
                let fits = switch (part.part, key) {
                case (_, "hidden_out"), (_, "x"), (_, "y"): spec.shape == hidden
                case (.head, "token"): spec.shape == [1, tokens]
                case (.head, _): spec.shape == last
                default: spec.shape == last && key != "token" && !key.hasPrefix("logits_")
                }
                guard fits, spec.dtype == (key == "token" ? .integer : .half) else {
                    throw misfit(part, name, "output", key, spec)
                }
            }
            let own = function.outputs.filter { !$0.key.hasPrefix("new_") }.mapValues(\.shape)
            given = own["hidden_out"] != nil ? own : given.merging(own) { _, new in new }
            if own["gates"] != nil { given["y"] = hidden }
        }
    }

    /// Whether a cache, or a tail (n, R, 1, W), has the tokens that go into it beside it.
    private func keeps(_ name: String, _ function: FunctionSpec) -> Bool {
        guard let shape = function.inputs[name]?.shape, let new = function.outputs["new_\(name)"],
            shape.count == 4, new.dtype == .half
        else { return false }
        let T = function.tokens
        return Layout.isTail(name) ? shape[2] == 1 && new.shape == [shape[0], shape[1], 1, T]
            : shape == cache(shape, function.slots ?? 0) && new.shape == cache(shape, T)
    }

    /// The shape that a cache of so many slots, or rows, must have, by the sizes that are free.
    private func cache(_ shape: [Int], _ slots: Int) -> [Int] {
        layout.sized([shape[0], shape[1], 1, shape[3]], slots)
    }

    /// Shapes of what the host makes for a call of this function.
    private func hostShapes(_ function: FunctionSpec) -> Shapes {
        let tokens = function.tokens
        var shapes: Shapes = ["hidden": [1, embedding.shape[1], 1, tokens]]
        for (name, rotary) in host.rotary {
            shapes["\(name)_cos"] = layout.input(tokens, rotary.headDim)
            shapes["\(name)_sin"] = shapes["\(name)_cos"]
        }
        guard task == .textGeneration else {
            shapes["mask"] = [1, 1, tokens, tokens]
            return shapes
        }
        shapes["position"] = [1]
        for name in host.masks.keys {
            shapes[name] = function.slots.map { layout.input(tokens, $0 + tokens) }
        }
        return shapes
    }

    private func misfit(_ part: Part, _ function: String, _ kind: String, _ name: String,
        _ spec: TensorSpec) -> AneBookError {
        bad("\(part.package), \(function): \(kind) \(name), \(spec.dtype.rawValue) \(spec.shape), does not fit")
    }

    private func bad(_ what: String) -> AneBookError {
        .invalidBundle("manifest.json: \(what); convert the model again")
    }
}

/// The product of extents, or nil where it exceeds `largest`.
package func product(_ extents: [Int], atMost largest: Int) -> Int? {
    var result = 1
    for extent in extents {
        let (value, overflow) = result.multipliedReportingOverflow(by: extent)
        guard !overflow, value <= largest else { return nil }
        result = value
    }
    return result
}
