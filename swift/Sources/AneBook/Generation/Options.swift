extension Session {
    /// What to answer: a text, a conversation, or token ids as they are.
    public enum Prompt: Sendable, ExpressibleByStringLiteral {
        case text(String)
        case messages([Message])
        case tokens([Int32])

        public init(stringLiteral text: String) { self = .text(text) }
    }
}

/// How an answer is made; the names and meanings are those of `ane_book.options.Sampling`.
public struct Options: Sendable {
    /// Most tokens of an answer; what the context leaves may be less.
    public var maxTokens = 256
    /// 0 always takes the likeliest token.
    public var temperature = 0.0
    /// Draw among the K likeliest tokens.
    public var topK: Int?
    /// Draw among the likeliest, up to P in sum.
    public var topP: Double?
    /// Draw tokens at least P times as likely as the likeliest.
    public var minP: Double?
    /// What is added to the logits of tokens: -100 forbids one.
    public var logitBias: [Int32: Double] = [:]
    /// Taken from the logits of tokens that the answer has.
    public var presencePenalty = 0.0
    /// The same, once for each time that the answer has them.
    public var frequencyPenalty = 0.0
    /// The same seed draws the same tokens, here and in Python.
    public var seed: UInt64?
    /// A system prompt before the messages.
    public var system: String?
    /// Strings that end the answer, left out of it.
    public var stop: [String] = []
    /// End the answer with so many tokens in a row that it had before.
    public var stopRepeat: Int?
    /// Keep the cache's tokens that the prompt begins with, as a chat does.
    public var reuseCache = false
    /// Guess tokens from the text so far, which `verify` checks: faster, and the same tokens.
    public var lookup = false

    public init() {}

    var penalises: Bool { presencePenalty != 0 || frequencyPenalty != 0 }

    /// Whether the likeliest token alone does not do, as `argmax_output` gives it.
    var needsLogits: Bool { temperature > 0 || penalises || !logitBias.isEmpty }

    /// Throws `invalidInput` for a value that makes no sense.
    func check() throws {
        let wrong: (String, String)? =
            maxTokens < 1 ? ("maxTokens", "at least 1")
            : !(temperature >= 0 && temperature.isFinite) ? ("temperature", "a number from 0")
            : topK.map { $0 < 1 } ?? false ? ("topK", "at least 1")
            : topP.map { !($0 > 0 && $0 <= 1) } ?? false ? ("topP", "above 0 and at most 1")
            : minP.map { !($0 >= 0 && $0 <= 1) } ?? false ? ("minP", "from 0 to 1")
            : !logitBias.values.allSatisfy { Float($0).isFinite } ? ("logitBias", "finite numbers")
            : !(-2...2 ~= presencePenalty) ? ("presencePenalty", "from -2 to 2")
            : !(-2...2 ~= frequencyPenalty) ? ("frequencyPenalty", "from -2 to 2")
            : stopRepeat.map { $0 < 1 } ?? false ? ("stopRepeat", "at least 1") : nil
        if let (name, must) = wrong { throw AneBookError.invalidInput("\(name) must be \(must)") }
    }
}

/// What a stream gives.
public enum Event: Sendable {
    /// Text that will not change any more; never half a character.
    case text(String)
    /// The answer as a whole, last.
    case end(Answer)
}

/// The answer to one prompt, and its figures.
public struct Answer: Sendable, Equatable {
    public enum Reason: String, Sendable {
        /// An end token, a stop string or a repetition.
        case stop
        /// `maxTokens`, or the context.
        case length
    }

    public internal(set) var text = ""
    /// The generated tokens; the one that ended the answer is the last of them.
    public internal(set) var tokens: [Int32] = []
    /// Length of the prompt, chat markers included.
    public internal(set) var promptTokens = 0
    public internal(set) var reason = Reason.length
    /// Calls of all programs, to decode; tokens guessed, and how many of them are in the answer.
    public internal(set) var calls = 0, drafted = 0, accepted = 0
    /// Seconds to the first token, and from there to the last one.
    public internal(set) var prefillSeconds = 0.0, decodeSeconds = 0.0
    /// Tokens of the prompt that the cache did not hold.
    public internal(set) var prefilled = 0
}
