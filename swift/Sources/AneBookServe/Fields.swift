import AneBook

/// The fields of a request's body, read one by one; whoever reads them is told what is wrong.
///
/// A field of OpenAI's that is not served here is refused by its name, unless its value asks for
/// nothing; an unknown field is refused as OpenAI does it. The sentences are the Python server's.
struct Fields {
    private let values: [String: JSON], place: String
    private var unread: [String]

    init(_ body: JSON, place: String = "") throws {
        guard case .object(let fields) = body else {
            throw Refusal(400, "the body has to be a JSON object, sent as application/json")
        }
        values = Dictionary(fields.map { ($0.name, $0.value) }) { $1 }
        (unread, self.place) = (fields.map(\.name), place)
    }

    /// Passes over fields that ask for nothing. Throws for those of OpenAI's that are not served.
    mutating func dropUnserved() throws {
        for (name, neutral) in unserved {
            guard let value = values[name], value != .null else { continue }
            guard neutral.contains(where: { $0 == value || $0.number.map { $0 == value.number } ?? false }) else {
                throw Refusal(400, "\(name) is not served here; leave it out", code: "unsupported_parameter", param: name)
            }
        }
        unread.removeAll { name in
            unserved.contains { $0.0 == name } || aboutWhoAsks.contains(name) || values[name] == .null
        }
    }

    /// Throws where a field is left that nobody has read.
    func refuseUnknown() throws {
        guard let name = unread.first else { return }
        let param = place + name
        throw Refusal(400, "Unrecognized request argument supplied: \(param)", code: "unknown_parameter", param: param)
    }

    /// The value of a field, or nil where it is absent or null.
    mutating func value(_ name: String) -> JSON? {
        unread.removeAll { $0 == name }
        return values[name].flatMap { $0 == .null ? nil : $0 }
    }

    mutating func required(_ name: String) throws -> JSON {
        if let value = value(name) { return value }
        let param = place + name
        throw Refusal(400, "\(param) is missing", code: "missing_required_parameter", param: param)
    }

    /// most: nil: any number will do, and one that no Int is counts as the largest.
    mutating func whole(_ name: String, from least: Int, to most: Int?) throws -> Int? {
        guard let value = value(name) else { return nil }
        if case .large(let digits) = value {
            if digits.hasPrefix("-") { throw wrong(name, "greater than or equal to \(least)", value) }
            guard let most else { return .max }
            let must = most == .max ? "less than 9223372036854776000" : "less than or equal to \(most)"
            throw wrong(name, must, value)  // 2^63, as the Python server writes it
        }
        guard case .int(let number) = value else { throw wrong(name, "a valid integer", value) }
        try bound(name, value, Double(number), from: Double(least), to: Double(most ?? .max))
        return number
    }

    mutating func real(_ name: String, from least: Double, to most: Double) throws -> Double? {
        guard let value = value(name) else { return nil }
        guard let number = value.number else { throw wrong(name, "a valid number", value) }
        try bound(name, value, number, from: least, to: most)
        return number
    }

    mutating func truth(_ name: String) throws -> Bool {
        guard let value = value(name) else { return false }
        guard case .bool(let truth) = value else { throw wrong(name, "a valid boolean", value) }
        return truth
    }

    mutating func text(_ name: String) throws -> String? {
        guard let value = value(name) else { return nil }
        guard case .text(let text) = value else { throw wrong(name, "a valid string", value) }
        return text
    }

    /// The end strings: one, unless only a list will do, or a list of them.
    mutating func stop(listOnly: Bool = false) throws -> [String] {
        switch value("stop") {
        case nil: return []
        case .text(let text) where !listOnly: return [text]
        case .list(let list) where list.count <= 16 && list.allSatisfy { $0.asText != nil }: return list.compactMap(\.asText)
        default: throw form("stop", "a string or a list of at most 16 strings")
        }
    }

    /// The prompts: a text, several, token ids, or several lists of them.
    mutating func prompts() throws -> [Session.Prompt] {
        let value = try required("prompt")
        if case .text(let text) = value { return [.text(text)] }
        if let ids = value.ids { return [.tokens(ids)] }
        if case .list(let list) = value, !list.isEmpty, list.count <= 2048 {
            let texts = list.compactMap(\.asText), lists = list.compactMap(\.ids)
            if texts.count == list.count { return texts.map(Session.Prompt.text) }
            if lists.count == list.count { return lists.map(Session.Prompt.tokens) }
        }
        throw form("prompt", "a text, a list of texts, a list of token ids, or a list of such lists")
    }

    /// The messages of a conversation.
    mutating func messages() throws -> [Message] {
        let value = try required("messages")
        guard case .list(let list) = value else { throw wrong("messages", "a valid list", value) }
        if list.isEmpty { throw invalid("messages", "has to have at least 1 item") }
        return try list.enumerated().map { i, message in
            guard case .object(let own) = message else {
                throw wrong("messages.\(i)", "a valid dictionary or object to extract fields from", message)
            }
            let filled = own.filter { ["role", "content"].contains($0.name) || ![.null, []].contains($0.value) }
            var fields = try Fields(.object(filled), place: "messages.\(i).")
            let role = try fields.required("role"), content = try fields.required("content")
            guard let name = role.asText, ["system", "developer", "user", "assistant"].contains(name) else {
                throw fields.wrong("role", "'system', 'developer', 'user' or 'assistant'", role)
            }
            guard let text = content.spoken else {
                throw fields.form("content", "a text, or a list of {\"type\": \"text\", \"text\": ...}")
            }
            _ = try fields.text("name")
            try fields.refuseUnknown()
            return Message(role: name == "developer" ? "system" : name, content: text)
        }
    }

    private func bound(_ name: String, _ value: JSON, _ number: Double, from least: Double, to most: Double) throws {
        if number < least { throw wrong(name, "greater than or equal to \(Int(least))", value) }
        if number > most { throw wrong(name, "less than or equal to \(Int(most))", value) }
    }

    private func wrong(_ name: String, _ must: String, _ value: JSON) -> Refusal {
        let was = switch value {
        case .int, .double, .large: ", not \(value.written)"
        case .bool(let truth): ", not \(truth ? "True" : "False")"
        case .text(let text): ", not '\(text)'"
        default: ""
        }
        return invalid(name, "has to be \(must)\(was.prefix(100))")
    }

    private func invalid(_ name: String, _ rule: String) -> Refusal {
        Refusal(400, "\(place)\(name) \(rule)", code: "invalid_value", param: place + name)
    }

    private func form(_ name: String, _ forms: String) -> Refusal {
        Refusal(400, "\(place)\(name) has to be \(forms)", code: "invalid_type", param: place + name)
    }
}

extension JSON {
    var asText: String? { if case .text(let text) = self { text } else { nil } }

    /// Token ids; one that is too large for the type is too large for every vocabulary.
    var ids: [Int32]? {
        guard case .list(let list) = self, !list.isEmpty else { return nil }
        var ids: [Int32] = []
        for each in list {
            switch each {
            case .int(let id): ids.append(Int32(clamping: id))
            case .large(let digits): ids.append(digits.hasPrefix("-") ? .min : .max)
            default: return nil
            }
        }
        return ids
    }

    /// The content of a message: a text, or a list of parts that are texts.
    fileprivate var spoken: String? {
        guard case .list(let parts) = self else { return asText }
        let texts = parts.compactMap { part -> String? in
            guard var fields = try? Fields(part), fields.value("type") == "text" else { return nil }
            return fields.value("text")?.asText
        }
        return texts.count == parts.count ? texts.joined() : nil
    }
}

/// Fields of OpenAI's that are not served, with the values that ask for nothing. Null always does.
private let unserved: [(String, [JSON])] = [
    ("audio", []), ("best_of", [.int(1)]), ("echo", [.bool(false)]), ("frequency_penalty", [.int(0)]),
    ("function_call", ["none", "auto"]), ("functions", [[]]), ("logit_bias", [[:]]), ("logprobs", [.bool(false)]),
    ("modalities", [["text"]]), ("moderation", []), ("parallel_tool_calls", [.bool(true), .bool(false)]),
    ("prediction", []), ("presence_penalty", [.int(0)]), ("reasoning_effort", []),
    ("response_format", [["type": "text"]]), ("service_tier", ["auto", "default"]), ("store", [.bool(false)]),
    ("suffix", [""]), ("tool_choice", ["none", "auto"]), ("tools", [[]]), ("top_logprobs", [.int(0)]),
    ("verbosity", []), ("web_search_options", []),
]
/// Fields about who asks; they change no answer.
private let aboutWhoAsks: Set = [
    "metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "user",
]
