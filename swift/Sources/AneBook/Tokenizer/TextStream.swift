/// Text from tokens while they arrive.
///
/// A token may end in the middle of a character, so text is held back until its bytes are whole;
/// with stop strings, also while it could still turn into one. What comes out, joined, is what
/// decoding all tokens at once gives, cut at the first stop string.
public struct TextStream: Sendable {
    private var decoder: TokenDecoder
    private let stops: [[UInt8]]
    private var held: [UInt8] = []

    /// A stop string came; nothing follows.
    public private(set) var stopped = false

    public init(_ tokenizer: Tokenizer, stops: [String] = []) {
        decoder = TokenDecoder(tokenizer.tables)
        self.stops = stops.map { Array($0.utf8) }
    }

    /// The text that this token makes final, often one word, sometimes nothing.
    public mutating func add(_ id: Int32) -> String {
        decoder.append(id)
        return release(decoder.settledText(), isFinal: false)
    }

    /// The text that was still held back.
    public mutating func finish() -> String {
        release(decoder.text(), isFinal: true)
    }

    private mutating func release(_ text: String, isFinal: Bool) -> String {
        if stopped { return "" }
        if stops.isEmpty { return text }
        held += text.utf8
        var end = stops.compactMap { place(of: $0) }.min()
        if end != nil {
            stopped = true
        } else {
            end = isFinal ? held.count : held.count - (stops.map(overlap).max() ?? 0)
        }
        let out = held.prefix(end ?? 0)
        held = stopped ? [] : Array(held[out.endIndex...])
        return String(decoding: out, as: UTF8.self)
    }

    /// Where a stop string begins in the held text.
    private func place(of stop: [UInt8]) -> Int? {
        guard held.count >= stop.count else { return nil }
        return (0...held.count - stop.count).first { held[$0...].starts(with: stop) }
    }

    /// Length of the longest end of the held text that begins a stop string.
    private func overlap(_ stop: [UInt8]) -> Int {
        let longest = min(held.count, stop.count - 1)
        return stride(from: longest, to: 0, by: -1).first {
            held.suffix($0).elementsEqual(stop.prefix($0))
        } ?? 0
    }
}
