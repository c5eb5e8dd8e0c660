import Dispatch
import Testing

@testable import AneBook

/// Conversations with programs that count, whose template puts nothing around a text.
@MainActor @Suite struct ConversationTests {
    private let bundle: SmallBundle

    init() throws {
        bundle = try SmallBundle { manifest in
            manifest["tokenizer"] = ["packed": "tokenizer.bin", "eos_token_ids": [258], "segments": [
                "start": "", "reply": "", "next": "", "end": "", "user": "none", "assistant": "none",
                "cut_strip": "none", "nonempty": true, "outside": [String](),
                "system": ["before": "", "after": "", "strip": "none", "last": false, "joined": false],
            ]]
        }
    }

    private func conversation(_ predictor: any Predictor = CountingPredictor()) throws -> Conversation {
        var options = Options()
        options.maxTokens = 3
        return Conversation(try bundle.session(predictor), options)
    }

    @Test func twoTurnsAreTwoLines() async throws {
        let conversation = try conversation()
        #expect(try await conversation.ask("AB").text == "CDE")
        #expect(try await conversation.ask("QR").prefilled == 3)  // ABCD is there
        #expect(conversation.messages.map(\.content) == ["AB", "CDE", "QR", "STU"])
        #expect(conversation.messages.map(\.role) == ["user", "assistant", "user", "assistant"])
        #expect(conversation.state == .idle)
        try await conversation.reset()
        #expect(conversation.messages.isEmpty)
        #expect(try await conversation.ask("xy").promptTokens == 2)
    }

    /// 16 slots: the fourth question has no room for three tokens more, so that half of them is freed.
    @Test func theOldestTurnsAreForgottenOnceTheContextIsFull() async throws {
        let conversation = try conversation()
        var lengths: [Int] = []
        for _ in 0..<7 {
            lengths.append(try await conversation.ask("AB").promptTokens)
            #expect(conversation.messages.last?.content == "CDE")
        }
        #expect(lengths == [2, 7, 12, 7, 12, 7, 12])
        #expect(conversation.messages.count == 14 && conversation.forgotten == 8)
    }

    @Test func aQuestionThatDoesNotFitIsNoPartOfIt() async throws {
        let conversation = try conversation()
        try await conversation.ask("AB")
        for _ in 0..<2 {
            await #expect(throws: AneBookError.self) { try await conversation.ask("a question that is too long") }
            guard case .failed(let why) = conversation.state else { throw AneBookError.invalidInput("no failure") }
            #expect(why.contains("must fit the context of 16 tokens"))
            #expect(conversation.messages.map(\.content) == ["AB", "CDE"] && conversation.forgotten == 0)
        }
        #expect(try await conversation.ask("QR").promptTokens == 7)
        #expect(conversation.state == .idle)
    }

    /// What was said stays, and where nothing was, the question goes too. Whether the word of the call
    /// that was under way is among it depends on who is faster.
    @Test(arguments: [(1, [[], ["QR", "S"]]), (4, [["QR", "S"], ["QR", "ST"]])])
    func anAnswerIsCancelled(_ call: Int, _ left: [[String]]) async throws {
        let gate = Gate(), calls = Words()
        let conversation = try conversation(CountingPredictor(before: { _ in
            calls.add("")
            if calls.count == 6 + call { gate.pass() }  // 6 of the first answer
        }))
        try await conversation.ask("AB")
        #expect(calls.count == 6)
        let second = Task { try await conversation.ask("QR") }
        await withCheckedContinuation { cancelled in
            gate.whenSomeoneComes {
                let done = DispatchSemaphore(value: 0)
                Task { @MainActor in
                    #expect(conversation.state == .answering)
                    while !left[0].isEmpty, conversation.messages.last?.content == "" { await Task.yield() }
                    conversation.cancel()
                    done.signal()
                }
                done.wait()  // the call goes on after that
                cancelled.resume()
            }
        }
        await #expect(throws: CancellationError.self) { try await second.value }
        #expect(left.contains(Array(conversation.messages.map(\.content).dropFirst(2))))
        #expect(conversation.messages.count.isMultiple(of: 2) && conversation.state == .idle)
        #expect(try await conversation.ask("xy").text == "z{|")
    }

    @Test func aSecondQuestionWaitsForTheFirstAnswer() async throws {
        let conversation = try conversation()
        async let first = conversation.ask("AB"), second = conversation.ask("QR")
        _ = try await (first, second)
        #expect(Set([["AB", "CDE", "QR", "STU"], ["QR", "STU", "AB", "CDE"]]).contains(conversation.messages.map(\.content)))
    }

    @Test func whoLooksSeesHowFarTheLoadingIs() async throws {
        let gate = Gate()
        let conversation = try conversation(CountingPredictor(loading: { if $0 == "head decode" { gate.pass() } }))
        async let loaded: Void = conversation.load()
        let seen = await withCheckedContinuation { seen in
            gate.whenSomeoneComes {
                let done = DispatchSemaphore(value: 0)
                Task { @MainActor in
                    seen.resume(returning: conversation.state)
                    done.signal()
                }
                done.wait()
            }
        }
        #expect(seen == .loading(2, of: 3))
        try await loaded
        #expect(conversation.state == .idle)
    }
}
