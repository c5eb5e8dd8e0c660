import AneBook
import Foundation
import Synchronization

/// Which functions a session loads, `prewarm` runs and answers call, and how many states the answers
/// made.
///
/// Its programs answer at once, with zeros; the prompts have all lengths, and each is gone on with.
func functions(_ folder: String) async throws {
    let bundle = try ModelBundle(URL(fileURLWithPath: folder)), log = Log()
    let session = try Session(bundle, predictor: InstantPredictor { log.add($0) })
    try await session.load()
    let loaded = log.take()
    try await session.prewarm()
    let warmed = log.take().filter { $0 != "state" }, verifies = bundle.manifest.functions["verify"] != nil
    for length in 1..<session.context {
        for lookup in Set([false, verifies]) {
            var options = Options(), prompt = (0..<length).map { Int32($0 % 3) }
            (options.maxTokens, options.lookup) = (session.context, lookup)
            prompt += try await session.respond(to: .tokens(prompt), options).tokens.dropLast()
            options.reuseCache = true
            _ = try await session.respond(to: .tokens(prompt.prefix(session.context - 1) + []), options)
        }
    }
    let all = log.take(), called = all.filter { $0 != "state" }
    try reply(Functions(
        loaded: loaded.sorted(), warmed: Set(warmed).sorted(), called: Set(called).sorted(),
        states: all.count - called.count))
}

private struct Functions: Encodable {
    let loaded: [String], warmed: [String], called: [String], states: Int
}

private final class Log: Sendable {
    private let words = Mutex<[String]>([])
    func add(_ word: String) { words.withLock { $0.append(word) } }
    func take() -> [String] { words.withLock { own in defer { own = [] }; return own } }
}
