import Foundation

/// From logits to the next token: the likeliest, or drawn with temperature, top-k and top-p.
///
/// Order and edge cases are those of the Python library (`ane_book/runtime/sampling.py`), and so of
/// `transformers`.
struct Sampler {
    private let options: Options
    private var random: PCG64

    init(_ options: Options) {
        self.options = options
        random = PCG64(seed: options.seed ?? .random(in: 0...(.max)))
    }

    var greedy: Bool { options.temperature == 0 }

    /// The next token. Throws `notFinite` where the largest logit is no number.
    mutating func token(_ output: Output) throws -> Int32 {
        if let token = output.token { return token }
        let likeliest = try likeliestToken(output)
        return greedy ? likeliest : draw(output.logits())
    }

    private mutating func draw(_ raw: [Float]) -> Int32 {
        var logits = raw.map { $0 / Float(max(options.temperature, 1e-30)) }
        if let k = options.topK, k < logits.count {
            let least = logits.sorted(by: >)[k - 1]
            for i in logits.indices where logits[i] < least { logits[i] = -.infinity }
        }
        if let p = options.topP, p < 1 { keepTop(p, &logits) }
        let total = cumulative(logits)
        let drawn = random.uniform() * (total.last ?? 0)
        // The first token whose sum exceeds what was drawn.
        var (low, high) = (0, total.count - 1)
        while low < high {
            let middle = (low + high) / 2
            if total[middle] > drawn { high = middle } else { low = middle + 1 }
        }
        return Int32(low)
    }

    /// Leaves the smallest set of tokens whose probabilities reach p, the others at minus infinity.
    private func keepTop(_ p: Double, _ logits: inout [Float]) {
        let order = logits.indices.filter { logits[$0].isFinite }
            .sorted { (logits[$0], $0) < (logits[$1], $1) }
        let total = cumulative(order.map { logits[$0] })
        for (place, i) in order.enumerated().dropLast() where total[place] <= 1 - p {
            logits[i] = -.infinity
        }
    }

    /// The sums of the softmax up to each.
    private func cumulative(_ logits: [Float]) -> [Double] {
        let most = logits.max() ?? 0
        let weights = logits.map { exp($0 - most) }
        let total = Float(weights.reduce(0) { $0 + Double($1) })
        var sum = 0.0
        return weights.map { sum += Double($0 / total); return sum }
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
            let columns = part.shape[3]
            return (0..<part.shape[1]).map { Float(part.halfs[$0 * columns + column]) }
        }
    }
}
