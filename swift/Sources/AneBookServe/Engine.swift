import AneBook

/// What a request asks for: prompts, of which each gets n answers.
struct Ask: Sendable {
    var prompts: [Session.Prompt] = [], n = 1
    /// No chat template.
    var plain = false
    /// With the seed of the first answer; the i-th has seed + i.
    var options = Options()
    var stream = false, usage = false
}

/// Answers one request after the other with a session, and keeps its cache between them.
///
/// The next prompt may begin like the last one. Those tokens stay in the cache as far as whole
/// prefill calls go, so the calls that are left are the same as without a cache, and the answer is
/// the same to the last bit, whoever was served before. Decoded tokens are run again.
actor Engine {
    let session: Session
    private var asked: [Int32] = []  // the last prompt

    init(_ session: Session) { self.session = session }

    /// Answers a request step by step; the last step is `done` or `failed`.
    func answer(_ ask: Ask, _ put: @Sendable (Step) -> Void) async {
        do {
            try await run(ask, put)
            put(.done)
        } catch { put(.failed(refusal(error))) }
    }

    private func run(_ ask: Ask, _ put: @Sendable (Step) -> Void) async throws {
        var prompts: [[Int32]] = [], options = ask.options
        options.system = nil
        options.reuseCache = true
        options.lookup = session.bundle.manifest.functions["verify"] != nil
        for prompt in ask.prompts {
            let ids = try session.encode(prompt, system: ask.options.system, plain: ask.plain)
            try await session.check(ids, options)
            prompts.append(ids)
        }
        put(.started(promptTokens: prompts.reduce(0) { $0 + $1.count }))
        for (i, ids) in prompts.enumerated() {
            for j in 0..<ask.n {
                let index = i * ask.n + j, cached = try await keep(ids)
                options.seed = ask.options.seed.map { $0 + UInt64(j) }
                let answer = try await session.respond(to: .tokens(ids), options) { put(.text(index: index, $0)) }
                put(.end(index: index, answer, cached: cached))
            }
        }
    }

    /// Forgets what an answer to these tokens cannot use; returns how many are kept.
    private func keep(_ ids: [Int32]) async throws -> Int {
        let width = session.bundle.manifest.readingWidth
        let shared = zip(asked.prefix(await session.position), ids.dropLast()).prefix { $0 == $1 }.count
        let kept = shared / width * width
        try await session.rewind(to: kept)
        asked = ids
        return kept
    }

    /// An error as the client is told it; what is not the client's fault is only logged.
    private func refusal(_ error: any Error) -> Refusal {
        switch error {
        case let refusal as Refusal: return refusal
        case AneBookError.promptTooLong(let message):
            return Refusal(400, message, code: "context_length_exceeded")
        case AneBookError.invalidInput(let message): return Refusal(400, message, code: "invalid_value")
        default:
            let name = session.bundle.manifest.name, ours = error is AneBookError
            if !(error is CancellationError) { log("\(name): \(error)") }
            return Refusal(ours ? 503 : 500, "\(name) cannot answer now; the server's log says why",
                code: ours ? "model_failed" : "internal_error")
        }
    }
}
