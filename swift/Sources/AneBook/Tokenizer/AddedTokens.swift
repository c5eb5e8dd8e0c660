/// Tokens that are found in a text as they stand, before it is split: `<|im_start|>` and the like.
struct AddedTokens: Sendable {
    struct Added: Sendable {
        var id: Int32
        var takesSpaceBefore, takesSpaceBehind: Bool
    }

    private let tokens: [Added]
    /// A tree of bytes: node and byte to the node behind, and which token ends at a node.
    private var children: [UInt64: Int] = [:]
    private var ends: [Int?] = [nil]
    private var firsts = [Bool](repeating: false, count: 256)

    var isEmpty: Bool { tokens.isEmpty }

    init(_ list: [(content: [UInt8], token: Added)]) {
        tokens = list.map(\.token)
        for (index, (content, _)) in list.enumerated() where !content.isEmpty {
            var node = 0
            for byte in content {
                let key = UInt64(node) << 8 | UInt64(byte)
                if let child = children[key] {
                    node = child
                } else {
                    ends.append(nil)
                    node = ends.count - 1
                    children[key] = node
                }
            }
            ends[node] = index
            firsts[Int(content[0])] = true
        }
    }

    /// The longest token that begins at a place, and where it ends.
    private func longest(_ text: UnsafeBufferPointer<UInt8>, _ place: Int) -> (Added, Int)? {
        var node = 0, at = place, best: (Added, Int)?
        while at < text.count, let child = children[UInt64(node) << 8 | UInt64(text[at])] {
            (node, at) = (child, at + 1)
            if let index = ends[node] { best = (tokens[index], at) }
        }
        return best
    }

    /// Call `body` with each part of a text in order, and its token if it is one.
    ///
    /// `isSpace`: whether a scalar is white space.
    func split(
        _ text: UnsafeBufferPointer<UInt8>, isSpace: (UInt32) -> Bool,
        _ body: (Range<Int>, Int32?) -> Void
    ) {
        var done = 0, place = 0
        while !isEmpty, place < text.count {
            guard firsts[Int(text[place])], let (token, end) = longest(text, place) else {
                place += 1
                continue
            }
            var from = place, to = end
            while token.takesSpaceBefore, from > done {
                var lead = from - 1
                while lead > done, text[lead] & 0xC0 == 0x80 { lead -= 1 }
                guard isSpace(scalar(text, lead).value) else { break }
                from = lead
            }
            from = max(from, done)
            while token.takesSpaceBehind, to < text.count {
                let (value, length) = scalar(text, to)
                guard isSpace(value) else { break }
                to += length
            }
            if done < from { body(done..<from, nil) }
            body(min(from, to)..<to, token.id)
            (done, place) = (to, end)
        }
        if done < text.count { body(done..<text.count, nil) }
    }
}
