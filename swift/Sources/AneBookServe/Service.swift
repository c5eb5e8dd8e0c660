import AneBook
import Foundation
import Synchronization

/// The routes: what is asked at a path, and what comes back, as the Python server has it.
final class Service: Sendable {
    let jobs: Jobs
    let name: String
    private let engine: Engine, seal: String, facts: JSON
    private let seconds: Double
    private static let asked = 50, completion = 16  // tokens of an answer, where the request says nothing

    /// seconds: for a request, with its wait.
    init(_ session: Session, waiting: Int = 32, seconds: Double = 600) throws {
        (engine, jobs, self.seconds) = (Engine(session), Jobs(waiting: waiting), seconds)
        let manifest = session.bundle.url.appendingPathComponent("manifest.json")
        var fields = try Fields(JSON.parse(Data(contentsOf: manifest)))
        let date = try FileManager.default.attributesOfItem(atPath: manifest.path)[.modificationDate] as? Date
        (name, seal) = (session.bundle.manifest.name, try fields.text("seal") ?? "")
        facts = ["id": .text(name), "object": "model", "created": .int(Int(date?.timeIntervalSince1970 ?? 0)),
            "owned_by": "ane-book", "task": "text-generation", "context": .int(session.context), "loaded": .bool(true)]
    }

    func load() async throws { try await engine.session.load() }

    /// Refuses a request for its head. A web page in a browser can ask, too: so a body has to be
    /// JSON, for which a browser asks permission first, and the host this machine's own name, which
    /// a foreign name that resolves to this machine is not.
    func check(_ request: Request) throws {
        let host = request.headers["host"].map { $0.lowercased().replacing(/:\d*$/, with: "") }
        if let host, !["localhost", "127.0.0.1", "[::1]"].contains(host) {
            throw Refusal(403, "without an API key this server is for localhost alone")
        }
        let kind = request.headers["content-type"]?.prefix { $0 != ";" }.trimmingCharacters(in: .whitespaces)
        if request.method == "POST" && kind?.lowercased() != "application/json" {
            throw Refusal(415, "a body has to be sent as application/json")
        }
    }

    /// Answers a request. Throws Gone, or a refusal where no answer has begun.
    func answer(_ request: Request, on connection: Connection, last: Bool) throws {
        let looks = try look(request.path), posts = ["/v1/chat/completions", "/v1/completions"]
        guard let allowed = looks != nil ? "GET" : posts.contains(request.path) ? "POST" : nil else {
            throw Refusal(404, "\(request.method) \(request.path.prefix(100)): Not Found")
        }
        guard request.method == allowed else {
            throw Refusal(405, "\(request.method) \(request.path.prefix(100)): Method Not Allowed",
                headers: ["allow": allowed])
        }
        if let looks { return try connection.answer(200, looks.written, to: request, last: last) }
        let (ask, form) = try read(JSON.parse(request.body), chat: request.path == posts[0])
        try generate(ask, form, request, connection, last)
    }

    /// Answers a line of JSON, or of token ids like `151644 8948 198|20`, with such a line.
    func answer(line: String) async -> String {
        let start = Date(), ids = line.drop { $0.isWhitespace }.first != "{"
        let steps = Mutex<[Step]>([])
        do {
            let ask = try read(line: ids ? Self.json(ids: line) : JSON.parse(line.utf8))
            await engine.answer(ask) { step in steps.withLock { $0.append(step) } }
        } catch { steps.withLock { $0.append(.failed(error as? Refusal ?? Refusal(500, "\(error)"))) } }
        for case .failed(let refusal) in steps.withLock({ $0 }) { return refusal.body.written }
        for case .end(_, let answer, _) in steps.withLock({ $0 }) {
            if ids { return answer.tokens.map(String.init).joined(separator: " ") }
            let own: JSON = ["text": .text(answer.text), "tokens": .list(answer.tokens.map { .int(Int($0)) }),
                "prompt_tokens": .int(answer.promptTokens), "gen_tokens": .int(answer.tokens.count)]
            return (own + speed(answer, since: start)).written
        }
        return ""
    }

    private func look(_ path: String) throws -> JSON? {
        switch path {
        case "/health":
            let (running, waiting) = jobs.counts
            return ["status": "ok", "running": .int(running), "waiting": .int(waiting), "models": [.text(name)],
                "loaded": [.text(name)]]
        case "/v1/models": return ["object": "list", "data": [facts]]
        case "/v1/models/\(name)": return facts
        case _ where path.hasPrefix("/v1/models/"):
            throw missing("the model '\(path.dropFirst(11).prefix(100))' does not exist")
        default: return nil
        }
    }

    private func missing(_ message: String) -> Refusal {
        Refusal(404, message, code: "model_not_found", param: "model")
    }

    private func read(_ body: JSON, chat: Bool) throws -> (Ask, Answers.Form) {
        var fields = try Fields(body), ask = Ask()
        try fields.dropUnserved()
        let model = try fields.text("model")
        let temperature = try fields.real("temperature", from: 0, to: 2)
        ask.options.topP = try fields.real("top_p", from: 0, to: 1).map { max($0, 1e-9) }  // 0: the likeliest alone
        ask.options.topK = try fields.whole("top_k", from: 1, to: nil)
        ask.n = try fields.whole("n", from: 1, to: 16) ?? 1
        ask.options.seed = try fields.whole("seed", from: .min, to: .max).map { UInt64(bitPattern: Int64($0)) & (1 << 63 - 1) }
        ask.options.stop = try fields.stop()
        ask.stream = try fields.truth("stream")
        if var options = try fields.value("stream_options").map({ try Fields($0) }) {
            ask.usage = try options.truth("include_usage")
        }
        var form = Answers.Form.chat, most: Int?
        if chat {
            ask.prompts = [.messages(try fields.messages())]
            most = try fields.whole("max_tokens", from: 1, to: nil)
            most = try fields.whole("max_completion_tokens", from: 1, to: nil) ?? most ?? .max
        } else {
            let isText = fields.value("prompt")?.asText != nil
            ask.prompts = try fields.prompts()
            most = try fields.whole("max_tokens", from: 1, to: nil)
            ask.options.system = try fields.text("system")
            form = isText && (model == nil || ask.options.system != nil) ? .source : .completion
        }
        try fields.refuseUnknown()
        if let model, model != name {
            throw missing("the model '\(model.prefix(100))' does not exist; here \(name) generates text")
        }
        ask.plain = form == .completion
        ask.options.maxTokens = most ?? (form == .source ? Self.asked : Self.completion)
        let greedy = form == .source || engine.session.bundle.manifest.givesTokens
        ask.options.temperature = temperature ?? (greedy ? 0 : 1)
        return (ask, form)
    }

    private func read(line: JSON) throws -> Ask {
        var fields = try Fields(line), ask = Ask()
        let tokens = fields.value("tokens"), prompt = try fields.text("prompt")
        ask.options.system = try fields.text("system")
        ask.options.maxTokens = try fields.whole("max_tokens", from: 1, to: nil) ?? Self.asked
        ask.options.temperature = try fields.real("temperature", from: 0, to: .infinity) ?? 0
        ask.options.topP = try fields.real("top_p", from: 0, to: 1)
        ask.options.topK = try fields.whole("top_k", from: 1, to: nil)
        ask.options.seed = try fields.whole("seed", from: 0, to: .max).map(UInt64.init)
        ask.options.stop = try fields.stop(listOnly: true)
        try fields.refuseUnknown()
        guard (tokens == nil) != (prompt == nil) else {
            throw Refusal(400, "give either tokens or a prompt", code: "invalid_value")
        }
        if let tokens, tokens.ids == nil {
            throw Refusal(400, "tokens has to be a valid list of token ids", code: "invalid_value", param: "tokens")
        }
        ask.prompts = [prompt.map { .text($0) } ?? .tokens(tokens?.ids ?? [])]
        return ask
    }

    private static func json(ids line: String) throws -> JSON {
        let parts = line.split(separator: "|", maxSplits: 1, omittingEmptySubsequences: false)
        let ids = parts[0].split(whereSeparator: \.isWhitespace).map { Int($0) }
        let most = parts.dropFirst().map { Int($0.trimmingCharacters(in: .whitespaces)) }
        guard !ids.contains(nil), !most.contains(nil) else {
            throw Refusal(400, "a line is JSON, or token ids like 151644 8948 198|20", code: "invalid_json")
        }
        return ["tokens": .list(ids.compactMap { $0.map(JSON.int) })]
            + .object(most.compactMap { $0.map { JSON.Field(name: "max_tokens", value: .int($0)) } })
    }

    private func generate(_ ask: Ask, _ form: Answers.Form, _ request: Request, _ connection: Connection, _ last: Bool)
        throws {
        let engine = engine, job = Job { job in await engine.answer(ask) { job.put($0) } }
        try jobs.submit(job)
        defer { jobs.leave(job) }
        let deadline = Date() + seconds
        var answers = Answers(model: name, seal: seal, form: form, counts: ask.usage)
        var opened: Set<Int> = [], streams = false
        func event(_ json: JSON) throws {
            if !streams {
                try connection.begin(["content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store",
                    "x-accel-buffering": "no"], to: request)
            }
            streams = true
            try connection.send("data: \(json.written)\n\n")
        }
        func open(_ index: Int) throws {
            if opened.insert(index).inserted, let opening = answers.opening(index) { try event(opening) }
        }
        while true {
            var step = job.next(within: 0.05)
            if connection.hasLeft() { throw Gone() }
            if deadline < Date() {
                step = .failed(Refusal(504, "no answer within \(Int(seconds)) s, the server's limit", code: "timeout"))
            }
            switch step {
            case nil: continue
            case .started(let tokens): answers.promptTokens = tokens
            case .text(let index, let text):
                guard ask.stream else { continue }
                try open(index)
                try event(answers.piece(index, text))
            case .end(let index, let answer, let cached):
                answers.add(answer, cached: cached)
                guard ask.stream else { continue }
                try open(index)
                try event(answers.end(index, answer))
            case .failed(let refusal):
                guard streams else { throw refusal }
                try event(refusal.body)
                return try connection.send("")
            case .done:
                guard ask.stream else { return try connection.answer(200, answers.whole.written, to: request, last: last) }
                if ask.usage { try event(answers.last) }
                try connection.send("data: [DONE]\n\n")
                return try connection.send("")
            }
        }
    }
}

func log(_ line: String) { FileHandle.standardError.write(Data("\(line)\n".utf8)) }
