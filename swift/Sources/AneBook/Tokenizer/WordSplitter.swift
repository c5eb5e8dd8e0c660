/// Splits a text into words by the patterns of tokenizer.bin, in place of regular expressions.
struct WordSplitter: Sendable {
    /// Characters of some kinds, so many times, or (`isAhead`) none of them next.
    struct Item: Sendable {
        var mask: UInt64
        var least, most: Int
        var isPossessive, isAhead: Bool
    }

    struct Alternative: Sendable {
        var isDropped: Bool
        var items: Range<Int>
        var tail: [[UInt64]]
        /// The kinds that its first character may have.
        var first: UInt64
    }

    /// One regular expression, applied to each piece that the one before left.
    struct Pattern: Sendable {
        var dropsGaps: Bool
        var alternatives: [Alternative]
        /// For each kind of character: a bit for each alternative that may begin with it.
        var candidates: [UInt64]
    }

    let kinds: CharacterTable<UInt8>
    let patterns: [Pattern]
    let items: [Item]

    init(_ file: PackedFile) throws(AneBookError) {
        kinds = try CharacterTable(file, "kin", below: 64)
        var source = Words(try file.words("spli")), items: [Item] = []
        patterns = try source.list { (source) throws(AneBookError) in
            try Pattern(&source, &items)
        }
        guard source.isAtEnd else { throw damaged("spli") }
        self.items = items
    }

    /// Steps of the matcher that a character of a text may take. The patterns of the families here
    /// take at most 21 on whatever was tried (runs and mixtures of 27 characters); those of a file
    /// made to harm take as many as they like.
    static let stepsPerCharacter = 500

    /// Call `body` with the bytes of each word, in order.
    ///
    /// Throws `AneBookError.invalidBundle` where the patterns take too many steps.
    func forEachWord(
        in text: UnsafeBufferPointer<UInt8>, _ scratch: inout Characters,
        _ body: (Range<Int>) -> Void
    ) throws(AneBookError) {
        guard !patterns.isEmpty else { return body(0..<text.count) }
        scratch.read(text, kinds)
        let ends = scratch.kinds.withUnsafeBufferPointer { kinds in
            items.withUnsafeBufferPointer { items in
                scratch.starts.withUnsafeBufferPointer { starts in
                    var matcher = Matcher(
                        kinds: kinds, items: items, left: Self.stepsPerCharacter * kinds.count)
                    split(0, 0..<kinds.count, &matcher) {
                        body(Int(starts[$0.lowerBound])..<Int(starts[$0.upperBound]))
                    }
                    return matcher.left >= 0
                }
            }
        }
        guard ends else { throw damaged("its patterns take too long to split a text") }
    }

    private func split(
        _ stage: Int, _ piece: Range<Int>, _ matcher: inout Matcher, _ body: (Range<Int>) -> Void
    ) {
        guard stage < patterns.count else { return body(piece) }
        let pattern = patterns[stage]
        var gap = piece.lowerBound, place = gap
        while place < piece.upperBound {
            guard let (end, isDropped) = matcher.match(pattern, place, piece.upperBound) else {
                place += 1
                continue
            }
            if gap < place, !pattern.dropsGaps { split(stage + 1, gap..<place, &matcher, body) }
            if !isDropped { split(stage + 1, place..<end, &matcher, body) }
            (gap, place) = (end, end)
        }
        if gap < place, !pattern.dropsGaps { split(stage + 1, gap..<place, &matcher, body) }
    }
}

/// A text's characters: the kind of each, and where in the text it begins.
struct Characters {
    fileprivate(set) var kinds: [UInt8] = []
    fileprivate(set) var starts: [UInt32] = []

    fileprivate mutating func read(
        _ text: UnsafeBufferPointer<UInt8>, _ table: CharacterTable<UInt8>
    ) {
        var count = 0
        starts = Array(unsafeUninitializedCapacity: text.count + 1) { starts, startCount in
            kinds = Array(unsafeUninitializedCapacity: text.count) { kinds, kindCount in
                var place = 0
                while place < text.count {
                    let (value, length) = scalar(text, place)
                    kinds[count] = table[value]
                    starts[count] = UInt32(truncatingIfNeeded: place)
                    count += 1
                    place += length
                }
                starts[count] = UInt32(truncatingIfNeeded: place)
                kindCount = count
            }
            startCount = count + 1
        }
    }
}

/// Matches alternatives as a backtracking engine of regular expressions does.
private struct Matcher {
    let kinds: UnsafeBufferPointer<UInt8>
    let items: UnsafeBufferPointer<WordSplitter.Item>
    /// How many steps it may still take; below zero, nothing matches any more.
    var left: Int

    /// Where the first alternative that matches at a place ends, and whether it is dropped.
    @inline(__always)
    mutating func match(
        _ pattern: WordSplitter.Pattern, _ place: Int, _ limit: Int
    ) -> (Int, Bool)? {
        var candidates = pattern.candidates[Int(kinds[place])]
        while candidates != 0 {
            let alternative = pattern.alternatives[candidates.trailingZeroBitCount]
            candidates &= candidates - 1
            let end = end(alternative.items.lowerBound, alternative.items.upperBound, place, limit)
            if end > place { return (behindTail(alternative, end, limit), alternative.isDropped) }
        }
        return nil
    }

    @inline(__always)
    private func isOf(_ mask: UInt64, _ place: Int) -> Bool {
        mask >> UInt64(kinds[place]) & 1 != 0
    }

    /// Where the items from `index` on end if they match at a place, otherwise -1.
    private mutating func end(_ index: Int, _ last: Int, _ place: Int, _ limit: Int) -> Int {
        guard index < last else { return place }
        let item = items[index]
        if item.isAhead {
            if place < limit, isOf(item.mask, place) { return -1 }
            return end(index + 1, last, place, limit)
        }
        let most = min(limit, place + item.most)
        var reached = place
        while reached < most, isOf(item.mask, reached) { reached += 1 }
        left &-= 1 &+ reached &- place
        let least = item.isPossessive ? max(reached, place + item.least) : place + item.least
        while reached >= least, left >= 0 {
            let end = end(index + 1, last, reached, limit)
            if end >= 0 { return end }
            reached -= 1
        }
        return -1
    }

    private func behindTail(_ alternative: WordSplitter.Alternative, _ end: Int, _ limit: Int)
        -> Int
    {
        for word in alternative.tail where end + word.count <= limit {
            if word.indices.allSatisfy({ isOf(word[$0], end + $0) }) { return end + word.count }
        }
        return end
    }
}

extension WordSplitter.Pattern {
    fileprivate init(_ source: inout Words, _ items: inout [WordSplitter.Item]) throws(AneBookError)
    {
        dropsGaps = try source.next() != 0
        alternatives = try source.list { (source) throws(AneBookError) in
            try WordSplitter.Alternative(&source, &items)
        }
        let firsts = alternatives.map(\.first)
        candidates = (0..<64).map { kind in
            firsts.indices.reduce(0) { $0 | (firsts[$1] >> UInt64(kind) & 1) << UInt64($1) }
        }
    }
}

extension WordSplitter.Alternative {
    fileprivate init(_ source: inout Words, _ items: inout [WordSplitter.Item]) throws(AneBookError)
    {
        isDropped = try source.next() != 0
        let count = try source.count(), words = try source.count()
        let start = items.count
        var first: UInt64 = 0, isOpen = true
        for _ in 0..<count {
            let item = try WordSplitter.Item(&source)
            if isOpen { first |= item.isAhead ? .max : item.mask }
            isOpen = isOpen && (item.isAhead || item.least == 0)
            items.append(item)
        }
        self.items = start..<items.count
        self.first = first
        tail = []
        for _ in 0..<words {
            tail.append(try source.list { (source) throws(AneBookError) in try source.mask() })
        }
    }
}

extension WordSplitter.Item {
    fileprivate init(_ source: inout Words) throws(AneBookError) {
        least = Int(try source.next())
        most = Int(try source.next())
        let flags = try source.next()
        (isPossessive, isAhead) = (flags == 1, flags == 2)
        mask = try source.mask()
        guard least <= most, flags <= 2 else { throw damaged("an item of spli") }
    }
}

/// Numbers of a section, read one after another.
private struct Words {
    private let words: [UInt32]
    private var place = 0

    init(_ words: [UInt32]) { self.words = words }

    var isAtEnd: Bool { place == words.count }

    mutating func next() throws(AneBookError) -> UInt32 {
        guard place < words.count else { throw damaged("spli ends too early") }
        place += 1
        return words[place - 1]
    }

    mutating func mask() throws(AneBookError) -> UInt64 {
        let low = UInt64(try next())
        return low | UInt64(try next()) << 32
    }

    /// How many there are of something; no pattern has more than 64 of anything.
    mutating func count() throws(AneBookError) -> Int {
        let count = Int(try next())
        guard count <= 64 else { throw damaged("a count of spli") }
        return count
    }

    mutating func list<T>(
        _ read: (inout Words) throws(AneBookError) -> T
    ) throws(AneBookError) -> [T] {
        var values: [T] = []
        for _ in 0..<(try count()) { values.append(try read(&self)) }
        return values
    }
}
