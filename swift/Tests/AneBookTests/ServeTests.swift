import Foundation
import Testing

@testable import AneBookServe

/// A connection, and the client's end of it; a client that is too slow is so after a tenth of a second.
private func pair(_ sent: String = "") -> (Connection, client: Int32) {
    var ends: [Int32] = [0, 0]
    #if canImport(Darwin)
    let kind = SOCK_STREAM
    #else
    let kind = Int32(SOCK_STREAM.rawValue)
    #endif
    #expect(socketpair(AF_UNIX, kind, 0, &ends) == 0)
    #expect(write(ends[1], sent, sent.utf8.count) == sent.utf8.count)
    let limits = Limits(head: 100, body: 10, idle: 0.1, headSeconds: 0.1, bodySeconds: 0.1, unread: 0.1)
    return (Connection(ends[0], limits: limits), ends[1])
}

private func status(_ act: () throws -> Void) -> Int? {
    do { try act() } catch { return (error as? Refusal)?.status ?? (error is Gone ? 0 : -1) }
    return nil
}

struct ConnectionTests {
    static let heads = [
        ("", 0), ("G", 408), ("GET / HTTP/1.1\r\nHost: a\r\n", 408), ("GET /\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400), ("GET /\(String(repeating: "x", count: 100))", 431),
        ("GET / HTTP/1.1\r\nHost: a\r\n\(String(repeating: "a: b\r\n", count: 20))\r\n", 431),
    ]

    @Test(arguments: heads) func aHeadThatIsNone(_ sent: String, _ expected: Int) {
        let (connection, client) = pair(sent)
        defer { close(client) }
        #expect(status { _ = try connection.head() } == expected)
    }

    @Test(arguments: [
        ("Content-Length: 5", "abc", 408), ("Content-Length: 11", "", 413), ("Content-Length: +1", "a", 400),
        ("Transfer-Encoding: chunked", "3\r\nabc\r\n", 408), ("Transfer-Encoding: chunked", "3\r\nabcd\r\n", 400),
        ("Transfer-Encoding: chunked", "b\r\n", 413), ("Transfer-Encoding: chunked", "1\r\n{\r\n7fffffffffffffff\r\n", 413), ("Transfer-Encoding: br", "", 501),
    ]) func aBodyThatIsNone(_ header: String, _ sent: String, _ expected: Int) throws {
        let (connection, client) = pair("POST / HTTP/1.1\r\nHost: a\r\n\(header)\r\n\r\n\(sent)")
        defer { close(client) }
        let head = try #require(try connection.head())
        #expect(status { _ = try connection.body(of: head) } == expected)
    }

    @Test func requestsOneAfterTheOther() throws {
        let chunked = "POST /a%20b?c HTTP/1.1\r\nHost: a\r\nX: y\r\nx: z\r\nTransfer-Encoding: chunked\r\n\r\n"
            + "2\r\nab\r\n1;d=e\r\nc\r\n0\r\nTrailer: f\r\n\r\n"
        let (connection, client) = pair(chunked + "\r\nGET /d HTTP/1.0\nContent-Length: 1\n\ng")
        let first = try #require(try connection.head())
        #expect(first.path == "/a b" && first.headers["x"] == "y, z" && first.staysOpen)
        #expect(try connection.body(of: first) == Array("abc".utf8))
        let second = try #require(try connection.head())
        #expect(try second.path == "/d" && !second.staysOpen && connection.body(of: second) == Array("g".utf8))
        close(client)
        #expect(try connection.head() == nil)
    }

    @Test func aClientThatLeavesIsNoticed() throws {
        let (connection, client) = pair()
        #expect(!connection.hasLeft())
        write(client, "GET", 3)
        #expect(!connection.hasLeft())
        close(client)
        #expect(connection.hasLeft())
    }

    @Test func aClientThatTakesNothingIsLeft() {
        signal(SIGPIPE, SIG_IGN)
        let (connection, client) = pair()
        let much = String(repeating: "x", count: 10_000_000)
        #expect(status { try connection.answer(200, much, to: nil, last: true) } == 0)
        close(client)
        #expect(status { try connection.answer(200, much, to: nil, last: true) } == 0)
    }
}

struct JSONTests {
    @Test(arguments: [
        "null", "true", "0", "1", "-1", "1.5", "1e-05", "9223372036854775807", "[]", "{}", "\"\"",
        "{\"a\":[1,2.5,true,null],\"b\":{\"c\":\"\\\"\\\\\\n\\u0001 é 😀\"}}",
    ]) func isReadAndWritten(_ text: String) throws {
        #expect(try JSON.parse(text.utf8).written == text)
    }

    @Test func truthIsNoNumber() throws {
        #expect(try JSON.parse("[true,1,1.0,0,false]".utf8)
            == [.bool(true), .int(1), .double(1), .int(0), .bool(false)])
    }

    @Test(arguments: [
        "9223372036854775808", "18446744073709551615", "-9223372036854775809", "1" + String(repeating: "0", count: 60),
    ])
    func aNumberThatNoIntIsStaysWhatItIs(_ text: String) throws {
        let body = #"{"seed": \#(text), "n": \#(text), "max_tokens": \#(text), "prompt": [\#(text)]}"#
        #expect(try JSON.parse("[\(text)]".utf8) == .list([.large(text)]))
        var fields = try Fields(JSON.parse(body.utf8))
        let isBelow = text.hasPrefix("-")
        #expect(status { _ = try fields.whole("seed", from: .min, to: .max) } == 400)
        #expect(status { _ = try fields.whole("n", from: 1, to: 16) } == 400)
        #expect((try? fields.whole("max_tokens", from: 1, to: nil)) == (isBelow ? nil : .max))
        #expect(fields.value("prompt")?.ids == [isBelow ? .min : .max])
        #expect(try JSON.parse("-9223372036854775808".utf8) == .int(.min))
    }

    @Test(arguments: ["{'a': 1}", "{", "[1", String(repeating: "[", count: 100_000), "nul", "\"\\ud83d\""])
    func whatIsNoneIsRefused(_ text: String) {
        #expect(status { _ = try JSON.parse(text.utf8) } == 400)
    }
}
