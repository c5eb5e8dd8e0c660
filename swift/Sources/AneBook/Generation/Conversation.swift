#if canImport(Darwin) || STUBS
import Observation
#endif

/// A conversation with a session: what was said, and how far the next answer is.
///
///     let conversation = Conversation(session)
///     try await conversation.ask("What is the capital of France?")
///     print(try await conversation.ask("And of Japan?").text)
///
/// Each question runs only what the session's cache does not hold. Once the context is full, the model
/// no longer sees the oldest turns, as many as leave half of it free; `messages` has them still. A
/// question that is not answered with a word, because it does not fit, fails or is cancelled, is no
/// part of the conversation.
#if canImport(Darwin) || STUBS
@Observable  // not where no view is: Debian's libswiftObservation lacks a symbol
#endif
@MainActor
public final class Conversation {
    public enum State: Sendable, Equatable {
        case idle
        /// So many functions of how many are loaded.
        case loading(Int, of: Int)
        case answering
        /// Why the last question was not answered; the next one may be.
        case failed(String)
    }

    public private(set) var state = State.idle
    /// Questions and answers in turn; during an answer, the last one is what came of it so far.
    public private(set) var messages: [Message] = []
    /// How many of the messages the model no longer sees.
    public private(set) var forgotten = 0
    /// What the next question is answered with; of them, `system` is what the conversation begins with.
    public var options: Options
    public let session: Session

    private var task: Task<Answer, any Error>?
    private let turn = Turn()

    public init(_ session: Session, _ options: Options = Options()) {
        (self.session, self.options) = (session, options)
        self.options.reuseCache = true
    }

    /// Loads the programs and runs each function once, so that the first question waits for neither.
    public func load() async throws {
        _ = try await alone {
            try await self.session.prewarm { self.state = .loading($0, of: $1) }
            return Answer()
        }
    }

    /// Asks a question, after those that were asked before; `messages` has the answer as it comes, and
    /// `piece` is told the text as it becomes final.
    ///
    /// Throws `promptTooLong` where the question alone does not fit, and `CancellationError` where it,
    /// or the task that asks, is cancelled.
    @discardableResult
    public func ask(_ question: String, piece: @escaping @MainActor (String) -> Void = { _ in }) async throws -> Answer {
        try await alone { try await self.answer(question, piece) }
    }

    /// Ends the answer that is under way; what came of it stays.
    public func cancel() { task?.cancel() }

    /// Ends the answer that is under way, and begins anew.
    public func reset() async throws {
        cancel()
        try await turn.take()
        defer { turn.give() }
        (messages, forgotten, state) = ([], 0, .idle)
    }

    /// Runs one thing at a time, as a task that `cancel` ends.
    private func alone(_ body: @escaping @MainActor () async throws -> Answer) async throws -> Answer {
        try await turn.take()
        defer { turn.give() }
        let task = Task { try await body() }
        self.task = task
        do {
            let answer = try await withTaskCancellationHandler { try await task.value } onCancel: { task.cancel() }
            state = .idle
            return answer
        } catch {
            state = error is CancellationError ? .idle : .failed("\(error)")
            throw error
        }
    }

    private func answer(_ question: String, _ piece: (String) -> Void) async throws -> Answer {
        let former = (count: messages.count, forgotten: forgotten)
        messages.append(Message(role: "user", content: question))
        messages.append(Message(role: "assistant", content: ""))
        defer {
            if messages[former.count + 1].content.isEmpty {
                messages.removeLast(2)
                forgotten = former.forgotten
            }
        }
        try await session.load { self.state = .loading($0, of: $1) }
        state = .answering
        try forget()
        var whole: Answer?
        for try await event in session.stream(.messages(Array(messages[forgotten...].dropLast())), options) {
            switch event {
            case .text(let text):
                messages[former.count + 1].content += text
                piece(text)
            case .end(let answer): whole = answer
            }
        }
        guard let whole else { throw CancellationError() }  // of which a stream tells nothing
        return whole
    }

    /// Forgets the oldest turns where the context has no room for an answer: so many that half of it is
    /// free, since what is left has to be read again.
    private func forget() throws {
        func tokens() throws -> Int {
            try session.encode(.messages(Array(messages[forgotten...].dropLast())), system: options.system).count
        }
        guard try tokens() + min(options.maxTokens, session.context / 4) > session.context else { return }
        while forgotten < messages.count - 2, try tokens() > session.context / 2 { forgotten += 2 }
    }
}
