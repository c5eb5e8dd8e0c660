import AneBook
import AneBookCaches
import AneBookExecutor
import AneBookServe
import Foundation

/// The words of a command line, taken one after the other.
struct Arguments {
    private var words: ArraySlice<String>

    init(_ words: some Sequence<String>) { self.words = ArraySlice(Array(words)) }

    mutating func next() -> String? { words.popFirst() }

    mutating func next(_ what: String) throws -> String {
        guard let word = words.popFirst() else { throw AneBookError.invalidInput("\(what) is missing") }
        return word
    }

    /// The number after an option. kind: what it takes, in words.
    mutating func number<Number: LosslessStringConvertible>(_ option: String, _ kind: String = "a number")
        throws -> Number {
        let word = try next("the value of \(option)")
        guard let number = Number(word) else {
            throw AneBookError.invalidInput("\(option) takes \(kind), not \(word)")
        }
        return number
    }
}

/// What the options of `run`, `chat` and `serve` say.
struct Settings {
    var options = Options()
    var executor: [String]?
    var units = "ane"
    var ids = false
    var port: UInt16?
    var socket: String?
    var stdin = false
    var cache: URL?
    var words: [String] = []

    init(_ arguments: inout Arguments) throws {
        while let word = arguments.next() {
            switch word {
            case "--max-tokens": options.maxTokens = try arguments.number(word)
            case "--temperature": options.temperature = try arguments.number(word)
            case "--top-k": options.topK = try arguments.number(word)
            case "--top-p": options.topP = try arguments.number(word)
            case "--seed": options.seed = try arguments.number(word)
            case "--system": options.system = try arguments.next("the value of --system")
            case "--stop": options.stop.append(try arguments.next("the value of --stop"))
            case "--stop-repeat": options.stopRepeat = try arguments.number(word)
            case "--lookup": options.lookup = true
            case "--ids": ids = true
            case "--executor":
                executor = try arguments.next("the value of --executor").split(separator: " ").map(String.init)
            case "--units": units = try arguments.next("the value of --units")
            case "--port": port = try arguments.number(word, "a number from 0 to 65535")
            case "--stdin": stdin = true
            case "--prompt-cache": cache = URL(fileURLWithPath: try arguments.next("the value of --prompt-cache"))
            case "--socket": socket = try arguments.next("the value of --socket")
            case _ where word.hasPrefix("--"):
                throw AneBookError.invalidInput("no option \(word)\n\(usage)")
            default: words.append(word)
            }
        }
    }

    /// The bundle that the first word names.
    func bundle() throws -> ModelBundle {
        guard let folder = words.first else { throw AneBookError.invalidInput("BUNDLE is missing\n\(usage)") }
        return try ModelBundle(URL(fileURLWithPath: folder))
    }

    func session() throws -> Session { try Session(bundle(), predictor: predictor()) }

    /// Calls `body` with a session that goes on from the file of --prompt-cache, and writes it again
    /// at the end.
    mutating func withSession(_ body: (Session, Options) async throws -> Void) async throws {
        let session = try session()
        guard let cache else { return try await body(session, options) }
        options.reuseCache = true
        if FileManager.default.fileExists(atPath: cache.path) { try await session.loadCache(from: cache) }
        try await body(session, options)
        try await session.saveCache(to: cache)
    }

    func predictor() throws -> any Predictor {
        if let executor { return ExecutorPredictor(command: executor) }
        #if canImport(CoreML)
        guard let units = CoreMLPredictor.Units(rawValue: units) else {
            throw AneBookError.invalidInput("--units takes ane, gpu or cpu, not \(units)")
        }
        return CoreMLPredictor(units)
        #else
        throw AneBookError.backendUnavailable(
            "Core ML is not on this machine; --executor \"python3 -m mlprogram.pipe\" runs the same programs")
        #endif
    }
}

/// `anebook run BUNDLE PROMPT`: prints the answer as it comes, and its figures on standard error.
func run(_ arguments: inout Arguments) async throws {
    var settings = try Settings(&arguments)
    guard settings.words.count == 2 else { throw AneBookError.invalidInput("give BUNDLE and PROMPT\n\(usage)") }
    let (prompt, isIds) = (settings.words[1], settings.ids)
    try await settings.withSession { session, options in
        guard isIds else {
            try await write(session.stream(.text(prompt), options))
            return
        }
        let ids = try prompt.split(separator: ",").map { word in
            guard let id = Int32(word) else { throw AneBookError.invalidInput("\(word) is no token id") }
            return id
        }
        let answer = try await session.respond(to: .tokens(ids), options)
        print(answer.tokens.map(String.init).joined(separator: ","))
        report(answer)
    }
}

/// `anebook chat BUNDLE`: a conversation on standard input, whose beginning stays in the cache.
///
/// A question that cannot be answered is as if it had not been asked; the line `/reset` begins anew.
func chat(_ arguments: inout Arguments) async throws {
    var settings = try Settings(&arguments)
    try await settings.withSession { session, options in
        let conversation = await Conversation(session, options)
        while let line = readLine() {
            if line == "/reset" {
                try await conversation.reset()
                continue
            }
            do {
                let answer = try await conversation.ask(line) { FileHandle.standardOutput.write(Data($0.utf8)) }
                FileHandle.standardOutput.write(Data("\n".utf8))
                report(answer)
            } catch AneBookError.promptTooLong(let why) {
                tell("Error: \(why); or begin anew with /reset")
            } catch AneBookError.invalidInput(let why) {
                tell("Error: \(why)")
            }
        }
    }
}

/// `anebook serve BUNDLE`: answers over HTTP until a signal, or lines of standard input.
func serve(_ arguments: inout Arguments) async throws {
    let settings = try Settings(&arguments)
    let server = try Server(settings.session())
    if settings.stdin { return await server.answerLines() }
    let port = settings.port ?? (settings.socket == nil ? 8000 : nil)
    if try await !server.run(port: port, socket: settings.socket) { exit(130) }
}

/// `anebook tokens BUNDLE TEXT`: prints the token ids of a text, as it is.
func tokens(_ arguments: inout Arguments) throws {
    let settings = try Settings(&arguments)
    guard settings.words.count == 2 else { throw AneBookError.invalidInput("give BUNDLE and TEXT\n\(usage)") }
    let ids = try settings.bundle().tokenizer().encode(settings.words[1], addSpecialTokens: false)
    print(ids.map(String.init).joined(separator: ","))
}

/// Prints a stream as it comes; returns the whole answer.
@discardableResult
private func write(_ stream: AsyncThrowingStream<Event, any Error>) async throws -> Answer? {
    var whole: Answer?
    for try await event in stream {
        switch event {
        case .text(let text): FileHandle.standardOutput.write(Data(text.utf8))
        case .end(let answer): whole = answer
        }
    }
    FileHandle.standardOutput.write(Data("\n".utf8))  // not by `print`, which keeps it for the end
    if let whole { report(whole) }
    return whole
}

private func report(_ answer: Answer) {
    let decoded = Double(answer.tokens.count - 1) / max(answer.decodeSeconds, 1e-9)
    let prefilled = Double(answer.prefilled) / max(answer.prefillSeconds, 1e-9)
    let figures = "\(answer.tokens.count) tokens (\(answer.reason.rawValue)), "
        + "prefill \(Int(prefilled)) tokens/s, decode \(Int(decoded)) tokens/s"
    tell(figures)
}

/// Writes a line to standard error.
func tell(_ text: String) { FileHandle.standardError.write(Data("\(text)\n".utf8)) }
