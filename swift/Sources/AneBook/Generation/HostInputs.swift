/// The inputs that the host makes for the layers: hidden state, position, masks, rotary tables, and
/// what each layer has of its own.
///
/// Each function of T tokens over S slots has arrays of its own, made once. Between calls only that
/// changes which the position asks for: a mask of one token changes in one number.
final class HostInputs {
    /// What stands for "not attended": large, finite and inside half precision.
    static let masked: Float16 = -40_000

    private let embedding: Table, perLayer: Table?, scale: Float, position = Tensor(.integer, [1])
    private var rotary: [String: Tensor] = [:]  // of S tokens: the whole context
    private var calls: [String: Call] = [:]

    init(_ bundle: ModelBundle) throws {
        let manifest = bundle.manifest
        (embedding, perLayer, scale) = (bundle.embedding, bundle.perLayer, manifest.host.embeddingScale)
        let slots = manifest.context, layout = manifest.layout
        for (name, own) in manifest.host.rotary {
            let cos = Tensor(.half, layout.input(slots, own.headDim)), sin = Tensor(.half, cos.shape)
            try own.fill(cos: cos.halfs, sin: sin.halfs, positions: slots, context: slots, layout)
            (rotary["\(name)_cos"], rotary["\(name)_sin"]) = (cos, sin)
        }
        var rows: [Int: [String: Tensor]] = [:]  // of the tables, by T: the same in every tier
        for (name, function) in manifest.packages[0].functions {
            let tokens = function.tokens
            rows[tokens] = rows[tokens] ?? rotary.mapValues { Tensor(.half, layout.sized($0.shape, tokens)) }
            calls[name] = Call(function, manifest, rows: rows[tokens] ?? [:], position: position)
        }
    }

    /// The tensors of each function's inputs, by name.
    var tensors: [String: [String: Tensor]] { calls.mapValues(\.tensors) }

    /// Sets all inputs of a function for tokens that go to slots `position` and after.
    ///
    /// There are at most T ids, all of the vocabulary. Columns beyond them are zeros: their results
    /// are ignored, and what they write to a cache is masked until a real token overwrites it.
    func set(_ function: String, _ ids: ArraySlice<Int32>, position: Int, hidden: Tensor) {
        guard let call = calls[function] else { return }
        put(embedding, ids, scale: scale, into: hidden)
        if let perLayer { for (tensor, first) in call.own { put(perLayer, ids, from: first, into: tensor) } }
        self.position.integers[0] = Int32(position)
        call.move(position, rotary)
    }

    /// What the layers of the part that begins with layer `first` have of their own is called.
    static func own(_ first: Int) -> String { "per_layer \(first)" }

    /// Puts tokens' rows of a table, or what they have from a number on, into columns (..., T).
    private func put(_ table: Table, _ ids: ArraySlice<Int32>, from first: Int = 0, scale: Float = 1, into tensor: Tensor) {
        let tokens = tensor.shape[3], columns = tensor.halfs, count = tensor.count / tokens
        if ids.count < tokens { tensor.clear() }
        for (t, id) in ids.enumerated() {
            table.withRow(Int(id)) { row in
                for i in 0..<count {
                    let value = row[first + i]
                    columns[i * tokens + t] = scale == 1 ? value : Float16(Float(value) * scale)
                }
            }
        }
    }

    /// The arrays of one function.
    private final class Call {
        let tokens: Int, slots: Int, layout: Manifest.Layout
        let tensors: [String: Tensor]
        /// What layers have of their own, by part, and the number in a token's row that it begins with.
        let own: [(tensor: Tensor, first: Int)]
        private let windows: [(mask: Tensor, window: Int?)]
        private let tables: [(tensor: Tensor, name: String)]
        private var visible = 0  // slots that masks without a window let through

        init(_ function: Manifest.FunctionSpec, _ manifest: Manifest, rows: [String: Tensor], position: Tensor) {
            (tokens, slots, layout) = (function.tokens, function.slots ?? 0, manifest.layout)
            let tokens = tokens, slots = slots, layout = layout
            var tensors = ["position": position]
            windows = manifest.host.masks.map { name, window in
                let mask = Tensor(.half, layout.input(tokens, slots + tokens))
                tensors[name] = mask
                let window = window.flatMap { $0 < slots + tokens ? $0 : nil }
                Call.fill(mask, layout, tokens, position: 0, slots: slots, window: window)
                return (mask, window)
            }
            let size = manifest.perLayerSize
            own = manifest.layers.filter { _ in size != nil }.map { part in
                let tensor = Tensor(.half, [part.span.count, size ?? 1, 1, tokens])
                tensors[HostInputs.own(part.span.lowerBound)] = tensor
                return (tensor, part.span.lowerBound * (size ?? 1))
            }
            tables = rows.map { ($1, $0) }
            self.tensors = tensors.merging(rows) { own, _ in own }
        }

        func move(_ position: Int, _ rotary: [String: Tensor]) {
            let change = min(visible, position)..<max(visible, position)
            let value = position > visible ? 0 : HostInputs.masked
            let step = layout.steps(tokens, slots + tokens)
            for (mask, window) in windows {
                if window != nil {
                    Call.fill(mask, layout, tokens, position: position, slots: slots, window: window)
                } else {
                    for t in 0..<tokens {
                        for slot in change { mask.halfs[t * step.token + slot * step.column] = value }
                    }
                }
            }
            visible = position
            for (tensor, name) in tables {
                rotary[name]?.copy(position, tokens, into: tensor, at: 0, axis: layout.tokens)
            }
        }

        /// 0 where a token sees that of a column: slots before `position`, then the tokens of the
        /// call up to itself; of all these with a window the last so many.
        private static func fill(_ mask: Tensor, _ layout: Manifest.Layout, _ tokens: Int, position: Int, slots: Int,
            window: Int?) {
            let values = mask.halfs, step = layout.steps(tokens, slots + tokens)
            for t in 0..<tokens {
                let start = t * step.token, first = position + t + 1 - (window ?? .max / 2)
                for slot in 0..<slots {
                    values[start + slot * step.column] = slot < position && slot >= first ? 0 : masked
                }
                for other in 0..<tokens {
                    let seen = other <= t && position + other >= first
                    values[start + (slots + other) * step.column] = seen ? 0 : masked
                }
            }
        }
    }
}
