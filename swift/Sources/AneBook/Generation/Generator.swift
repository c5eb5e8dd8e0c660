/// An answer in progress: one step is one call of the programs.
///
/// It holds the session's cache, and only one exists at a time.
final class Generator {
    private let runner: ModelRunner, cache: TokenCache, options: Options, ends: Set<Int32>
    private let ids: [Int32], most: Int
    private var sampler: Sampler, text: TextStream, lookup: Lookup?
    private var answer = Answer()
    private var ended = false
    private let clock = ContinuousClock()

    /// Throws `invalidInput` or `promptTooLong` before any program runs.
    init(_ runner: ModelRunner, _ cache: TokenCache, _ bundle: ModelBundle, _ tokenizer: Tokenizer,
        _ ids: [Int32], _ options: Options) throws {
        try options.check()
        let context = runner.calls.context
        guard let least = ids.min(), let largest = ids.max() else {
            throw AneBookError.invalidInput("the prompt is empty; give at least one character")
        }
        guard least >= 0, largest < runner.vocabulary else {
            throw AneBookError.invalidInput(
                "token id \(least < 0 ? least : largest) is outside the vocabulary of \(runner.vocabulary)")
        }
        guard ids.count < context else {
            throw AneBookError.promptTooLong(
                "the prompt has \(ids.count) tokens; with at least one for the answer it must fit the "
                    + "context of \(context) tokens; shorten it, or convert with a longer context")
        }
        guard !options.lookup || runner.calls.block > 1 else {
            throw AneBookError.invalidInput(
                "\(bundle.url.path): converted without verify, it checks no guesses; convert it with "
                    + "--verify 8, or leave lookup out")
        }
        guard !options.needsLogits || !bundle.manifest.givesTokens else {
            throw AneBookError.invalidInput(
                "\(bundle.url.path): converted with argmax_output, it gives the likeliest token only; "
                    + "use temperature 0, without bias and penalties")
        }
        if let token = options.logitBias.keys.first(where: { !(0..<Int32(runner.vocabulary) ~= $0) }) {
            throw AneBookError.invalidInput(
                "logitBias: token id \(token) is outside the vocabulary of \(runner.vocabulary)")
        }
        (self.runner, self.cache, self.options, self.ids) = (runner, cache, options, ids)
        ends = Set(bundle.manifest.tokenizer.endTokens)
        most = min(options.maxTokens, context - ids.count)
        sampler = Sampler(options)
        lookup = options.lookup ? Lookup() : nil
        text = TextStream(tokenizer, stops: options.stop.filter { !$0.isEmpty })
        answer.promptTokens = ids.count
    }

    /// Runs the next call; returns the text that became final, or nil after the end.
    ///
    /// Throws `CancellationError` between two programs where the task is cancelled. The cache then
    /// holds what it held before the call.
    func step() throws -> String? {
        if ended { return nil }
        let start = clock.now
        guard let token = answer.tokens.last else {
            options.reuseCache ? cache.keep(ids.dropLast()) : cache.clear(runner, dropStates: false)
            let fresh = Array(ids[cache.tokens.count...])
            let outputs = try cache.append(fresh, guesses: [], runner)
            let first = try draw(outputs[0])
            (answer.prefilled, answer.prefillSeconds) = (fresh.count, (clock.now - start).seconds)
            return add(first)
        }
        let guesses = guess()
        let outputs = try cache.append([token], guesses: guesses, runner)
        var piece = ""
        answer.calls += 1
        answer.drafted += guesses.count
        for (i, output) in outputs.enumerated() {
            let token = try draw(output)
            piece += add(token)
            guard i < guesses.count, guesses[i] == token else { break }
            answer.accepted += 1
            if ended { break }
            cache.tokens.append(token)  // whose keys and values the call has cached
        }
        answer.decodeSeconds += (clock.now - start).seconds
        return piece
    }

    /// The whole answer, once `step` has returned nil.
    var result: Answer { answer }

    private func draw(_ output: Output) throws -> Int32 {
        let token = try sampler.token(output)
        guard 0..<Int32(runner.vocabulary) ~= token else {
            throw AneBookError.notFinite("the model gives token \(token), of a vocabulary of \(runner.vocabulary)")
        }
        return token
    }

    private func guess() -> [Int32] {
        guard var lookup else { return [] }
        defer { self.lookup = lookup }
        let left = most - answer.tokens.count, position = cache.tokens.count
        let room = runner.calls.step(position, tokens: left).end - position - 1
        return Array(lookup.propose(ids + answer.tokens, most: room))
    }

    /// Takes the next token; returns the text that becomes final.
    private func add(_ token: Int32) -> String {
        answer.tokens.append(token)
        let last = ends.contains(token)
        var piece = last ? text.finish() : text.add(token)
        if last || text.stopped || repeats() {
            (ended, answer.reason) = (true, .stop)
        } else if answer.tokens.count == most {
            (ended, answer.reason) = (true, .length)
        }
        if ended && !last { piece += text.finish() }
        answer.text += piece
        return piece
    }

    private func repeats() -> Bool {
        guard let n = options.stopRepeat, answer.tokens.count / 2 >= n else { return false }
        let tokens = answer.tokens, tail = tokens.suffix(n)
        return (0..<(tokens.count - n)).contains { tokens[$0..<($0 + n)].elementsEqual(tail) }
    }
}

/// Which tokens the programs' caches hold.
package final class TokenCache {
    package fileprivate(set) var tokens: [Int32] = []

    /// Forgets all but the tokens that these begin with: later slots stay masked until overwritten.
    func keep(_ other: some Sequence<Int32>) {
        let shared = zip(tokens, other).prefix { $0 == $1 }.count
        tokens.removeLast(tokens.count - shared)
    }

    /// Holds these, of which the programs' caches were replaced.
    package func hold(_ other: [Int32]) { tokens = other }

    package func clear(_ runner: ModelRunner, dropStates: Bool = true) {
        tokens.removeAll(keepingCapacity: true)
        runner.clear(dropStates: dropStates)
    }

    /// Appends tokens, a chunk a call; a single one may be followed by guesses, which are not
    /// appended. Returns the outputs after the last token, and after each guess.
    package func append(_ ids: [Int32], guesses: [Int32], _ runner: ModelRunner) throws -> [Output] {
        if runner.calls.step(tokens.count, tokens: 1).first < runner.floor {  // all of them run again
            let held = tokens
            clear(runner)
            _ = try append(held, guesses: [], runner)
        }
        let calls = runner.calls.cut(position: tokens.count, tokens: ids.count, guesses: guesses.count)
        guard let first = calls.first?.first, let last = calls.last else { return [] }
        let base = tokens.count, all = tokens[first...] + ids + guesses  // `verify` repeats its block
        for call in calls {
            try runner.run(call, all[call.first..<call.end]) { try Task.checkCancellation() }
            tokens += ids[(tokens.count - base)..<min(call.end - base, ids.count)]
        }
        let column = tokens.count - 1 - last.first
        guard last.function == "verify" else {
            try runner.head(last, column: column)
            return [runner.output("decode", column: 0)]
        }
        try runner.head(last, column: nil)
        return (column..<(column + 1 + guesses.count)).map { runner.output("verify", column: $0) }
    }
}

extension Duration {
    var seconds: Double { Double(components.seconds) + Double(components.attoseconds) * 1e-18 }
}
