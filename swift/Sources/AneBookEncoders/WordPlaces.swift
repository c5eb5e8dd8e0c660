import AneBook

/// Where a text may be cut, and where its words begin: as Python's `ane_book.runtime.tags`.
///
/// What is a letter is asked of this system's Unicode; of characters that its version and Python's
/// know differently, a word's end may differ.
struct WordPlaces {
    /// Characters that are tokenised at once, at most.
    static let block = 1 << 16
    /// Characters of a word; of a longer one, a new word begins after so many.
    static let longest = 1000

    let scalars: [Unicode.Scalar]

    init(_ text: String) { scalars = Array(text.unicodeScalars) }

    func string(_ range: Range<Int>) -> String {
        var view = String.UnicodeScalarView()
        view.append(contentsOf: scalars[range])
        return String(view)
    }

    /// Bytes of a part of the text in UTF-8.
    func bytes(_ range: Range<Int>) -> Int { scalars[range].reduce(0) { $0 + UTF8.width($1) } }

    /// The text in blocks, to be tokenised one by one; they end where a word does.
    ///
    /// Text without such a place is cut after 65,536 characters, and may have other tokens at the cut.
    func blocks() -> [Range<Int>] {
        var found: [Range<Int>] = [], start = 0
        for read in stride(from: 0, to: scalars.count, by: Self.block) {
            let end = min(read + Self.block, scalars.count)
            while true {
                let last = min(end, start + Self.block + 1) - 1
                let place = last > start ? (start + 1...last).last(where: isPlace) : nil
                guard let cut = place ?? (end - start > Self.block ? start + Self.block : nil) else { break }
                found.append(start..<cut)
                start = cut
            }
        }
        return start < scalars.count ? found + [start..<scalars.count] : found
    }

    /// Whether a letter or digit stands before white space or punctuation, where every tokenizer
    /// that splits texts into words begins a new one.
    private func isPlace(_ place: Int) -> Bool {
        let after = scalars[place]
        return (isSpace(after) || Self.marks.contains(after)) && isWord(scalars[place - 1])
    }

    private static let marks = Set(",;:.!?()\"。、，；：！？".unicodeScalars)

    /// Whether a word begins with each token of a block, whose places are counted in the text.
    ///
    /// It never does with one that shares a character with the token before it. It always does with
    /// the first token, and with one `longest` characters into a word.
    func begins(_ block: Range<Int>, _ places: some Sequence<Range<Int>>) -> [Bool] {
        var found: [Bool] = [], word = block.lowerBound, end = word
        for place in places {
            let start = place.lowerBound, far = start - word >= Self.longest
            found.append(found.isEmpty || (start >= end && (far || !isInside(start, block))))
            (word, end) = (found.last == true ? start : word, place.upperBound)
        }
        return found
    }

    /// Whether a place lies in the middle of a word, or of what is drawn as one sign.
    private func isInside(_ place: Int, _ block: Range<Int>) -> Bool {
        guard place > block.lowerBound, place < block.upperBound else { return false }
        let before = scalars[place - 1], after = scalars[place], joiner: Unicode.Scalar = "\u{200D}"
        let mark = [.nonspacingMark, .spacingMark, .enclosingMark].contains(after.properties.generalCategory)
        if mark || before == joiner || after == joiner { return true }
        return isLetter(after) && (isLetter(before) || before.properties.generalCategory == .nonspacingMark)
    }
}

/// Whether a character is a letter or a digit: Python's `str.isalnum`.
private func isWord(_ scalar: Unicode.Scalar) -> Bool {
    switch scalar.properties.generalCategory {
    case .uppercaseLetter, .lowercaseLetter, .titlecaseLetter, .modifierLetter, .otherLetter: true
    default: scalar.properties.numericType != nil
    }
}

/// A letter or digit of a script that separates words by white space or punctuation. Thai to Khmer,
/// Chinese and Japanese do not; Korean does, but hangs particles on names.
private func isLetter(_ scalar: Unicode.Scalar) -> Bool {
    switch scalar.value {
    case 0x0E00...0x10FF, 0x1780...0x17FF, 0x2E80...0xA4CF, 0xAC00...0xD7FF, 0xF900...0xFAFF,
        0xFF66...0xFF9F, 0x20000...0x3FFFF: false
    default: isWord(scalar)
    }
}
