import Foundation
import Testing

@testable import AneBook

/// A byte-level tokenizer.bin of few tokens, built here as `swift_tables.packed` has it.
struct SmallTokenizer {
    var tokens: [[UInt8]] = (0...255).map { [$0] } + [Array("ab".utf8), Array("abc".utf8)]
    var flags: [UInt8] = Array(repeating: 19, count: 258) + [20, 16]
    var added: [(String, UInt32)] = [("<end>", 0), ("<tool>", 1 | 2)]

    var pattern: [UInt32] = [
        1, 0, 2,  // one pattern, gaps kept, two alternatives
        0, 2, 0, 0, 1, 0, 2, 0, 1, .max, 0, 1, 0,  // ` ?\S+`
        0, 1, 0, 1, .max, 0, 2, 0,  // ` +`
    ]

    private func bytes(_ words: [UInt32]) -> [UInt8] {
        words.flatMap { word -> [UInt8] in
            (0..<4).map { UInt8(truncatingIfNeeded: word >> (8 * $0)) }
        }
    }

    private func texts(_ name: String, _ list: [[UInt8]]) -> [(String, [UInt8])] {
        var ends: [UInt32] = [0], joined: [UInt8] = []
        for text in list {
            joined += text
            ends.append(UInt32(joined.count))
        }
        return [(name + "o", bytes(ends)), (name + "b", joined)]
    }

    /// The file. Kinds: 1 the space, 0 all others.
    func file() -> [UInt8] {
        let all = tokens + added.map { Array($0.0.utf8) }
        var block = [UInt8](repeating: 0, count: 256)
        block[0x20] = 1
        var pages = [UInt8](repeating: 0, count: 2 * 8704)  // little-endian: block 0, then all 1
        for page in 1..<8704 { pages[2 * page] = 1 }
        let sections: [(String, [UInt8])] =
            [("head", bytes([0, .max, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0, 0])), ("tokf", flags)]
            + texts("tok", all) + texts("add", added.map { Array($0.0.utf8) })
            + [
                ("merg", bytes([97, 98, 256, 256, 99, 257])),
                ("addi", bytes([258, added[0].1, 259, added[1].1])), ("befo", bytes([258])),
                ("kinp", pages), ("kinb", block), ("spac", bytes([2, 0])),
                ("spli", bytes(pattern)),
            ]
        var place = 12 + 12 * sections.count
        var rows = Array("ANETOK01".utf8) + bytes([UInt32(sections.count)]), body: [UInt8] = []
        for (name, data) in sections {
            rows += name.utf8
            rows += bytes([UInt32(place), UInt32(data.count)])
            let padded = data + [UInt8](repeating: 0, count: (4 - data.count % 4) % 4)
            body += padded
            place += padded.count
        }
        return rows + body
    }

    func opened() throws -> Tokenizer { try Tokenizer(bytes: Data(file())) }
}

@Suite struct TokenizerTests {
    @Test func mergesInTheOrderOfRanksAndSplitsAtSpaces() throws {
        let tokenizer = try SmallTokenizer().opened()
        #expect(try tokenizer.encode("abc ab", addSpecialTokens: true) == [258, 257, 32, 256])
        #expect(try tokenizer.encode("", addSpecialTokens: false) == [])
        #expect(tokenizer.decode([258, 257, 32, 256, 9999, -1]) == "abc ab")
    }

    @Test func addedTokensTakeTheWhiteSpaceAroundThem() throws {
        let tokenizer = try SmallTokenizer().opened()
        #expect(
            try tokenizer.encode("x  <tool> <end>", addSpecialTokens: false) == [120, 259, 258])
        #expect(try tokenizer.encode("<too", addSpecialTokens: false).count == 4)
    }

    @Test func equalTextsOfOtherScalarsAreOtherTokens() throws {
        // Canonically equal in Swift, but a tokenizer sees bytes.
        let tokenizer = try SmallTokenizer().opened()
        let composed = try tokenizer.encode("\u{E9}", addSpecialTokens: false)
        #expect(composed == [0xC3, 0xA9])
        #expect(try tokenizer.encode("e\u{301}", addSpecialTokens: false) != composed)
    }

    @Test func placesCountScalars() throws {
        let tokens = try SmallTokenizer().opened().locate("abc é")
        #expect(tokens.map(\.id) == [257, 32, 0xC3, 0xA9])
        #expect(tokens.map(\.scalars) == [0..<3, 3..<4, 4..<5, 4..<5])
    }

    @Test func aLongRunIsMergedInGoodTime() throws {
        let tokenizer = try SmallTokenizer().opened()
        let ids = try tokenizer.encode(
            String(repeating: "ab", count: 100_000), addSpecialTokens: false)
        #expect(ids == [Int32](repeating: 256, count: 100_000))
    }

    /// `\S*\S*\S*\S*\S*\S*\S* ` never matches a run of letters, and tries for ever.
    @Test func patternsMadeToHarmAreAnError() throws {
        var harmful = SmallTokenizer()
        let any: [UInt32] = [0, .max, 0, 1, 0]
        harmful.pattern = [1, 0, 1, 0, 8, 0] + Array(repeatElement(any, count: 7).joined()) + [1, 1, 0, 2, 0]
        let tokenizer = try harmful.opened(), run = String(repeating: "x", count: 3000)
        let sentence = AneBookError.invalidBundle(
            "tokenizer.bin is damaged or of another version: its patterns take too long to split a text")
        #expect(throws: sentence) { try tokenizer.encode(run, addSpecialTokens: false) }
        #expect(throws: sentence) { try tokenizer.locate(run) }
        #expect(try tokenizer.encode("x y", addSpecialTokens: false) == [120, 32, 121])
    }

    @Test func aDamagedFileIsAnErrorOrATokenizerThatDoesNotTrap() throws {
        let file = SmallTokenizer().file()
        var random = SplitMix(state: 1)
        var opened = 0
        for round in 0..<1000 {
            var bytes = file
            if round % 2 == 0 {
                bytes.removeLast(Int(random.next() % UInt64(file.count)))
            }
            for _ in 0..<(round % 2 + Int(random.next() % 2)) where !bytes.isEmpty {
                // Most of the file is tables of one value; the rest is where damage tells.
                let area = random.next() % 2 == 0 ? bytes.count : min(bytes.count, 3500)
                bytes[Int(random.next() % UInt64(area))] = UInt8(
                    truncatingIfNeeded: random.next() % 3 == 0 ? 255 : random.next())
            }
            do {
                let tokenizer = try Tokenizer(bytes: Data(bytes))
                opened += 1
                let ids = try tokenizer.encode("ab abc <tool> é<end> 👍", addSpecialTokens: true)
                var stream = TextStream(tokenizer, stops: ["c"])
                for id in ids + [-1, .max, 300] { _ = stream.add(id) }
                _ = stream.finish() + tokenizer.decode(ids)
                _ = try? tokenizer.locate("ab é")
            } catch {
                guard case .invalidBundle = error else {
                    Issue.record("an error of another kind: \(error)")
                    return
                }
            }
        }
        #expect(opened > 20)
    }

    @Test func aFileThatIsNotThereIsAnError() {
        #expect(throws: AneBookError.self) {
            try Tokenizer(contentsOf: URL(fileURLWithPath: "/no/such/tokenizer.bin"))
        }
    }
}

@Suite struct TextStreamTests {
    private func parts(_ text: String, stops: [String] = []) throws -> [String] {
        var stream = TextStream(try SmallTokenizer().opened(), stops: stops)
        return Array(text.utf8).map { stream.add(Int32($0)) } + [stream.finish()]
    }

    @Test func neverHalfACharacter() throws {
        #expect(try parts("a👍") == ["a", "", "", "", "👍", ""])
    }

    @Test func anUnfinishedCharacterComesAtTheEnd() throws {
        var stream = TextStream(try SmallTokenizer().opened())
        #expect(stream.add(0xF0) == "")
        #expect(stream.add(0x9F) == "")
        #expect(stream.finish() == "\u{FFFD}")
    }

    @Test func aStopStringIsHeldBackUntilItIsCertain() throws {
        #expect(try parts("xaab", stops: ["aac"]) == ["x", "", "", "aab", ""])
        #expect(try parts("xaaaac", stops: ["aac"]) == ["x", "", "", "a", "a", "", ""])
        #expect(try parts("xa", stops: ["ab"]) == ["x", "", "a"])
    }

    @Test func nothingFollowsAStop() throws {
        var stream = TextStream(try SmallTokenizer().opened(), stops: ["b", "ab"])
        #expect(stream.add(97) + stream.add(98) + stream.add(99) == "")
        #expect(stream.stopped)
        #expect(stream.finish() == "")
    }

    @Test func specialTokensGiveNoText() throws {
        var stream = TextStream(try SmallTokenizer().opened())
        #expect([258, 97, 258, 98].map { stream.add($0) } == ["", "a", "", "b"])
    }
}

/// A generator of random numbers whose series is the same everywhere.
private struct SplitMix {
    var state: UInt64

    mutating func next() -> UInt64 {
        state &+= 0x9E37_79B9_7F4A_7C15
        let mixed = (state ^ (state >> 30)) &* 0xBF58_476D_1CE4_E5B9
        return mixed ^ (mixed >> 27)
    }
}
