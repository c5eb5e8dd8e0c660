import Foundation

/// From logits to the next token: the likeliest, or drawn with temperature, top-k, top-p and min-p.
///
/// Order and edge cases are those of the Python library (`ane_book/runtime/sampling.py`), and so of
/// `transformers`. Before them, and for a greedy choice too, come bias and penalties. No step sorts
/// the vocabulary: `Cut` finds where one would be cut.
package struct Sampler {
    private let options: Options
    private var random: PCG64
    private var counts: [Int32: Int] = [:]  // of the answer's tokens, where penalties need them

    package init(_ options: Options) {
        self.options = options
        random = PCG64(seed: options.seed ?? .random(in: 0...(.max)))
    }

    /// The next token. Throws `notFinite` where the largest logit is no number.
    package mutating func token(_ output: Output) throws -> Int32 {
        if let token = output.token { return token }
        var token = try likeliestToken(output)
        let changes = changes()
        if options.temperature > 0 || !changes.isEmpty {
            var logits = output.logits()
            for (token, change) in changes { logits[Int(token)] += Float(change) }
            token = options.temperature > 0 ? draw(logits) : Int32(logits.indices.max { logits[$0] < logits[$1] } ?? 0)
        }
        if options.penalises { counts[token, default: 0] += 1 }
        return token
    }

    /// What is added to the logits of tokens.
    private func changes() -> [Int32: Double] {
        var changes = options.logitBias
        for (token, count) in counts {
            changes[token, default: 0] -= options.presencePenalty + options.frequencyPenalty * Double(count)
        }
        return changes
    }

    private mutating func draw(_ logits: [Float]) -> Int32 {
        let temperature = Float(max(options.temperature, 1e-30)), values = logits.map { $0 / temperature }
        let most = values.reduce(-.infinity) { $1 > $0 ? $1 : $0 }
        var least = -Float.greatestFiniteMagnitude
        if let k = options.topK, k < values.count {  // what ties with the k-th stays
            least = Cut(values.count, Double(values.count - k), most, { values[$0] }, { _ in 1 }).value
        }
        // What may be drawn, with probabilities beside that of the likeliest token.
        var kept: [(token: Int, weight: Double)] = []
        kept.reserveCapacity(values.count)
        for (token, value) in values.enumerated() where value >= least {
            kept.append((token, exp(Double(value - most))))
        }
        func sum() -> Double { kept.reduce(0) { $0 + $1.weight } }
        if let p = options.topP, p < 1 {
            let cut = Cut(kept.count, (1 - p) * sum(), most, { values[kept[$0].token] }, { kept[$0].weight })
            let first = kept[cut.place].token
            kept.removeAll { values[$0.token] < cut.value || values[$0.token] == cut.value && $0.token < first }
        }
        if let p = options.minP, p > 0 {
            let least = most + log(Float(p))
            kept.removeAll { values[$0.token] < least }
        }
        // The first token with which the sum exceeds what is drawn.
        let drawn = random.uniform() * sum()
        var reached = 0.0
        return Int32(kept.first { reached += $0.weight; return reached > drawn }?.token ?? 0)
    }
}

/// Where n numbers, in the order of their values and then of their places, are cut: the first to
/// stay of them, before which lie as many as measure at most `limit` together.
private struct Cut {
    let value: Float, place: Int

    /// most: the largest value, which always stays. The distance from it as the bits of a float,
    /// which keep its order, and of them the first half, says in which bin a number is; only those
    /// of one bin are sorted.
    @inline(__always)
    init(_ n: Int, _ limit: Double, _ most: Float, _ value: (Int) -> Float, _ measure: (Int) -> Double) {
        func bin(_ i: Int) -> Int { Int((most - value(i)).bitPattern >> 16) }
        var bins = [Double](repeating: 0, count: 1 << 15), sum = 0.0
        for i in 0..<n { bins[bin(i)] += measure(i) }
        var edge = bins.count - 1
        while edge > 0, sum + bins[edge] <= limit {
            sum += bins[edge]
            edge -= 1
        }
        let order = (0..<n).filter { bin($0) == edge }.map { (value($0), $0) }.sorted { $0 < $1 }
        let first = order.first { sum += measure($0.1); return sum > limit } ?? order.last
        (self.value, place) = first ?? (most, 0)
    }
}

/// The first of the largest logits.
///
/// Half precision is compared as whole numbers, which keep its order: a compiler makes vectors of
/// that, and no conversion is needed.
private func likeliestToken(_ output: Output) throws -> Int32 {
    var best = (value: Int32.min, token: Int32(0)), offset: Int32 = 0
    for part in output.parts {
        let columns = part.shape[3], bits = part.bytes.bindMemory(to: UInt16.self), rows = part.shape[1]
        var most = Int32.min, at = output.column
        if columns == 1 {
            // First the largest, a loop without branches; then where it is.
            for i in 0..<rows { most = max(most, ordered(bits[i])) }
        } else {
            for _ in 0..<rows {
                most = max(most, ordered(bits[at]))
                at += columns
            }
        }
        if most > best.value {
            let row = (0..<rows).first { ordered(bits[$0 * columns + output.column]) == most } ?? 0
            best = (most, offset + Int32(row))
        }
        offset += Int32(rows)
    }
    guard best.value < ordered(0x7c00), best.value > ordered(0xfc00) else {
        throw AneBookError.notFinite(
            "the model's logits hold NaN or infinities: something overflowed half precision "
                + "(largest number 65,504)")
    }
    return best.token
}

/// A half's bits as a number of the same order; NaN is the largest, and both zeros are equal.
@inline(__always)
private func ordered(_ bits: UInt16) -> Int32 {
    let size = Int32(bits & 0x7fff)
    let signed = bits & 0x8000 == 0 ? size : -size
    return size > 0x7c00 ? 0x8000 : signed
}

extension Output {
    /// The logits (V,) of this output's token.
    func logits() -> [Float] {
        parts.flatMap { part in
            let columns = part.shape[3], halfs = part.halfs
            return (0..<part.shape[1]).map { Float(halfs[$0 * columns + column]) }
        }
    }
}
