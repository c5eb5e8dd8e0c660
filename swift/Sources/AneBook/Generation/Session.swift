import Dispatch
import Foundation

/// Answers prompts with a bundle, and keeps the cache of one conversation.
///
///     let session = try Session(ModelBundle(url), predictor: CoreMLPredictor())
///     for try await event in session.stream("What is the capital of France?") { ... }
///
/// It works on a thread of its own, so a call of the programs blocks no other task. One thing is done
/// at a time: whoever asks for the next one waits, in the order of their coming, until it is done or
/// their task is cancelled. A task that is cancelled, and a stream that nobody reads any more, end
/// between two programs.
public actor Session {
    /// Is told how many functions of how many are loaded.
    public typealias Progress = @MainActor @Sendable (Int, Int) -> Void

    public nonisolated let bundle: ModelBundle
    private nonisolated let thread = SerialThread()
    public nonisolated var unownedExecutor: UnownedSerialExecutor { thread.asUnownedSerialExecutor() }

    private let predictor: any Predictor
    private nonisolated let tokenizer: Tokenizer
    private var runner: ModelRunner?
    package let cache = TokenCache(), turn = Turn()

    /// Throws `invalidBundle`, or `invalidInput` for a bundle of another task. Loads no program yet.
    public init(_ bundle: ModelBundle, predictor: any Predictor) throws {
        guard bundle.manifest.task == .textGeneration else {
            throw AneBookError.invalidInput(
                "\(bundle.url.path) is for \(bundle.manifest.task.rawValue): it generates no text")
        }
        (self.bundle, self.predictor, tokenizer) = (bundle, predictor, try bundle.tokenizer())
    }

    /// S: how many tokens prompt and answer may have together.
    public nonisolated var context: Int { bundle.manifest.context }

    /// How many tokens the cache holds.
    public var position: Int { cache.tokens.count }

    /// Loads the functions that this bundle can call, which on a device's first time may take minutes.
    ///
    /// A task that is cancelled ends between two of them, and then none is loaded.
    public func load(progress: Progress? = nil) async throws {
        try await turn.take()
        defer { turn.give() }
        _ = try await loaded(progress)
    }

    /// Frees the programs and their caches; the next answer loads them again.
    public func unload() async throws {
        try await turn.take()
        defer { turn.give() }
        runner = nil
        cache.keep([])
    }

    /// Loads the programs, and runs every function once on tokens that are then forgotten.
    ///
    /// A conversation that the session holds is not: then nothing is run.
    public func prewarm(progress: Progress? = nil) async throws {
        try await turn.take()
        defer { turn.give() }
        let runner = try await loaded(progress)
        guard cache.tokens.isEmpty else { return }
        defer { cache.clear(runner) }
        try runner.warm { try Task.checkCancellation() }
    }

    /// Forgets everything.
    public func reset() async throws {
        try await turn.take()
        defer { turn.give() }
        if let runner { cache.clear(runner) }
    }

    /// The token ids of a prompt: through the chat template where there is one.
    ///
    /// plain: leave the template out, to continue a text.
    public nonisolated func encode(_ prompt: Prompt, system: String? = nil, plain: Bool = false) throws -> [Int32] {
        let template = bundle.manifest.tokenizer.segments
        switch prompt {
        case .text(let text) where plain:
            guard system == nil else {
                throw AneBookError.invalidInput("a text goes as it is; a system prompt has no place in it")
            }
            return try tokenizer.encode(text, addSpecialTokens: true)
        case .tokens(let ids):
            guard system == nil else {
                throw AneBookError.invalidInput("token ids go as they are; a system prompt has no place in them")
            }
            return ids
        case .text(let text) where template == nil:
            guard system == nil, bundle.manifest.tokenizer.refused?["segments"] == nil else {
                throw noTemplate()
            }
            return try tokenizer.encode(text, addSpecialTokens: true)
        case .text(let text):
            return try encode(.messages([Message(role: "user", content: text)]), system: system)
        case .messages(let messages):
            guard let template else { throw noTemplate() }
            let first = system.map { [Message(role: "system", content: $0)] } ?? []
            return try tokenizer.encode(try template.render(first + messages), addSpecialTokens: false)
        }
    }

    /// The text of tokens; special tokens have none.
    public nonisolated func decode(_ tokens: [Int32]) -> String { tokenizer.decode(tokens) }

    /// Forgets all but the first tokens of the cache: later slots stay masked until overwritten.
    public func rewind(to position: Int) async throws {
        try await turn.take()
        defer { turn.give() }
        guard 0...cache.tokens.count ~= position else {
            throw AneBookError.invalidInput("cannot rewind to \(position): \(cache.tokens.count) tokens are held")
        }
        cache.keep(cache.tokens.prefix(position))
    }

    /// Throws what an answer to these tokens would throw before any program runs.
    public func check(_ tokens: [Int32], _ options: Options = Options()) async throws {
        try await turn.take()
        defer { turn.give() }
        _ = try Generator(await loaded(), cache, bundle, tokenizer, tokens, options)
    }

    /// Answers a prompt; `piece` is told the text as it becomes final.
    public func respond(to prompt: Prompt, _ options: Options = Options(),
        piece: @Sendable (String) -> Void = { _ in }) async throws -> Answer {
        try await turn.take()
        defer { turn.give() }
        let ids = try encode(prompt, system: options.system)
        let generator = try Generator(await loaded(), cache, bundle, tokenizer, ids, options)
        do {
            while let text = try generator.step() {
                if !text.isEmpty { piece(text) }
                await Task.yield()  // so that questions to this session are answered meanwhile
                try Task.checkCancellation()
            }
        } catch let error as AneBookError {
            // What is no number stays one behind every mask; and after a program failed, nobody knows
            // what its cache holds.
            if let runner { cache.clear(runner) }
            throw error
        }
        return generator.result
    }

    /// Answers a prompt piece by piece. Errors come out of the stream.
    public nonisolated func stream(_ prompt: Prompt, _ options: Options = Options())
        -> AsyncThrowingStream<Event, any Error> {
        AsyncThrowingStream { continuation in
            let task = Task {
                do {
                    let answer = try await respond(to: prompt, options) { continuation.yield(.text($0)) }
                    continuation.yield(.end(answer))
                    continuation.finish()
                } catch {
                    continuation.finish(throwing: error)
                }
            }
            continuation.onTermination = { _ in task.cancel() }
        }
    }

    package func loaded(_ progress: Progress? = nil) async throws -> ModelRunner {
        if let runner { return runner }
        let runner = try ModelRunner(bundle, predictor.open())
        for (i, load) in runner.loads.enumerated() {
            if i == 0 { await progress?(0, runner.loads.count) }
            try Task.checkCancellation()
            try load()
            await progress?(i + 1, runner.loads.count)
        }
        self.runner = runner
        return runner
    }

    private nonisolated func noTemplate() -> AneBookError {
        let why = bundle.manifest.tokenizer.refused?["segments"].map { ": \($0)" } ?? ""
        return .invalidInput("\(bundle.manifest.name) has no chat template here\(why); give token ids, or "
            + "one plain text without a system prompt where the model has none at all")
    }
}

/// Runs the jobs of one actor on a queue of its own, since they block.
package final class SerialThread: SerialExecutor {
    private let queue = DispatchQueue(label: "AneBook")

    package init() {}

    package func enqueue(_ job: consuming ExecutorJob) {
        let job = UnownedJob(job)
        queue.async { job.runSynchronously(on: self.asUnownedSerialExecutor()) }
    }
}
