import Foundation

/// A JSON value; the fields of an object are written in their order here.
enum JSON: Equatable, Sendable {
    case null, bool(Bool), int(Int), double(Double), text(String), list([JSON]), object([Field])
    /// A whole number that no Int is, as it was written.
    case large(String)

    struct Field: Equatable, Sendable {
        let name: String, value: JSON
    }

    /// What a body says; nothing at all is null. Throws a refusal.
    static func parse(_ bytes: some Sequence<UInt8>) throws -> JSON {
        let data = Data(bytes)
        if data.isEmpty { return .null }
        do {
            return JSON(try JSONSerialization.jsonObject(with: data, options: .fragmentsAllowed))
        } catch {
            let why = (error as NSError).userInfo[NSDebugDescriptionErrorKey] as? String ?? ""
            throw Refusal(400, "the body is not JSON: \(why.prefix(100))", code: "invalid_json")
        }
    }

    private init(_ value: Any) {
        switch value {
        case let text as String: self = .text(text)
        case let list as [Any]: self = .list(list.map(JSON.init))
        case let object as [String: Any]:
            self = .object(object.sorted { $0.key < $1.key }.map { Field(name: $0, value: JSON($1)) })
        case let number as NSNumber:
            let type = String(cString: number.objCType)  // a number may be true; a truth value may be 1
            // One that is too large for an Int64 is of type Q, or a decimal number of type d.
            let digits = type == "d" && !(number is NSDecimalNumber) ? "." : number.stringValue
            self = type == "c" || type == "B" ? .bool(number.boolValue)
                : Int(digits).map(JSON.int)
                ?? (digits.allSatisfy("-0123456789".contains) ? .large(digits) : .double(number.doubleValue))
        default: self = .null
        }
    }

    var number: Double? {
        switch self {
        case .int(let number): Double(number)
        case .double(let number): number
        case .large(let digits): Double(digits)
        default: nil
        }
    }

    /// An object with the fields of two.
    static func + (first: JSON, second: JSON) -> JSON {
        guard case .object(let own) = first, case .object(let more) = second else { return first }
        return .object(own + more)
    }

    /// As Python's `json.dumps` writes it without spaces.
    var written: String {
        switch self {
        case .null: "null"
        case .bool(let bool): bool ? "true" : "false"
        case .int(let number): String(number)
        case .double(let number): String(number)
        case .large(let digits): digits
        case .text(let text): JSON.quoted(text)
        case .list(let list): "[\(list.map(\.written).joined(separator: ","))]"
        case .object(let fields):
            "{\(fields.map { "\(JSON.quoted($0.name)):\($0.value.written)" }.joined(separator: ","))}"
        }
    }

    private static func quoted(_ text: String) -> String {
        var quoted = "\""
        for scalar in text.unicodeScalars {
            switch scalar {
            case "\"": quoted += "\\\""
            case "\\": quoted += "\\\\"
            case "\n": quoted += "\\n"
            case "\r": quoted += "\\r"
            case "\t": quoted += "\\t"
            case "\u{8}": quoted += "\\b"
            case "\u{C}": quoted += "\\f"
            case _ where scalar.value < 0x20:
                quoted += "\\u00" + (scalar.value < 0x10 ? "0" : "") + String(scalar.value, radix: 16)
            default: quoted.unicodeScalars.append(scalar)
            }
        }
        return quoted + "\""
    }
}

extension JSON: ExpressibleByDictionaryLiteral, ExpressibleByArrayLiteral, ExpressibleByStringLiteral {
    init(dictionaryLiteral fields: (String, JSON)...) {
        self = .object(fields.map { Field(name: $0, value: $1) })
    }
    init(arrayLiteral values: JSON...) { self = .list(values) }
    init(stringLiteral text: String) { self = .text(text) }
}

/// A request that gets no answer: a status, a sentence, and which field is to blame.
struct Refusal: Error, Equatable {
    let status: Int, message: String, code: String?, param: String?, headers: [String: String]

    init(_ status: Int, _ message: String, code: String? = nil, param: String? = nil,
        headers: [String: String] = [:]) {
        (self.status, self.message, self.code, self.param, self.headers) = (status, message, code, param, headers)
    }

    /// The error in OpenAI's shape.
    var body: JSON {
        let kind = status == 429 ? "rate_limit_error" : status >= 500 ? "server_error" : "invalid_request_error"
        return ["error": ["message": .text(message), "type": .text(kind),
            "param": param.map(JSON.text) ?? .null, "code": code.map(JSON.text) ?? .null]]
    }
}
