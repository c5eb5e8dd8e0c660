// The framework has been there since macOS 26, but takes models of others since 27 only, whose SDK
// comes with Swift 6.4. `STUBS` is set by Stubs/check.
#if canImport(FoundationModels) && canImport(CoreML) && (compiler(>=6.4) || STUBS)
import FoundationModels

/// A bundle as a model of Apple's framework Foundation Models.
///
///     let session = LanguageModelSession(model: try await AneBookModel(ModelBundle(url)))
///     let answer = try await session.respond(to: "What is the capital of France?")
///
/// It answers in text: the framework refuses tools, images and schemas before it asks. All sessions
/// of one model share its programs and one cache: each answer keeps the tokens that its conversation
/// begins with, and a second session's answer waits for that of the first.
///
/// Unmeasured: written against what Apple documents (developer.apple.com/documentation/
/// foundationmodels/languagemodel, WWDC26 session 339), and has not run on a Mac by this project.
@available(macOS 27, iOS 27, visionOS 27, watchOS 27, *)
public struct AneBookModel: LanguageModel {
    fileprivate let session: Session

    /// Loads the programs of a bundle, which on a device's first time may take minutes.
    ///
    /// Throws `AneBookError` where the bundle is damaged, for another task or without chat template.
    public init(_ bundle: ModelBundle, predictor: any Predictor = CoreMLPredictor()) async throws {
        session = try Session(bundle, predictor: predictor)
        _ = try session.encode(.messages([Message(role: "user", content: "a")]))
        try await session.prewarm()
    }

    public var capabilities: LanguageModelCapabilities { LanguageModelCapabilities([]) }

    public var executorConfiguration: Executor.Configuration { Executor.Configuration() }

    /// Turns requests of the framework into prompts of the model's session; holds nothing itself.
    public struct Executor: LanguageModelExecutor {
        public typealias Model = AneBookModel

        public struct Configuration: Hashable, Sendable {}

        public init(configuration: Configuration) throws {}

        /// Loads the programs again where the session was unloaded, and reads what was said so far.
        public func prewarm(model: AneBookModel, transcript: Transcript) {
            var options = Options()
            (options.reuseCache, options.maxTokens) = (true, 1)
            let messages = (try? transcript.map(message)) ?? []
            // A failure is told by the request that follows.
            Task { [options] in
                try await model.session.load()
                if !messages.isEmpty { _ = try await model.session.respond(to: .messages(messages), options) }
            }
        }

        public func respond(
            to request: LanguageModelExecutorGenerationRequest, model: AneBookModel,
            streamingInto channel: LanguageModelExecutorGenerationChannel
        ) async throws {
            let session = model.session, prompt = Session.Prompt.messages(try request.transcript.map(message))
            var options = Options(request.generationOptions)
            options.maxTokens = min(options.maxTokens, session.context)
            do {
                for try await event in session.stream(prompt, options) {
                    switch event {
                    case .text(let text):
                        // Mostly one token; the exact number of all of them comes last.
                        await channel.send(.response(action: .appendText(text, tokenCount: 1)))
                    case .end(let answer):
                        let known = answer.promptTokens - answer.prefilled
                        await channel.send(.response(action: .updateUsage(
                            input: .init(totalTokenCount: answer.promptTokens, cachedTokenCount: known),
                            output: .init(totalTokenCount: answer.tokens.count, reasoningTokenCount: 0))))
                        return
                    }
                }
                throw CancellationError()  // for whom a stream only ends
            } catch AneBookError.promptTooLong(let text) {
                // As the framework's own, by which apps know to shorten a conversation.
                throw LanguageModelError.contextSizeExceeded(.init(
                    contextSize: session.context, tokenCount: try session.encode(prompt).count,
                    debugDescription: text))
            }
        }

        /// An entry of a conversation as a message.
        private func message(_ entry: Transcript.Entry) throws -> Message {
            switch entry {
            case .instructions(let own): Message(role: "system", content: try text(own.segments, entry))
            case .prompt(let own): Message(role: "user", content: try text(own.segments, entry))
            case .response(let own): Message(role: "assistant", content: try text(own.segments, entry))
            default: throw unsupported(entry)
            }
        }

        private func text(_ segments: [Transcript.Segment], _ entry: Transcript.Entry) throws -> String {
            try segments.map { segment in
                guard case .text(let text) = segment else { throw unsupported(entry) }
                return text.content
            }.joined()
        }

        private func unsupported(_ entry: Transcript.Entry) -> LanguageModelError {
            .unsupportedTranscriptContent(.init(
                unsupportedContent: [entry],
                debugDescription: "the model reads text, and no tools, images, reasoning or structures"))
        }
    }
}

@available(macOS 27, iOS 27, visionOS 27, watchOS 27, *)
extension Options {
    /// Where a request leaves all open, the likeliest token is taken, up to the context's end.
    fileprivate init(_ options: GenerationOptions) {
        self.init()
        (reuseCache, maxTokens) = (true, options.maximumResponseTokens ?? .max)
        let mode = options.samplingMode?.kind
        temperature = options.temperature ?? (mode == nil ? 0 : 1)
        switch mode {
        case .greedy: temperature = 0
        case .randomTopK(let k, let seed): (topK, self.seed) = (k, seed)
        case .randomProbabilityThreshold(let p, let seed): (topP, self.seed) = (p, seed)
        default: break
        }
    }
}
#endif
