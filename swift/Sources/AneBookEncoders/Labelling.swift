import AneBook
import Foundation

/// Logarithms of the probabilities of labels: of a token's scores (N,), the log softmax.
func logSoftmax(_ scores: [Float]) -> [Float] {
    let largest = scores.max() ?? 0
    let shifted = scores.map { $0 - largest }
    let sum = log(shifted.reduce(Float(0)) { $0 + exp($1) })
    return shifted.map { $0 - sum }
}

/// Which of N labels begin a span, go on with it, end it, are one alone, or are outside of all.
struct Labels {
    let outside: Int
    let kinds: [String]
    /// For each kind the number of its label, (K,).
    let begin: [Int], inside: [Int], end: [Int], single: [Int]
    /// For each label its kind's number; -1: outside.
    let kindOf: [Int]

    /// Throws `invalidBundle` unless the labels are O, and B, I, E and S of each kind.
    init(_ names: [String]) throws {
        let index = Dictionary(names.enumerated().map { ($1, $0) }) { first, _ in first }
        var kinds: [String] = [], numbers: [String: Int] = [:]
        for name in names where name != "O" {
            let kind = String(name.dropFirst(2))
            if numbers.updateValue(numbers[kind] ?? kinds.count, forKey: kind) == nil { kinds.append(kind) }
        }
        func all(_ part: String) -> [Int] { kinds.compactMap { index["\(part)-\($0)"] } }
        (begin, inside, end, single) = (all("B"), all("I"), all("E"), all("S"))
        guard let outside = index["O"], index.count == names.count, names.count == 1 + 4 * kinds.count,
            [begin, inside, end, single].allSatisfy({ $0.count == kinds.count })
        else {
            throw AneBookError.invalidBundle(
                "manifest.json: the labels are not O, and B, I, E and S of each kind; convert the model again")
        }
        (self.outside, self.kinds) = (outside, kinds)
        kindOf = names.map { $0 == "O" ? -1 : numbers[String($0.dropFirst(2))] ?? -1 }
    }
}

/// The best valid sequence of labels of a text, whose tokens come a stretch at a time.
///
/// As Python's `ane_book.runtime.tags.spans.Viterbi`: most sequences of labels are not valid, such
/// as an E after an O, and of those that are it finds the one of the largest sum of log
/// probabilities. After a token no span is open, or one of K kinds; the best way to each is kept.
struct Viterbi {
    /// So many tokens may wait for the one that decides what they are; then they are labelled as if
    /// the text ended there.
    static let longest = 1 << 14

    private let labels: Labels
    private var open: [Double]  // (K,): minus that of no open span
    private var steps: [Step] = []  // of the tokens that wait

    private struct Step {
        let label: Int  // where it ends a way without an open span
        let closes: Int  // the kind that is open before it on that way; -1: none
        let opened: [Bool]  // of each kind, whether the token opens it
    }

    init(_ labels: Labels) {
        self.labels = labels
        open = labels.kinds.map { _ in -.infinity }
    }

    /// Takes log probabilities (N,) of the next tokens.
    ///
    /// Returns the labels of those tokens that no later one can change any more.
    mutating func push(_ rows: [[Float]]) -> [Int] {
        var decided: [Int] = []
        for row in rows {
            step(row.map(Double.init))
            if steps.count == Self.longest {
                decided += settled()
                if steps.count == Self.longest { decided += finish() }
            }
        }
        return decided + settled()
    }

    /// Decides the labels of all tokens that wait; the text ends here.
    mutating func finish() -> [Int] {
        let last = back(steps.count, -1)
        self = Viterbi(labels)
        return last
    }

    private mutating func step(_ row: [Double]) {
        var (label, score, closes) = (labels.outside, row[labels.outside], -1)
        for single in labels.single where row[single] > score { (label, score) = (single, row[single]) }
        for (kind, end) in labels.end.enumerated() where open[kind] + row[end] > score {
            (label, score, closes) = (end, open[kind] + row[end], kind)
        }
        var opened: [Bool] = []
        for kind in open.indices {
            let opening = row[labels.begin[kind]], goingOn = open[kind] + row[labels.inside[kind]]
            opened.append(opening >= goingOn)
            open[kind] = max(opening, goingOn) - score
        }
        steps.append(Step(label: label, closes: closes, opened: opened))
    }

    /// The kind that is open before a token that waits, if `kind` is open after it; -1: none.
    private func before(_ i: Int, _ kind: Int) -> Int {
        kind < 0 ? steps[i].closes : steps[i].opened[kind] ? -1 : kind
    }

    /// The labels of the first `count` tokens that wait; `kind` is open after them.
    private func back(_ count: Int, _ kind: Int) -> [Int] {
        var found = [Int](repeating: 0, count: count), kind = kind
        for i in (0..<count).reversed() {
            let earlier = before(i, kind)
            found[i] = kind < 0 ? steps[i].label : earlier < 0 ? labels.begin[kind] : labels.inside[kind]
            kind = earlier
        }
        return found
    }

    /// Decides the labels of the tokens in which all ways that are still possible agree.
    private mutating func settled() -> [Int] {
        var ways = Set(open.indices.filter { open[$0].isFinite } + [-1])
        for i in steps.indices.dropFirst().reversed() {
            ways = Set(ways.map { before(i, $0) })
            if ways.count == 1, let way = ways.first {
                let found = back(i, way)
                steps.removeFirst(i)
                return found
            }
        }
        return []
    }
}
