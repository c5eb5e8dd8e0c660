import AneBook

/// Sentence vectors from a bundle.
///
/// Several texts share a call, side by side: the mask lets a token see those of its own text alone.
public actor Embedder {
    public nonisolated let bundle: ModelBundle
    private nonisolated let thread = SerialThread()
    public nonisolated var unownedExecutor: UnownedSerialExecutor { thread.asUnownedSerialExecutor() }

    private let predictor: any Predictor, tokenizer: Tokenizer, vectors: Manifest.Vectors, positions: Table
    private var encoder: Encoder?

    /// Throws `invalidBundle`, or `invalidInput` for a bundle of another task. Loads no program yet.
    public init(_ bundle: ModelBundle, predictor: any Predictor) throws {
        guard let vectors = bundle.manifest.vectors, let positions = bundle.positions else {
            throw AneBookError.invalidInput(
                "\(bundle.url.path) is for \(bundle.manifest.task.rawValue): it makes no vectors of texts")
        }
        (self.bundle, self.predictor, tokenizer) = (bundle, predictor, try bundle.tokenizer())
        (self.vectors, self.positions) = (vectors, positions)
    }

    /// A vector (C,) of length 1 for each text; their products are their cosines.
    ///
    /// cut: a text of more tokens than the model reads is cut to the first of them, the special
    /// ones at its ends kept; without it such a text throws `promptTooLong`.
    public func embed(_ texts: [String], cut: Bool = true) throws -> [[Float]] {
        let most = bundle.manifest.context
        let ids = try texts.enumerated().map { i, text in
            // What the tokenizer puts around a text is cut too, should it alone be too long.
            let ids = try tokens(text, i, most: most, cut: cut).prefix(most)
            guard !ids.isEmpty else { throw AneBookError.invalidInput("text \(i) has no tokens") }
            return Array(ids)
        }
        var vectors = [[Float]](repeating: [], count: texts.count)
        for call in pack(ids.map(\.count), most) {
            for (i, vector) in zip(call, try run(call.map { ids[$0] })) { vectors[i] = vector }
        }
        return vectors
    }

    /// A text's token ids, cut to `most` if it may be.
    private func tokens(_ text: String, _ i: Int, most: Int, cut: Bool) throws -> [Int32] {
        let ids = try tokenizer.encode(text, addSpecialTokens: true)
        guard ids.count > most else { return ids }
        guard cut else { throw AneBookError.promptTooLong("text \(i) has \(ids.count) tokens; \(most) at most") }
        let plain = try tokenizer.encode(text, addSpecialTokens: false)
        let special = ids.count - plain.count, before = ids.prefix { $0 != plain.first }.count
        return ids.prefix(max(0, most - (special - before))) + ids.suffix(special - before)
    }

    /// Runs texts in one call; returns the vector of each.
    private func run(_ texts: [[Int32]]) throws -> [[Float]] {
        let encoder = try self.encoder ?? Encoder(bundle, predictor)
        self.encoder = encoder
        let result = try encoder.run(texts.reduce(0) { $0 + $1.count }) { hidden, inputs in
            var column = 0
            for text in texts {
                for (place, id) in text.enumerated() {
                    try put(id, place, into: hidden, column)
                    column += 1
                }
            }
            if let mask = inputs["mask"] { fillTextMask(mask, texts.map(\.count)) }
        }
        let width = result.shape[3], channels = result.shape[1], numbers = result.halfs
        var first = 0
        return try texts.map { text in
            let columns = vectors.pooling == .cls ? first..<(first + 1) : first..<(first + text.count)
            first += text.count
            let sums = (0..<channels).map { channel in
                columns.reduce(Float(0)) { $0 + Float(numbers[channel * width + $1]) } / Float(columns.count)
            }
            let length = sums.reduce(Float(0)) { $0 + $1 * $1 }.squareRoot()
            guard length > 0, length.isFinite else {
                throw AneBookError.notFinite("\(bundle.url.path): a vector of length \(length): a text, or one "
                    + "that shared its call, leaves the range of half precision")
            }
            return sums.map { $0 / length }
        }
    }

    /// Puts the sum of a token's row and its place's into a column of (1, C, 1, T).
    private func put(_ id: Int32, _ place: Int, into hidden: Tensor, _ column: Int) throws {
        guard 0..<Int32(bundle.embedding.rows) ~= id else {
            throw AneBookError.invalidBundle("token id \(id) is outside the vocabulary of \(bundle.embedding.rows)")
        }
        let width = hidden.shape[3], numbers = hidden.halfs
        bundle.embedding.withRow(Int(id)) { row in
            positions.withRow(place) { offset in
                for channel in row.indices {
                    numbers[channel * width + column] = Float16(Float(row[channel]) + Float(offset[channel]))
                }
            }
        }
    }
}

/// Divides texts among calls of at most `most` tokens; returns the numbers of each call's texts.
///
/// The longest first, each where it leaves the least room (best fit decreasing), as in Python.
func pack(_ lengths: [Int], _ most: Int) -> [[Int]] {
    var calls: [(texts: [Int], room: Int)] = []
    for i in lengths.indices.sorted(by: { (-lengths[$0], $0) < (-lengths[$1], $1) }) {
        let fits = calls.indices.filter { calls[$0].room >= lengths[i] && calls[$0].room < most }
        if let best = fits.min(by: { calls[$0].room < calls[$1].room }) {
            calls[best].texts.append(i)
            calls[best].room -= lengths[i]
        } else {
            calls.append(([i], most - lengths[i]))
        }
    }
    return calls.map(\.texts)
}
