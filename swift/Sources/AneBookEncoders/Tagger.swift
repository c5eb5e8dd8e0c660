import AneBook
import Foundation

/// Labels of the tokens of texts from a bundle, and the spans of the text that they mark.
///
/// Letters: C hidden size, T tokens of a call, N labels, n tokens of a text.
public actor Tagger {
    public nonisolated let bundle: ModelBundle
    private nonisolated let thread = SerialThread()
    public nonisolated var unownedExecutor: UnownedSerialExecutor { thread.asUnownedSerialExecutor() }

    private let predictor: any Predictor, tokenizer: Tokenizer, labels: Labels
    private let window: Int, reach: Int  // tokens on each side that a label depends on: in a layer, and in all
    private var encoder: Encoder?
    private var masked: [Int: Int] = [:]  // of each T, for how many tokens its mask is

    /// Throws `invalidBundle`, or `invalidInput` for a bundle of another task. Loads no program yet.
    public init(_ bundle: ModelBundle, predictor: any Predictor) throws {
        guard let tags = bundle.manifest.tags else {
            throw AneBookError.invalidInput(
                "\(bundle.url.path) is for \(bundle.manifest.task.rawValue): it gives no labels of tokens")
        }
        (self.bundle, self.predictor, tokenizer) = (bundle, predictor, try bundle.tokenizer())
        (labels, window) = (try Labels(tags.labels), tags.window)
        let layers = bundle.manifest.packages.compactMap { $0.layers?.last }.max() ?? 0
        let (reach, overflow) = layers.multipliedReportingOverflow(by: tags.window)
        self.reach = overflow ? .max / 4 : min(reach, .max / 4)
    }

    /// The text with every span replaced by its kind; all else as it is.
    public func redact(_ text: String) throws -> String { try tag(text).replaced(in: text) }

    /// The spans of a text, in order; they do not overlap.
    ///
    /// A text may have any length: what is longer than a call goes in windows that overlap, and its
    /// labels are those that one long call would give.
    public func tag(_ text: String) throws -> [Span] {
        let words = WordPlaces(text)
        var ids: [Int32] = [], places: [Range<Int>] = [], begins: [Bool] = []
        for block in words.blocks() {
            let tokens = try tokenizer.locate(words.string(block))
            let own = tokens.map { $0.scalars.lowerBound + block.lowerBound..<$0.scalars.upperBound + block.lowerBound }
            ids += tokens.map(\.id)
            places += own
            begins += words.begins(block, own)
        }
        return spans(words, places, begins, try labelled(ids))
    }

    /// Of each token the number of its label in the best valid sequence, and its probability.
    private func labelled(_ ids: [Int32]) throws -> [(label: Int, score: Float)] {
        guard let wrong = ids.first(where: { !(0..<Int32(bundle.embedding.rows) ~= $0) }) else {
            var best = Viterbi(labels), rows: ArraySlice<[Float]> = [], found: [(label: Int, score: Float)] = []
            try eachWindow(ids.count) { tokens, kept in
                let own = try scores(ids[tokens], start: tokens.lowerBound)[kept].map(logSoftmax)
                rows += own
                found += scored(best.push(own), &rows)
            }
            return found + scored(best.finish(), &rows)
        }
        throw AneBookError.invalidInput("token id \(wrong) is outside the vocabulary of \(bundle.embedding.rows)")
    }

    /// The next tokens' labels with their probabilities; their rows (N,) are needed no more.
    private func scored(_ labels: [Int], _ rows: inout ArraySlice<[Float]>) -> [(label: Int, score: Float)] {
        labels.map { ($0, exp(rows.removeFirst()[$0])) }
    }

    /// Calls `body` with the tokens of each window, and those of it whose labels are kept.
    ///
    /// A window is a call's tokens. Labels at least `reach` tokens from a cut are those that the
    /// whole text would give, so windows overlap by twice that.
    private func eachWindow(_ count: Int, _ body: (Range<Int>, Range<Int>) throws -> Void) throws {
        let most = bundle.manifest.context
        var start = 0, first = 0
        while count - start > most {
            guard most > 2 * reach else {
                throw AneBookError.invalidInput("a text of more than \(most) tokens takes several calls, and calls of "
                    + "that length are too short for that: the labels of a token depend on \(reach) on each side; "
                    + "convert the model with a context of \(4 * Double(reach)) or more")
            }
            try body(start..<(start + most), first..<(most - reach))
            (start, first) = (start + most - 2 * reach, reach)
        }
        if count > start { try body(start..<count, first..<(count - start)) }
    }

    /// Runs one window; returns the scores (N,) of its tokens. start: the first one's number in the text.
    private func scores(_ ids: ArraySlice<Int32>, start: Int) throws -> [[Float]] {
        let encoder = try self.encoder ?? Encoder(bundle, predictor)
        self.encoder = encoder
        let context = bundle.manifest.context
        let logits = try encoder.run(ids.count) { hidden, inputs in
            let T = hidden.shape[3], numbers = hidden.halfs
            for (column, id) in ids.enumerated() {
                bundle.embedding.withRow(Int(id)) { row in
                    for channel in row.indices { numbers[channel * T + column] = row[channel] }
                }
            }
            // By their places in the whole text, so that tables are equal on both sides of a seam.
            for (name, rotary) in bundle.manifest.host.rotary {
                guard let cos = inputs["\(name)_cos"], let sin = inputs["\(name)_sin"] else { continue }
                try rotary.fill(cos: cos.halfs, sin: sin.halfs, first: start, positions: T, context: context)
            }
            if let mask = inputs["mask"], masked[T] != ids.count {
                fillTextMask(mask, [ids.count], band: window)
                masked[T] = ids.count
            }
        }
        let T = logits.shape[3], numbers = logits.halfs
        let rows = ids.indices.map { i in
            (0..<logits.shape[1]).map { Float(numbers[$0 * T + i - ids.startIndex]) }
        }
        guard rows.allSatisfy({ $0.allSatisfy(\.isFinite) }) else {
            throw AneBookError.notFinite("\(bundle.url.path): scores that are no numbers, of tokens \(start) to "
                + "\(start + ids.count): they leave the range of half precision")
        }
        return rows
    }

    /// Spans of a valid sequence of labels.
    ///
    /// A span is widened to whole words, since half a word tells the other half. White space at both
    /// ends is not part of it, and neither is the text of an earlier span.
    private func spans(_ words: WordPlaces, _ places: [Range<Int>], _ begins: [Bool],
        _ labelled: [(label: Int, score: Float)]) -> [Span] {
        var found: [Span] = [], first = 0, place = 0, byte = 0
        for (i, (label, _)) in labelled.enumerated() {
            let kind = labels.kindOf[label]
            guard kind >= 0 else { continue }
            let alone = label == labels.single[kind]
            if alone || label == labels.begin[kind] { first = i }
            guard alone || label == labels.end[kind] else { continue }
            let word = begins[...first].lastIndex(of: true) ?? 0
            let after = begins[(i + 1)...].firstIndex(of: true) ?? begins.count
            var start = max(places[word].lowerBound, place)
            var end = places[word..<after].reduce(0) { max($0, $1.upperBound) }
            while start < end, isSpace(words.scalars[start]) { start += 1 }
            while start < end, isSpace(words.scalars[end - 1]) { end -= 1 }
            guard start < end else { continue }
            let bytes = byte + words.bytes(place..<start)
            (byte, place) = (bytes + words.bytes(start..<end), end)
            let sum = labelled[first...i].reduce(Float(0)) { $0 + $1.score }
            found.append(Span(label: labels.kinds[kind], text: words.string(start..<end), scalars: start..<end,
                bytes: bytes..<byte, score: sum / Float(i - first + 1)))
        }
        return found
    }
}

extension Tagger {
    /// A stretch of a text, of one kind.
    public struct Span: Sendable, Equatable {
        /// Its kind, such as `private_email`.
        public let label: String
        public let text: String
        /// Its place in the text, in Unicode scalars (Python's characters), and in bytes of UTF-8.
        public let scalars: Range<Int>, bytes: Range<Int>
        /// The mean over its tokens of the probability of their labels.
        public let score: Float

        /// What stands in its place: `<PRIVATE_EMAIL>`.
        public var replacement: String { "<\(label.uppercased())>" }
    }
}

extension [Tagger.Span] {
    /// The text whose spans these are, with each one's replacement in its place.
    public func replaced(in text: String) -> String {
        var redacted: [UInt8] = [], place = 0
        let utf8 = [UInt8](text.utf8)
        for span in self {
            redacted += utf8[place..<span.bytes.lowerBound] + [UInt8](span.replacement.utf8)
            place = span.bytes.upperBound
        }
        return String(decoding: redacted + utf8[place...], as: UTF8.self)
    }
}
