/// Runs an encoder's bundle; what `Embedder` and `Tagger` do with its programs.
///
/// A call takes a fixed number of tokens, T; of the bundle's functions, the one with the smallest T
/// that holds all tokens is called.
package final class Encoder {
    let bundle: ModelBundle
    private let steps: [any Step], values: Values
    private let widths: [(name: String, tokens: Int)]
    private let inputs: [String: [String: Tensor]]

    package init(_ bundle: ModelBundle, _ predictor: any Predictor) throws {
        let manifest = bundle.manifest
        self.bundle = bundle
        widths = manifest.functions.sorted { $0.value < $1.value }.map { ($0, $1) }
        inputs = Dictionary(uniqueKeysWithValues: widths.map { name, tokens in
            var own = ["mask": Tensor(.half, [1, 1, tokens, tokens])]
            for (table, rotary) in manifest.host.rotary {
                for half in ["cos", "sin"] {
                    own["\(table)_\(half)"] = Tensor(.half, [1, 1, tokens, rotary.headDim])
                }
            }
            return (name, own)
        })
        values = Values(inputs)
        var loads: [Load] = []
        steps = try loadSteps(bundle, manifest.packages, predictor.open(), values, { Set($0.functions.keys) }, &loads)
        for load in loads { try load() }
    }

    /// Runs tokens, and gives the result (1, C, 1, T), or logits (1, N, 1, T).
    ///
    /// fill: sets the hidden state (1, C, 1, T), which is zeros, and the other inputs by name.
    package func run(_ tokens: Int, fill: (_ hidden: Tensor, _ inputs: [String: Tensor]) throws -> Void) throws -> Tensor {
        guard let (name, width) = widths.first(where: { $0.tokens >= tokens }), let own = inputs[name] else {
            throw AneBookError.promptTooLong("\(tokens) tokens; a call takes \(bundle.manifest.context)")
        }
        let hidden = values.first(width, bundle.manifest)
        hidden.clear()
        try fill(hidden, own)
        for step in steps {
            try Task.checkCancellation()
            try step.run(name, position: 0, tokens: tokens)
        }
        return values["logits", width] ?? values.last(width, bundle.manifest)
    }
}

/// Fills a mask (1, 1, T, T): 0 where row and column are tokens of one text, at most `band` apart.
///
/// lengths: tokens of each text, side by side; padding sees padding.
package func fillTextMask(_ mask: Tensor, _ lengths: [Int], band: Int? = nil) {
    let tokens = mask.shape[3], numbers = mask.halfs
    var text = lengths.enumerated().flatMap { Array(repeating: $0, count: $1) }
    text += Array(repeating: lengths.count, count: tokens - text.count)
    for row in 0..<tokens {
        for column in 0..<tokens {
            let sees = text[row] == text[column] && abs(row - column) <= band ?? tokens
            numbers[row * tokens + column] = sees ? 0 : HostInputs.masked
        }
    }
}
