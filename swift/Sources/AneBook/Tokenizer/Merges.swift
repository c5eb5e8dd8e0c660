/// The merges of a byte-pair encoding: which neighbours become one token, and which come first.
struct Merges: Sendable {
    struct Merge: Sendable {
        var pair: UInt64 = 0  // left id, right id
        var rank = UInt32.max  // `max` where there is none
        var result: UInt32 = 0
    }

    private var slots: [Merge]

    init(_ file: PackedFile, tokens: Int) throws(AneBookError) {
        let rows = try file.words("merg")
        guard rows.count % 3 == 0, rows.allSatisfy({ Int($0) < tokens }) else {
            throw damaged("merg")
        }
        slots = Array(repeating: Merge(), count: capacity(rows.count / 3))
        for rank in 0..<rows.count / 3 {
            let pair = UInt64(rows[3 * rank]) << 32 | UInt64(rows[3 * rank + 1])
            slots[place(pair)] = Merge(
                pair: pair, rank: UInt32(rank), result: rows[3 * rank + 2])
        }
    }

    /// Where a pair is, or would be.
    @inline(__always)
    private func place(_ pair: UInt64) -> Int {
        var slot = Int(truncatingIfNeeded: mixed(pair)) & (slots.count - 1)
        while slots[slot].rank != .max, slots[slot].pair != pair {
            slot = (slot + 1) & (slots.count - 1)
        }
        return slot
    }

    @inline(__always)
    func of(_ left: UInt32, _ right: UInt32) -> Merge {
        slots[place(UInt64(left) << 32 | UInt64(right))]
    }
}

/// Merges the tokens of a word: always the pair of the lowest rank, of equal ones the first.
struct Merger {
    let merges: Merges
    var tokens: [UInt32] = []
    private var next: [Merges.Merge] = []  // of each token and the one behind it
    private var heap = Heap()

    /// Up to here the lowest rank is looked for; for more tokens there is a heap.
    static let few = 24

    init(_ merges: Merges) { self.merges = merges }

    mutating func merge() {
        guard tokens.count > 1 else { return }
        next.removeAll(keepingCapacity: true)
        for i in 0..<tokens.count - 1 { next.append(merges.of(tokens[i], tokens[i + 1])) }
        next.append(Merges.Merge())
        if tokens.count <= Self.few { mergeFew() } else { mergeMany() }
    }

    private mutating func mergeFew() {
        while true {
            var best = 0
            for i in 1..<next.count where next[i].rank < next[best].rank { best = i }
            guard next[best].rank != .max else { return }
            tokens[best] = next[best].result
            tokens.remove(at: best + 1)
            next.remove(at: best + 1)
            renew(best, before: best - 1, behind: best + 1)
            if tokens.count == 1 { return }
        }
    }

    /// Look up the pairs of a token that has changed.
    @inline(__always)
    private mutating func renew(_ place: Int, before: Int, behind: Int) {
        if before >= 0 { next[before] = merges.of(tokens[before], tokens[place]) }
        next[place] =
            behind < tokens.count ? merges.of(tokens[place], tokens[behind]) : Merges.Merge()
    }

    private mutating func mergeMany() {
        let end = tokens.count
        var before = Array(-1..<end - 1), behind = Array(1...end)
        heap.removeAll()
        for i in 0..<end where next[i].rank != .max { heap.push(next[i].rank, i) }
        while let (rank, place) = heap.pop() {
            guard next[place].rank == rank else { continue }  // one of its tokens has changed
            let gone = behind[place], left = before[place]
            tokens[place] = next[place].result
            next[gone] = Merges.Merge()
            behind[place] = behind[gone]
            if behind[gone] < end { before[behind[gone]] = place }
            renew(place, before: left, behind: behind[place])
            if left >= 0, next[left].rank != .max { heap.push(next[left].rank, left) }
            if next[place].rank != .max { heap.push(next[place].rank, place) }
        }
        var kept = 0, place = 0
        while place < end {
            tokens[kept] = tokens[place]
            kept += 1
            place = behind[place]
        }
        tokens.removeLast(end - kept)
    }
}

/// A binary heap of places by rank, then by place.
private struct Heap {
    private var entries: [UInt64] = []

    mutating func removeAll() { entries.removeAll(keepingCapacity: true) }

    mutating func push(_ rank: UInt32, _ place: Int) {
        let entry = UInt64(rank) << 32 | UInt64(place)
        entries.append(entry)
        var at = entries.count - 1
        while at > 0, entries[(at - 1) / 2] > entry {
            entries[at] = entries[(at - 1) / 2]
            at = (at - 1) / 2
        }
        entries[at] = entry
    }

    mutating func pop() -> (UInt32, Int)? {
        guard let top = entries.first, let last = entries.popLast() else { return nil }
        var at = 0
        while 2 * at + 1 < entries.count {
            var child = 2 * at + 1
            if child + 1 < entries.count, entries[child + 1] < entries[child] { child += 1 }
            guard entries[child] < last else { break }
            entries[at] = entries[child]
            at = child
        }
        if !entries.isEmpty { entries[at] = last }
        return (UInt32(top >> 32), Int(top & 0xFFFF_FFFF))
    }
}
