/// The inputs that the host makes for the layers: hidden state, position, masks, rotary tables.
///
/// Each function of T tokens over S slots has arrays of its own, made once. Between calls only that
/// changes which the position asks for: a mask of one token changes in one number.
final class HostInputs {
    /// What stands for "not attended": large, finite and inside half precision.
    static let masked: Float16 = -40_000

    private let embedding: Table, scale: Float, position = Tensor(.integer, [1])
    private var rotary: [String: Tensor] = [:]  // (S, D) for the whole context
    private var calls: [String: Call] = [:]

    init(_ bundle: Bundle) throws {
        let manifest = bundle.manifest
        (embedding, scale) = (bundle.embedding, manifest.host.embeddingScale)
        let slots = manifest.context
        for (name, own) in manifest.host.rotary {
            let cos = Tensor(.half, [slots, own.headDim]), sin = Tensor(.half, [slots, own.headDim])
            try own.fill(cos: cos.halfs, sin: sin.halfs, positions: slots, context: slots)
            (rotary["\(name)_cos"], rotary["\(name)_sin"]) = (cos, sin)
        }
        var rows: [Int: [String: Tensor]] = [:]  // of the tables, by T: the same in every tier
        for (name, function) in manifest.packages[0].functions {
            let tokens = function.tokens
            rows[tokens] = rows[tokens] ?? rotary.mapValues { Tensor(.half, [1, 1, tokens, $0.shape[1]]) }
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
        columns(ids, into: hidden)
        self.position.integers[0] = Int32(position)
        call.move(position, rotary)
    }

    /// Puts the hidden states of tokens before the first layer into columns of (1, C, 1, T).
    private func columns(_ ids: ArraySlice<Int32>, into hidden: Tensor) {
        let tokens = hidden.shape[3], columns = hidden.halfs
        if ids.count < tokens { hidden.clear() }
        for (t, id) in ids.enumerated() {
            embedding.withRow(Int(id)) { row in
                var at = t
                for value in row {
                    columns[at] = scale == 1 ? value : Float16(Float(value) * scale)
                    at += tokens
                }
            }
        }
    }

    /// The arrays of one function.
    private final class Call {
        let tokens: Int, slots: Int
        let tensors: [String: Tensor]
        private let windows: [(mask: Tensor, window: Int?)]
        private let tables: [(tensor: Tensor, name: String)]
        private var visible = 0  // slots that masks without a window let through

        init(_ function: FunctionSpec, _ manifest: Manifest, rows: [String: Tensor], position: Tensor) {
            (tokens, slots) = (function.tokens, function.slots ?? 0)
            let tokens = tokens, slots = slots
            var tensors = ["position": position]
            windows = manifest.host.masks.map { name, window in
                let mask = Tensor(.half, [1, 1, tokens, slots + tokens])
                tensors[name] = mask
                let window = window.flatMap { $0 < slots + tokens ? $0 : nil }
                Call.fill(mask, position: 0, slots: slots, window: window)
                return (mask, window)
            }
            tables = rows.map { ($1, $0) }
            self.tensors = tensors.merging(rows) { own, _ in own }
        }

        func move(_ position: Int, _ rotary: [String: Tensor]) {
            let change = min(visible, position)..<max(visible, position)
            let value = position > visible ? 0 : HostInputs.masked
            for (mask, window) in windows {
                if window != nil {
                    Call.fill(mask, position: position, slots: slots, window: window)
                } else {
                    for row in 0..<tokens {
                        let start = row * (slots + tokens)
                        for column in change { mask.halfs[start + column] = value }
                    }
                }
            }
            visible = position
            for (tensor, name) in tables {
                guard let table = rotary[name] else { continue }
                let bytes = 2 * table.shape[1]
                tensor.bytes.copyMemory(from: UnsafeRawBufferPointer(
                    rebasing: table.bytes[(position * bytes)..<((position + tokens) * bytes)]))
            }
        }

        /// 0 where the token of a row sees that of a column: slots before `position`, then the
        /// tokens of the call up to itself; of all these with a window the last so many.
        private static func fill(_ mask: Tensor, position: Int, slots: Int, window: Int?) {
            let tokens = mask.shape[2], values = mask.halfs
            for t in 0..<tokens {
                let start = t * (slots + tokens), first = position + t + 1 - (window ?? .max / 2)
                for slot in 0..<slots {
                    values[start + slot] = slot < position && slot >= first ? 0 : masked
                }
                for other in 0..<tokens {
                    let seen = other <= t && position + other >= first
                    values[start + slots + other] = seen ? 0 : masked
                }
            }
        }
    }
}
