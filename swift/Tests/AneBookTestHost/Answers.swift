import AneBook
import AneBookCaches
import AneBookEncoders
import Foundation

/// Answers each line of JSON on standard input with one, from a bundle.
///
/// A request is `{"prompt": text}`,
/// `{"messages": [...]}` or `{"tokens": [...]}` with fields of `Options`, or `{"texts": [...]}` for
/// vectors, or for spans. An answer has what `Answer` has, or `error`. Of a request `{"open": FOLDER}` the answer
/// is whether that bundle, and its tokenizer, can be opened;
/// `{"verify": FOLDER}` verifies it in addition; of `{"save": FILE, "form": F}` and
/// `{"load": FILE}`, with `tokens` where it does not say them, and `{"rewind": N}`, how many tokens
/// the session then holds.
func answers(_ folder: String, _ predictor: any Predictor) async throws {
    let bundle = try ModelBundle(URL(fileURLWithPath: folder))
    if bundle.manifest.task == .embedding {
        let embedder = try Embedder(bundle, predictor: predictor)
        while let line = readLine() {
            let request = try decode(Request.self, from: Data(line.utf8))
            try reply(["vectors": await embedder.embed(request.texts ?? [])])
        }
        return
    }
    if bundle.manifest.task == .tokenClassification {
        let tagger = try Tagger(bundle, predictor: predictor)
        while let line = readLine() {
            do {
                for text in try decode(Request.self, from: Data(line.utf8)).texts ?? [] {
                    try reply(Labelled(text: await tagger.redact(text), spans: await tagger.tag(text).map(SpanRow.init)))
                }
            } catch let error as AneBookError {
                try reply(["error": error.message])
            }
        }
        return
    }
    let session = try Session(bundle, predictor: predictor)
    while let line = readLine() {
        do {
            let request = try decode(Request.self, from: Data(line.utf8))
            if let folder = request.open ?? request.verify {
                let other = try ModelBundle(URL(fileURLWithPath: folder))
                _ = try other.tokenizer()
                if request.verify != nil { try await other.verify() }
                try reply(["name": folder])
                continue
            }
            if let position = request.rewind {
                try await session.rewind(to: position)
                try reply(["position": position])
                continue
            }
            if let file = request.save ?? request.load {
                let url = URL(fileURLWithPath: file), form = request.form.flatMap(CacheForm.init) ?? .mlxSwift
                if request.save == nil { try await session.loadCache(from: url, tokens: request.tokens) } else {
                    try await session.saveCache(to: url, form: form)
                }
                try reply(["position": await session.position])
                continue
            }
            try reply(Reply(await session.respond(to: request.given, request.options)))
        } catch let error as AneBookError {
            try reply(["error": error.message])
        }
    }
}

func reply(_ value: some Encodable) throws {
    FileHandle.standardOutput.write(try JSONEncoder().encode(value) + [0x0A])
}

struct Request: Decodable {
    var open: String?, verify: String?, save: String?, load: String?, form: String?, rewind: Int?
    var prompt: String?, messages: [Message]?, tokens: [Int32]?, texts: [String]?
    var max_tokens: Int?, temperature: Double?, top_k: Int?, top_p: Double?, seed: UInt64?
    var min_p: Double?, logit_bias: [Int: Double]?, presence_penalty: Double?, frequency_penalty: Double?
    var logits: String?, vocabulary: Int?  // of `draws`
    var system: String?, stop: [String]?, stop_repeat: Int?, reuse_cache: Bool?, lookup: Bool?

    var given: Session.Prompt {
        messages.map(Session.Prompt.messages) ?? tokens.map(Session.Prompt.tokens) ?? .text(prompt ?? "")
    }

    var options: Options {
        var options = Options()
        options.maxTokens = max_tokens ?? options.maxTokens
        options.temperature = temperature ?? 0
        (options.topK, options.topP, options.seed, options.system) = (top_k, top_p, seed, system)
        options.minP = min_p
        for (token, bias) in logit_bias ?? [:] { options.logitBias[Int32(clamping: token)] = bias }
        options.presencePenalty = presence_penalty ?? 0
        options.frequencyPenalty = frequency_penalty ?? 0
        (options.stop, options.stopRepeat) = (stop ?? [], stop_repeat)
        (options.reuseCache, options.lookup) = (reuse_cache ?? false, lookup ?? false)
        return options
    }
}

private struct Reply: Encodable {
    let text: String, token_ids: [Int32], prompt_tokens: Int, finish_reason: String
    let calls: Int, drafted: Int, accepted: Int, prefilled: Int

    init(_ answer: Answer) {
        (text, token_ids, prompt_tokens) = (answer.text, answer.tokens, answer.promptTokens)
        (finish_reason, calls) = (answer.reason.rawValue, answer.calls)
        (drafted, accepted, prefilled) = (answer.drafted, answer.accepted, answer.prefilled)
    }
}

private struct Labelled: Encodable {
    let text: String, spans: [SpanRow]
}

/// A span as `ane-book redact --json` writes it.
struct SpanRow: Encodable {
    let label: String, start: Int, end: Int, byte_start: Int, byte_end: Int, score: Float, text: String

    init(_ span: Tagger.Span) {
        (label, text, score) = (span.label, span.text, span.score)
        (start, end) = (span.scalars.lowerBound, span.scalars.upperBound)
        (byte_start, byte_end) = (span.bytes.lowerBound, span.bytes.upperBound)
    }
}
