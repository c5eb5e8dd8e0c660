import Foundation

/// The head of a request, and its body once that is read.
struct Request {
    let method: String, path: String, version: String
    /// By name in small letters; of a name that comes twice, both with a comma between.
    let headers: [String: String]
    var body: [UInt8] = []

    var staysOpen: Bool { version == "HTTP/1.1" && headers["connection"]?.lowercased().contains("close") != true }
}

/// What a connection may take.
struct Limits {
    var head = 64 << 10, body = 10_000_000  // bytes
    var idle = 75.0, headSeconds = 30.0, bodySeconds = 30.0  // seconds until it has to be there
    var unread = 60.0  // seconds in which a client takes nothing of its answer
}

/// The client has left; there is nobody to answer.
struct Gone: Error {}

/// One client's connection, on a thread of its own: requests in, answers out, bytes in between.
final class Connection {
    private let socket: Int32, limits: Limits
    private var buffer: ArraySlice<UInt8> = []
    private var chunked = false

    /// Takes a connected socket, and closes it at its own end.
    init(_ socket: Int32, limits: Limits = Limits()) {
        (self.socket, self.limits) = (socket, limits)
        _ = fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK)
    }

    deinit { close(socket) }

    /// The head of the next request; nil: there is none. Throws Gone, or a refusal.
    func head() throws -> Request? {
        guard try !buffer.isEmpty || fill(by: Date() + limits.idle, Gone()) else { return nil }
        let late = Refusal(408, "the head did not come within \(Int(limits.headSeconds)) s")
        let deadline = Date() + limits.headSeconds
        var left = limits.head
        var first = try line(&left, deadline, late)
        while first.isEmpty { first = try line(&left, deadline, late) }
        let words = first.split(separator: " ", omittingEmptySubsequences: false).map(String.init)
        guard words.count == 3, !words[0].isEmpty, words[0].allSatisfy(\.isLetter), words[1].hasPrefix("/"),
            words[2] == "HTTP/1.1" || words[2] == "HTTP/1.0" else { throw broken("its first line") }
        var headers: [String: String] = [:]
        while case let line = try line(&left, deadline, late), !line.isEmpty {
            let name = line.prefix { $0 != ":" }.lowercased()
            guard name.count < line.count, !name.isEmpty,
                name.allSatisfy({ $0.isASCII && ($0.isLetter || $0.isNumber || "!#$%&'*+-.^_`|~".contains($0)) })
            else { throw broken("a header") }
            let value = line.dropFirst(name.count + 1).trimmingCharacters(in: .whitespaces)
            headers[name] = headers[name].map { "\($0), \(value)" } ?? value
        }
        if words[2] == "HTTP/1.1" && headers["host"] == nil { throw broken("it names no host") }
        let path = words[1].prefix { $0 != "?" && $0 != "#" }
        return Request(method: words[0], path: path.removingPercentEncoding ?? String(path), version: words[2],
            headers: headers)
    }

    /// The body that a head announces. Throws Gone, or a refusal, after which the rest is unread.
    func body(of request: Request) throws -> [UInt8] {
        let length = request.headers["content-length"], coding = request.headers["transfer-encoding"]
        let number = length.map { $0.allSatisfy("0123456789".contains) ? Int($0) ?? .max : -1 } ?? 0
        guard number >= 0, length == nil || coding == nil, length != "" else { throw broken("the length of its body") }
        guard coding == nil || coding?.lowercased() == "chunked" else {
            throw Refusal(501, "a body is sent as it is, or chunked")
        }
        if number > limits.body { throw tooLong }
        let late = Refusal(408, "the body did not come within \(Int(limits.bodySeconds)) s")
        let deadline = Date() + limits.bodySeconds
        if request.headers["expect"]?.lowercased() == "100-continue" && buffer.isEmpty {
            try write("HTTP/1.1 100 Continue\r\n\r\n")
        }
        if coding == nil { return try take(number, deadline, late) }
        var body: [UInt8] = [], left = limits.body + limits.head
        while true {
            let size = try line(&left, deadline, late).prefix { $0 != ";" }.trimmingCharacters(in: .whitespaces)
            guard size.allSatisfy(\.isHexDigit), let count = Int(size, radix: 16) else { throw broken("a chunk") }
            if count > limits.body - body.count { throw tooLong }
            if count == 0 { break }
            body += try take(count, deadline, late)
            guard try line(&left, deadline, late).isEmpty else { throw broken("a chunk") }
        }
        while try !line(&left, deadline, late).isEmpty {}
        return body
    }

    /// Whether the client has left. What it sends meanwhile is kept.
    func hasLeft() -> Bool {
        if !ready(POLLIN, 0) || buffer.count > limits.head { return false }
        return (try? fill(by: Date(), Gone())) != true
    }

    /// Sends a whole answer.
    func answer(_ status: Int, _ body: String, to request: Request?, headers: [String: String] = [:], last: Bool) throws {
        let length = ["content-type": "application/json", "content-length": String(body.utf8.count)]
        let start = start(status, length.merging(headers) { $1 }, last)
        try write(request?.method == "HEAD" ? start : start + body)
    }

    /// Begins an answer that comes in pieces: in chunks, or to an old client until the end.
    func begin(_ headers: [String: String], to request: Request) throws {
        chunked = request.version == "HTTP/1.1"
        let coding = chunked ? ["transfer-encoding": "chunked"] : [:]
        try write(start(200, headers.merging(coding) { $1 }, !request.staysOpen))
    }

    /// Sends a piece; an empty one is the last.
    func send(_ piece: String) throws {
        try write(chunked ? "\(String(piece.utf8.count, radix: 16))\r\n\(piece)\r\n" : piece)
    }

    /// Has the client read its answer before the connection goes: it may still be sending.
    func linger() {
        shutdown(socket, Int32(SHUT_WR))
        let deadline = Date() + 2
        buffer = []
        while let more = try? fill(by: deadline, Gone()), more { buffer = [] }
    }

    private func start(_ status: Int, _ headers: [String: String], _ last: Bool) -> String {
        let own = ["x-request-id": UUID().uuidString.lowercased(), "connection": last ? "close" : "keep-alive"]
        let lines = headers.merging(own) { $1 }.sorted { $0.key < $1.key }.map { "\($0): \($1)\r\n" }
        return "HTTP/1.1 \(status) \(reasons[status] ?? "Refused")\r\n\(lines.joined())\r\n"
    }

    private func write(_ text: String) throws {
        var left = Array(text.utf8)[...]
        while !left.isEmpty {
            let sent = left.withUnsafeBytes { Foundation.send(socket, $0.baseAddress, $0.count, 0) }
            if sent > 0 { left = left.dropFirst(sent) }
            else if errno == EAGAIN || errno == EWOULDBLOCK {
                guard ready(POLLOUT, limits.unread) else { throw Gone() }
            } else if errno != EINTR { throw Gone() }
        }
    }

    /// Reads some bytes; false: there are no more.
    private func fill(by deadline: Date, _ late: any Error) throws -> Bool {
        while true {
            guard ready(POLLIN, max(0, deadline.timeIntervalSinceNow)) else { throw late }
            var part = [UInt8](repeating: 0, count: 65_536)
            let count = part.withUnsafeMutableBytes { recv(socket, $0.baseAddress, $0.count, 0) }
            if count > 0 { buffer = buffer.isEmpty ? part[..<count] : buffer + part[..<count] }
            if count < 0 && [EAGAIN, EWOULDBLOCK, EINTR].contains(errno) { continue }
            return count > 0
        }
    }

    private func take(_ count: Int, _ deadline: Date, _ late: Refusal) throws -> [UInt8] {
        var bytes: [UInt8] = []
        while bytes.count < count {
            guard try !buffer.isEmpty || fill(by: deadline, late) else { throw Gone() }
            let part = buffer.prefix(count - bytes.count)
            bytes += part
            buffer = buffer.dropFirst(part.count)
        }
        return bytes
    }

    /// A line without its end, in Latin-1; `left` is how many bytes lines may still have.
    private func line(_ left: inout Int, _ deadline: Date, _ late: Refusal) throws -> String {
        var searched = 0
        while true {
            let end = buffer.dropFirst(searched).firstIndex(of: 0x0A).map { $0 - buffer.startIndex }
            if end ?? buffer.count >= left {
                throw Refusal(431, "the head of a request has at most \(limits.head) bytes")
            }
            if let end {
                let line = buffer.prefix(end)
                buffer = buffer.dropFirst(end + 1)
                left -= end + 1
                let scalars = (line.last == 0x0D ? line.dropLast() : line).map { Unicode.Scalar($0) }
                guard !scalars.contains("\0"), !scalars.contains("\r") else { throw broken("a line") }
                return String(String.UnicodeScalarView(scalars))
            }
            searched = buffer.count
            guard try fill(by: deadline, late) else { throw Gone() }
        }
    }

    private func ready(_ events: some BinaryInteger, _ seconds: Double) -> Bool {
        let end = Date() + seconds
        while true {
            var one = pollfd(fd: socket, events: Int16(events), revents: 0)
            let count = poll(&one, 1, Int32((max(0, end.timeIntervalSinceNow) * 1000).rounded(.up)))
            if count >= 0 || errno != EINTR { return count > 0 }
        }
    }

    private var tooLong: Refusal {
        let most = limits.body.formatted(.number.locale(Locale(identifier: "en_US")))
        return Refusal(413, "a body has at most \(most) bytes", code: "body_too_long")
    }

    private func broken(_ what: String) -> Refusal { Refusal(400, "this is no HTTP request: \(what)") }
}

private let reasons = [
    200: "OK", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    408: "Request Timeout", 413: "Content Too Large", 415: "Unsupported Media Type",
    429: "Too Many Requests", 431: "Request Header Fields Too Large", 500: "Internal Server Error",
    501: "Not Implemented", 503: "Service Unavailable", 504: "Gateway Timeout",
]
