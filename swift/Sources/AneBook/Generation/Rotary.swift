import Foundation

/// What a model does to the first R of a head's D dimensions: rotary position embedding.
///
/// The same tables as the Python library's (`ane_book/rope.py`, which has the references): cos and
/// sin ride the root of attention's scale, and the first half of sin is negated.
public struct Rotary: Codable, Sendable {
    public let headDim: Int
    public let rotaryDim: Int
    public let theta: Double
    public let scaling: Scaling
    public let maxPosition: Int
    public let attentionScale: Double?

    enum CodingKeys: String, CodingKey {
        case headDim = "head_dim", rotaryDim = "rotary_dim", theta, scaling
        case maxPosition = "max_position", attentionScale = "attention_scale"
    }

    /// The fields of every type of `rope_scaling`; each type uses some.
    public struct Scaling: Codable, Sendable {
        package var type: String?
        var factor, alpha, lowFrequency, highFrequency, attentionFactor: Double?
        package var original: Double?
        var betaFast, betaSlow, mscale, mscaleAllDim: Double?
        var truncate: Bool?
        var turning: Double?
        var short, long: [Double]?

        enum CodingKeys: String, CodingKey {
            case type = "rope_type", factor, alpha, truncate, mscale
            case lowFrequency = "low_freq_factor", highFrequency = "high_freq_factor"
            case attentionFactor = "attention_factor", original = "original_max_position_embeddings"
            case betaFast = "beta_fast", betaSlow = "beta_slow", mscaleAllDim = "mscale_all_dim"
            case turning = "partial_rotary_factor"
            case short = "short_factor", long = "long_factor"
        }
    }

    /// Fills cos and sin for positions `first`, `first` + 1, ... in a cache of `context` slots.
    ///
    /// Throws `invalidBundle` where a field of the scaling is missing or gives no numbers.
    package func fill(cos: UnsafeMutableBufferPointer<Float16>, sin: UnsafeMutableBufferPointer<Float16>,
        first: Int = 0, positions: Int, context: Int, _ layout: Manifest.Layout = .rows) throws {
        let frequencies = try self.frequencies(context), half = rotaryDim / 2, step = layout.steps(positions, headDim)
        let scale = attentionScale?.squareRoot() ?? pow(Double(headDim), -0.25)
        let turn = try scale * attentionFactor()
        guard turn.isFinite, frequencies.allSatisfy(\.isFinite) else { throw damaged("no number") }
        for position in 0..<positions {
            func place(_ d: Int) -> Int { position * step.token + d * step.column }
            for d in rotaryDim..<max(headDim, rotaryDim) {
                (cos[place(d)], sin[place(d)]) = (Float16(Float(scale)), 0)
            }
            for pair in 0..<half {
                let angle = Double(first + position) * frequencies[pair]
                let c = Float16(Float(Foundation.cos(angle) * turn))
                let s = Float16(Float(Foundation.sin(angle) * turn))
                (cos[place(pair)], cos[place(half + pair)]) = (c, c)
                (sin[place(pair)], sin[place(half + pair)]) = (-s, s)
            }
        }
    }

    /// Whether YaRN turns by the same without two fields that mlx-lm does not read.
    package func isSameInMLX() throws -> Bool {
        var read = scaling
        (read.attentionFactor, read.truncate) = (nil, nil)
        let theirs = Rotary(headDim: headDim, rotaryDim: rotaryDim, theta: theta, scaling: read, maxPosition: maxPosition,
            attentionScale: attentionScale)
        let pairs = zip(try frequencies(2) + [attentionFactor()], try theirs.frequencies(2) + [theirs.attentionFactor()])
        return pairs.allSatisfy { abs($0 - $1) <= 1e-5 * abs($1) }
    }

    /// Radians a position of each of the R / 2 pairs.
    private func frequencies(_ context: Int) throws -> [Double] {
        let R = Double(rotaryDim), count = rotaryDim / 2
        var base = theta
        if scaling.type == "dynamic" { base *= pow(try need(scaling.alpha, "alpha"), R / (R - 2)) }
        let plain = (0..<count).map { 1 / pow(base, 2 * Double($0) / R) }
        switch scaling.type {
        case "linear":
            let factor = try need(scaling.factor, "factor")
            return plain.map { $0 / factor }
        case "proportional":
            let turning = Int((scaling.turning ?? 1) * R / 2), factor = scaling.factor ?? 1
            return plain.enumerated().map { $0 < turning ? $1 / factor : 0 }
        case "longrope":
            let short = Double(context) <= (try need(scaling.original, "original context"))
            let divisors = try need(short ? scaling.short : scaling.long, "factors")
            guard divisors.count == count else { throw damaged("\(divisors.count) factors") }
            return zip(plain, divisors).map { $0 / $1 }
        case "yarn":
            let kept = try yarnKept(), factor = try stretch()
            return zip(plain, kept).map { $0 * ($1 + (1 - $1) / factor) }
        case "llama3":
            let original = try need(scaling.original, "original context")
            let low = try need(scaling.lowFrequency, "low_freq_factor")
            let high = try need(scaling.highFrequency, "high_freq_factor")
            let factor = try need(scaling.factor, "factor")
            return plain.map {
                let turns = original * $0 / (2 * .pi)
                let kept = min(max((turns - low) / (high - low), 0), 1)
                return $0 * (kept + (1 - kept) / factor)
            }
        default:
            return plain
        }
    }

    /// How much each pair keeps its frequency under YaRN: 1 for the fast, 0 for the slow.
    private func yarnKept() throws -> [Double] {
        let R = Double(rotaryDim), original = try need(scaling.original, "original context")
        func pair(_ turns: Double) -> Double {
            R * log(original / (turns * 2 * .pi)) / (2 * log(theta))
        }
        func given(_ value: Double?, or usual: Double) -> Double { value == 0 ? usual : value ?? usual }
        var low = pair(given(scaling.betaFast, or: 32)), high = pair(given(scaling.betaSlow, or: 1))
        if scaling.truncate ?? true { (low, high) = (low.rounded(.down), high.rounded(.up)) }
        (low, high) = (max(low, 0), min(high, R - 1))
        let width = high == low ? 0.001 : high - low
        return (0..<rotaryDim / 2).map { 1 - min(max((Double($0) - low) / width, 0), 1) }
    }

    /// By what YaRN or LongRoPE stretched the context.
    private func stretch() throws -> Double {
        if let factor = scaling.factor, factor != 0 { return factor }
        return Double(maxPosition) / (try need(scaling.original, "original context"))
    }

    /// By what YaRN and LongRoPE scale cos and sin.
    private func attentionFactor() throws -> Double {
        guard scaling.type == "yarn" || scaling.type == "longrope" else { return 1 }
        if let given = scaling.attentionFactor { return given }
        let factor = try stretch()
        if scaling.type == "longrope" {
            let original = try need(scaling.original, "original context")
            return factor > 1 ? (1 + log(factor) / log(original)).squareRoot() : 1
        }
        func larger(_ by: Double) -> Double { factor > 1 ? 0.1 * by * log(factor) + 1 : 1 }
        if let one = scaling.mscale, let all = scaling.mscaleAllDim, one != 0, all != 0 {
            return larger(one) / larger(all)
        }
        return larger(1)
    }

    private func need<Value>(_ value: Value?, _ name: String) throws -> Value {
        guard let value else { throw damaged("no \(name)") }
        return value
    }

    private func damaged(_ what: String) -> AneBookError {
        .invalidBundle("rope_scaling of type \(scaling.type ?? "none") cannot be used: \(what)")
    }
}
