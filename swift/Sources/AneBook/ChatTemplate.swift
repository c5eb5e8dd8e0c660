import Foundation

/// A message of a conversation.
public struct Message: Codable, Sendable, Equatable {
    /// "system", "user" or "assistant".
    public var role: String
    public var content: String

    public init(role: String, content: String) {
        self.role = role
        self.content = content
    }
}

/// A chat template as the texts around contents, so that no Jinja is needed to lay one out.
///
/// `swift-tables` reads them off the model's template and proves them on conversations
/// (`swift_tables.segments`); the names are those of a bundle's manifest. A conversation is an
/// optional system prompt, then user and assistant in turn, beginning and ending with the user:
/// `start`, a user's content, `reply`, an assistant's content, `next`, a user's content, ..., `end`.
public struct ChatSegments: Codable, Sendable, Equatable {
    /// Which ends of a text lose what Python calls whitespace, or newlines alone.
    public enum Strip: String, Codable, Sendable {
        case none, both, left, right
        case leftNewlines = "left newlines"
    }

    /// How a template lays out a system prompt: `before`, its content, `after`.
    public struct System: Codable, Sendable, Equatable {
        public var before: String
        public var after: String
        public var strip: Strip
        /// What stands for all three where nothing is left of the content; nil: no other text.
        public var empty: String?
        /// The three stand before the last user's content; else before the first, for `start`.
        public var last: Bool
        /// With the user's content behind them, they lose whitespace at the end as one text.
        public var joined: Bool
    }

    public var start: String
    public var reply: String
    public var next: String
    public var end: String
    /// nil: the template takes no system prompt.
    public var system: System?
    public var user: Strip
    public var assistant: Strip
    /// Of an assistant's content that has this, only what follows its last place is laid out.
    public var cut: String?
    public var cutStrip: Strip
    /// No user's or assistant's content may be empty.
    public var nonempty: Bool
    /// No content may have any of these.
    public var outside: [String]
    /// Where the texts hold this, such as "%d %b %Y", the date stands there, as C's strftime writes
    /// it in English; nil: the template writes none.
    public var date: String?

    enum CodingKeys: String, CodingKey {
        case start, reply, next, end, system, user, assistant, cut, nonempty, outside, date
        case cutStrip = "cut_strip"
    }

    /// Lays out a conversation as the model's template does, with the prompt for an answer.
    ///
    /// today: what a template that writes the date writes, in the time zone of this device.
    /// Throws `AneBookError.invalidInput` for a conversation that the segments say nothing about.
    public func render(_ messages: [Message], today: Date = Date()) throws -> String {
        guard date == nil else { return try dated(today).render(messages) }
        let prompt = messages.first?.role == "system" ? messages[0].content : nil
        let turns = Array(messages.dropFirst(prompt == nil ? 0 : 1))
        let roles = turns.indices.map { $0.isMultiple(of: 2) ? "user" : "assistant" }
        guard !turns.count.isMultiple(of: 2), turns.map(\.role) == roles else {
            throw AneBookError.invalidInput(
                "a conversation is at most one system message, then messages of user and assistant "
                    + "in turn, the first and the last of them the user's")
        }
        for text in outside where messages.contains(where: { has($0.content, text) }) {
            throw AneBookError.invalidInput(
                "a message holds \(text), which this model's chat template reads")
        }
        var contents = turns.map(layOut)
        if nonempty, contents.contains("") {
            throw AneBookError.invalidInput("this model's chat template takes no empty message")
        }
        var first = start
        if let prompt {
            guard let system else {
                throw AneBookError.invalidInput("this model's chat template takes no system prompt")
            }
            let place = system.last ? contents.count - 1 : 0
            first = system.last ? start : ""
            let content = strip(prompt, system.strip)
            let whole = system.before + content + system.after
            let front = content.isEmpty ? system.empty ?? whole : whole
            contents[place] =
                system.joined
                ? strip(front + turns[place].content, .right) : front + contents[place]
        }
        var text = first
        for (index, content) in contents.enumerated() {
            if index > 0 { text += index.isMultiple(of: 2) ? next : reply }
            text += content
        }
        return text + end
    }

    /// The same with a date in the texts, and no place for one.
    private func dated(_ today: Date) -> ChatSegments {
        guard let date else { return self }
        let form = [UInt8](date.utf8), day = [UInt8](written(today, date).utf8)
        func filled(_ text: String) -> String {
            String(decoding: [UInt8](text.utf8).replacing(form, with: day), as: UTF8.self)
        }
        var copy = self
        copy.date = nil
        (copy.start, copy.reply, copy.next, copy.end) = (filled(start), filled(reply), filled(next), filled(end))
        if var system {
            (system.before, system.after) = (filled(system.before), filled(system.after))
            system.empty = system.empty.map(filled)
            copy.system = system
        }
        return copy
    }

    /// What is laid out of the content of a user's or an assistant's message.
    private func layOut(_ message: Message) -> String {
        guard message.role == "assistant" else { return strip(message.content, user) }
        let content = strip(message.content, assistant)
        guard let cut, let place = content.utf8.ranges(of: cut.utf8).last else { return content }
        return strip(String(content[place.upperBound...]), cutStrip)
    }
}

/// A date in a form of strftime: %d, %m, %Y, %y, and in English %a, %A, %b and %B.
private func written(_ date: Date, _ form: String) -> String {
    let days = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
    let months = ["January", "February", "March", "April", "May", "June", "July", "August", "September",
        "October", "November", "December"]
    let parts = Calendar(identifier: .gregorian).dateComponents([.year, .month, .day, .weekday], from: date)
    let (year, month, day) = (parts.year ?? 1, parts.month ?? 1, parts.day ?? 1)
    let names = (day: days[(parts.weekday ?? 1) - 1], month: months[month - 1])
    func two(_ number: Int) -> String { number < 10 ? "0\(number)" : "\(number)" }
    var text = String.UnicodeScalarView(), rest = form.unicodeScalars[...]
    while let scalar = rest.popFirst() {
        guard scalar == "%", let kind = rest.popFirst() else {
            text.append(scalar)
            continue
        }
        let piece = switch kind {
        case "d": two(day)
        case "m": two(month)
        case "Y": "\(year)"
        case "y": two(year % 100)
        case "a": String(names.day.prefix(3))
        case "A": names.day
        case "b": String(names.month.prefix(3))
        case "B": names.month
        default: "%\(kind)"
        }
        text.append(contentsOf: piece.unicodeScalars)
    }
    return String(text)
}

/// Whether a text holds another, compared byte by byte: Swift's own comparison of strings takes
/// letters with combining marks for equal that a template does not.
private func has(_ text: String, _ other: String) -> Bool {
    !text.utf8.ranges(of: other.utf8).isEmpty
}

/// What Python's `str.strip` and Jinja's `trim` take away, `str.isspace`. Unicode's White_Space, which
/// `Unicode.Scalar.Properties.isWhitespace` tells, lacks the four separators 0x1C to 0x1F.
package func isSpace(_ scalar: Unicode.Scalar) -> Bool { whitespace.contains { $0 ~= scalar.value } }

private let whitespace: [ClosedRange<UInt32>] = [
    0x9...0xD, 0x1C...0x20, 0x85...0x85, 0xA0...0xA0, 0x1680...0x1680, 0x2000...0x200A,
    0x2028...0x2029, 0x202F...0x202F, 0x205F...0x205F, 0x3000...0x3000,
]

/// A text without the whitespace that `form` names, scalar by scalar: "\r\n" is one Character.
func strip(_ text: String, _ form: ChatSegments.Strip) -> String {
    var rest = text.unicodeScalars[...]
    switch form {
    case .leftNewlines: rest = rest.drop { $0 == "\n" }
    case .left, .both: rest = rest.drop(while: isSpace)
    case .none, .right: break
    }
    if form == .right || form == .both {
        while let last = rest.last, isSpace(last) { rest.removeLast() }
    }
    return String(rest)
}
