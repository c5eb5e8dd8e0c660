/// Guesses what followed where the last tokens occurred before; for one text, which grows.
///
/// A guess changes no token, only how many a call of `verify` gives. Prompt lookup: Saxena 2023,
/// github.com/apoorvumang/prompt-lookup-decoding.
struct Lookup {
    private static let longest = 3  // tokens that are compared at most
    private var after: [ArraySlice<Int32>: Int] = [:]  // tokens -> the position after the last one
    private var read = 0

    /// At most so many tokens that may come after these, which are prompt and answer so far.
    mutating func propose(_ tokens: [Int32], most: Int) -> ArraySlice<Int32> {
        guard most > 0 else { return [] }
        for end in (read + 1)..<max(tokens.count, read + 1) {  // what nothing follows is left out
            for n in 1...min(Self.longest, end) { after[ArraySlice(Array(tokens[(end - n)..<end]))] = end }
        }
        read = max(tokens.count - 1, 0)
        for n in stride(from: min(Self.longest, tokens.count), to: 0, by: -1) {
            if let at = after[tokens.suffix(n)] { return tokens[at..<min(at + most, tokens.count)] }
        }
        return []
    }
}
