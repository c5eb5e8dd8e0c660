import AneBook
import Foundation

/// Which of mlx's programs go on from a file: mlx-lm in Python, or mlx-swift-lm.
public enum CacheForm: String, Sendable {
    case mlx
    case mlxSwift = "mlx-swift"
}

extension Session {
    /// Writes what the session holds for `loadCache`, or for what goes on from it in MLX: a file whole
    /// or not at all, for its owner alone.
    ///
    /// Throws `invalidInput` where nothing is held, the file cannot be written, or mlx has no cache of
    /// such a model.
    public func saveCache(to url: URL, form: CacheForm = .mlxSwift) async throws {
        try await turn.take()
        defer { turn.give() }
        try PromptCache.check(bundle.manifest)
        guard !cache.tokens.isEmpty else {
            throw AneBookError.invalidInput("the session holds no tokens yet, so there is no cache to take")
        }
        let runner = try await loaded(), n = cache.tokens.count
        _ = try cache.append([], guesses: [], runner)  // what windows lack after `rewind`
        let own = PromptCache(tokens: cache.tokens, position: n, layers: try runner.kept(n), madeOf: bundle.manifest.madeOf)
        try own.write(url, form, bundle.manifest)
    }

    /// Goes on from what a file holds, of Python's `save_cache` or this one's, or of MLX: the session
    /// holds it instead of what it held.
    ///
    /// tokens: what it is the cache of, for a file that does not say. Throws `invalidInput` where it
    /// is damaged or of another model, before anything changes.
    public func loadCache(from url: URL, tokens: [Int32]? = nil) async throws {
        try await turn.take()
        defer { turn.give() }
        let own = try PromptCache(url, bundle.manifest, tokens: tokens), runner = try await loaded()
        cache.clear(runner)
        try runner.keep(own.layers, own.position)
        cache.hold(own.tokens)
    }
}
