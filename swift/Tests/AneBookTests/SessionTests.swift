import Foundation
import Synchronization
import Testing

@testable import AneBook

@Suite struct SessionTests {
    @Test func aPromptIsAnswered() async throws {
        let bundle = try SmallBundle()
        let session = try bundle.session()
        var options = Options()
        options.maxTokens = 5
        let answer = try await session.respond(to: .tokens([60, 61, 62, 63, 64, 65, 66]), options)
        #expect(answer.tokens == [67, 68, 69, 70, 71])
        #expect(answer.text == "CDEFG")
        #expect(answer.reason == .length)
        var pieces: [String] = []
        for try await event in session.stream("ABC", options) {
            if case .text(let text) = event { pieces.append(text) }
        }
        #expect(pieces.joined() == "DEFGH")
        options.stop = ["F"]
        #expect(try await session.respond(to: "ABC", options).text == "DE")
    }

    @Test func theContextIsTheEnd() async throws {
        let bundle = try SmallBundle()
        let session = try bundle.session()
        let answer = try await session.respond(to: .tokens(Array(1...10)))
        #expect(answer.tokens == Array(11...16))
        await #expect(throws: AneBookError.self) { try await session.respond(to: .tokens(Array(1...16))) }
        await #expect(throws: AneBookError.self) { try await session.respond(to: .tokens([])) }
        await #expect(throws: AneBookError.self) { try await session.respond(to: .tokens([1, 260])) }
    }

    @Test func aCacheIsKeptAndForgotten() async throws {
        let bundle = try SmallBundle()
        let session = try bundle.session()
        var options = Options()
        (options.maxTokens, options.reuseCache) = (3, true)
        #expect(try await session.respond(to: .tokens([1, 2, 3]), options).prefilled == 3)
        #expect(try await session.respond(to: .tokens([1, 2, 3, 4, 5, 9]), options).prefilled == 1)
        try await session.unload()
        #expect(await session.position == 0)
        try await session.prewarm()
        #expect(try await session.respond(to: .tokens([1, 2, 3]), options).tokens == [4, 5, 6])
        try await session.reset()
        #expect(await session.position == 0)
    }

    @Test func aConversationIsGoneBackTo() async throws {
        let bundle = try SmallBundle { manifest in
            manifest["tokenizer"] = ["packed": "tokenizer.bin", "eos_token_ids": [258], "segments": [
                "start": "", "reply": "", "next": "", "end": "", "user": "none", "assistant": "none",
                "cut_strip": "none", "nonempty": true, "outside": [String](),
                "system": ["before": "", "after": "", "strip": "none", "last": false, "joined": false],
            ]]
        }
        let session = try bundle.session()
        var options = Options()
        (options.maxTokens, options.reuseCache) = (3, true)
        func message(_ role: String, _ content: String) -> Message { Message(role: role, content: content) }
        let begin = [message("system", "W"), message("user", "AB")]
        #expect(try await session.respond(to: .messages(begin), options).text == "CDE")
        let whole = begin + [message("assistant", "CD")]
        _ = try await session.respond(to: .messages(whole + [message("user", "aQ")]), options)
        #expect(await session.position == 9)
        let next = try await session.respond(to: .messages(whole + [message("user", "xy")]), options)
        #expect(next.prefilled == 2 && next.text == "z{|")  // WABCD stays
        try await session.rewind(to: 3)
        #expect(try await session.respond(to: .messages(begin), options).prefilled == 1)
        try await session.reset()
        #expect(await session.position == 0)
    }

    /// Whoever reads a stream in a task that is cancelled is told by nothing but its last event.
    @Test func aStreamOfACancelledTaskEndsWithoutItsLastEvent() async throws {
        let bundle = try SmallBundle(), gate = Gate()
        let session = try bundle.session(CountingPredictor { if $0 == 3 { gate.pass() } })
        let reader = Task {
            var ends = 0
            for try await event in session.stream(.tokens([1])) { if case .end = event { ends += 1 } }
            return ends
        }
        gate.whenSomeoneComes { reader.cancel() }
        #expect(try await reader.value == 0)
    }

    /// In every entry the second one waits, for as long as its task is not cancelled.
    @Test func aSecondQuestionWaits() async throws {
        let bundle = try SmallBundle(), gate = Gate()
        let session = try bundle.session(CountingPredictor { if $0 == 1 { gate.pass() } })
        var options = Options()
        (options.maxTokens, options.reuseCache) = (3, true)
        async let first = session.respond(to: .tokens([1]), options)
        let (second, left, third) = await withCheckedContinuation { asked in
            gate.whenSomeoneComes { [options] in
                let second = Task { try await session.respond(to: .tokens([1, 2, 9]), options) }
                let left = Task { try await session.rewind(to: 99) }  // would be refused
                let third = Task {
                    _ = await (second.result, left.result)
                    try await session.rewind(to: 1)
                    return await session.position
                }
                left.cancel()
                asked.resume(returning: (second, left, third))
            }
        }
        await #expect(throws: CancellationError.self) { try await left.value }
        #expect(try await first.tokens == [2, 3, 4])
        #expect(try await second.value.tokens == [10, 11, 12])
        #expect(try await second.value.prefilled == 1)  // the first one's cache is there
        #expect(try await third.value == 1)
    }

    @Test func whoReadsAStreamMayAskAnotherQuestion() async throws {
        let bundle = try SmallBundle()
        let session = try bundle.session()
        var others = 0
        for try await event in session.stream(.tokens([1])) {
            if case .text = event, others == 0 { others = try await session.respond(to: .tokens([5])).tokens.count }
        }
        #expect(others == 15)
    }

    /// The head's `prefill` is never called, so it is not loaded; what is loaded is told one by one.
    @Test func functionsThatCanBeCalledAreLoadedAndWarmed() async throws {
        let bundle = try SmallBundle(), log = Words()
        let session = try bundle.session(CountingPredictor(before: { log.add("call \($0)") }, loading: { log.add($0) }))
        let told = Words()
        try await session.load { told.add("\($0) of \($1)") }
        #expect(log.take().sorted() == ["head decode", "layers decode", "layers prefill"])
        #expect(told.take() == ["0 of 3", "1 of 3", "2 of 3", "3 of 3"])
        try await session.prewarm()
        #expect(log.take() == (0..<4).map { "call \($0)" })  // a call of the head after each of the layers'
        #expect(await session.position == 0)
        var options = Options()
        (options.maxTokens, options.reuseCache) = (3, true)
        _ = try await session.respond(to: .tokens([1, 2]), options)
        try await session.prewarm()
        #expect(try await session.respond(to: .tokens([1, 2, 3, 4, 5]), options).prefilled == 1)
    }

    @Test(arguments: 0..<3) func loadingIsCancelledBetweenFunctions(_ last: Int) async throws {
        let bundle = try SmallBundle(), log = Words()
        let session = try bundle.session(CountingPredictor(loading: { name in
            log.add(name)
            if log.count == last + 1 { withUnsafeCurrentTask { $0?.cancel() } }
        }))
        let load = Task { try await session.load() }
        let result = await load.result
        #expect(log.count == last + 1)
        #expect((try? result.get()) == nil || last == 2)
        #expect(try await session.respond(to: .tokens([1])).tokens.first == 2)
    }

    /// Counting tokens waits for no program: it is no call of the actor.
    @Test func textIsTokensWhileProgramsLoad() async throws {
        let bundle = try SmallBundle(), gate = Gate()
        let session = try bundle.session(CountingPredictor(loading: { if $0 == "head decode" { gate.pass() } }))
        async let load: Void = session.load()
        let text = await withCheckedContinuation { asked in
            gate.whenSomeoneComes {
                asked.resume(returning: (try? session.encode("AB")).map { session.decode($0) })
            }
        }
        #expect(text == "AB")
        try await load
    }

    /// Each program call in turn finds its task cancelled; the session is as good as before.
    @Test(arguments: 0..<12) func aTaskIsCancelledAtAnyCall(_ call: Int) async throws {
        let bundle = try SmallBundle()
        let session = try bundle.session(CountingPredictor { number in
            if number == call { withUnsafeCurrentTask { $0?.cancel() } }
        })
        var options = Options()
        options.maxTokens = 6
        let task = Task { [options] in try await session.respond(to: .tokens([1, 2, 3, 4, 5, 6]), options) }
        await #expect(throws: CancellationError.self) { try await task.value }
        #expect(try await session.respond(to: .tokens([1, 2, 3, 4, 5, 6]), options).tokens == Array(7...12))
    }

    @Test func aStreamThatNobodyReadsEnds() async throws {
        let bundle = try SmallBundle()
        let session = try bundle.session()
        for _ in 0..<50 {
            for try await _ in session.stream(.tokens([1])) { break }
        }
        #expect(try await session.respond(to: .tokens([1])).tokens.first == 2)
    }

    @Test func aSeedDrawsAsNumpyDoes() {
        // numpy 2.2.6: np.random.default_rng(seed).random(3)
        var random = PCG64(seed: 0)
        #expect((0..<3).map { _ in random.uniform() } == [0.6369616873214543, 0.2697867137638703, 0.04097352393619469])
        random = PCG64(seed: 1 << 40 | 7)
        #expect(random.uniform() == 0.829812891829413)
    }
}

/// What was said so far, from any thread.
final class Words: Sendable {
    private let words = Mutex<[String]>([])
    func add(_ word: String) { words.withLock { $0.append(word) } }
    var count: Int { words.withLock { $0.count } }
    func take() -> [String] { words.withLock { own in defer { own = [] }; return own } }
}

/// Opens once: after `act`, which is done when someone has come to `pass`. A thread of its own waits
/// for that. Tasks have one thread a core, and two that waited for each other stood still on two cores.
final class Gate: Sendable {
    private let came = DispatchSemaphore(value: 0), opened = DispatchSemaphore(value: 0)
    func pass() { came.signal(); opened.wait() }
    func whenSomeoneComes(_ act: @escaping @Sendable () -> Void) {
        Thread.detachNewThread { [came, opened] in
            came.wait()
            act()
            opened.signal()
        }
    }
}
