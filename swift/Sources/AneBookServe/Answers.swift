import AneBook
import Foundation

/// An answer in progress, in OpenAI's shape, whole or in chunks, with figures of its speed.
///
/// The names and their order are those of `ane_serve.api.answers`.
struct Answers {
    enum Form { case chat, completion, source }
    let model: String, seal: String, form: Form
    let counts: Bool  // whether a stream ends with usage: OpenAI has a null for it in each chunk before
    var promptTokens = 0
    private var ends: [(answer: Answer, cached: Int)] = []
    private let id: String, start = Date()

    init(model: String, seal: String, form: Form, counts: Bool) {
        (self.model, self.seal, self.form, self.counts) = (model, seal, form, counts)
        let number = UUID().uuidString.lowercased().replacing("-", with: "")
        id = (form == .chat ? "chatcmpl-" : "cmpl-") + number
    }

    mutating func add(_ answer: Answer, cached: Int) { ends.append((answer, cached)) }

    /// The whole response, when all answers are done.
    var whole: JSON {
        let choices = ends.enumerated().map { i, end -> JSON in
            let message: JSON = ["role": "assistant", "content": .text(end.answer.text), "refusal": .null]
            return ["index": .int(i)] + (form == .chat ? ["message": message] : ["text": .text(end.answer.text)])
                + ["logprobs": .null, "finish_reason": .text(end.answer.reason.rawValue)]
        }
        return head("chat.completion") + ["choices": .list(choices), "usage": usage] + figures
    }

    /// What a stream begins an answer with, if anything.
    func opening(_ index: Int) -> JSON? {
        form == .chat ? chunk(index, ["delta": ["role": "assistant", "content": ""]], nil) : nil
    }

    func piece(_ index: Int, _ text: String) -> JSON {
        chunk(index, form == .chat ? ["delta": ["content": .text(text)]] : ["text": .text(text)], nil)
    }

    func end(_ index: Int, _ answer: Answer) -> JSON {
        chunk(index, form == .chat ? ["delta": [:]] : ["text": ""], answer.reason)
    }

    /// The last chunk, with usage and figures.
    var last: JSON { head("chat.completion.chunk") + ["choices": [], "usage": usage] + figures }

    private func chunk(_ index: Int, _ content: JSON, _ reason: Answer.Reason?) -> JSON {
        let choice = ["index": .int(index)] + content
            + ["logprobs": .null, "finish_reason": reason.map { .text($0.rawValue) } ?? .null]
        return head("chat.completion.chunk") + ["choices": [choice]] + (counts ? ["usage": .null] : [:])
    }

    private func head(_ chat: String) -> JSON {
        ["id": .text(id), "object": form == .chat ? .text(chat) : "text_completion",
            "created": .int(Int(start.timeIntervalSince1970)), "model": .text(model),
            "system_fingerprint": .text("fp_\(seal.prefix(12))")]
    }

    private var usage: JSON {
        let generated = ends.reduce(0) { $0 + $1.answer.tokens.count }
        return ["prompt_tokens": .int(promptTokens), "completion_tokens": .int(generated),
            "total_tokens": .int(promptTokens + generated),
            "prompt_tokens_details": ["cached_tokens": .int(ends.first?.cached ?? 0)]]
    }

    /// Of the first answer; in the source's form with its text.
    private var figures: JSON {
        guard let first = ends.first?.answer else { return [:] }
        let own: JSON = form != .source ? [:] : ["text": .text(first.text), "prompt_tokens": .int(first.promptTokens),
            "gen_tokens": .int(first.tokens.count)]
        return own + speed(first, since: start)
    }
}

/// Tokens per second of an answer, and seconds since its request came.
func speed(_ answer: Answer, since start: Date) -> JSON {
    func rate(_ tokens: Int, _ seconds: Double) -> JSON {
        tokens < 1 ? .null : .double((Double(tokens) / max(seconds, 1e-9) * 100).rounded() / 100)
    }
    return ["prefill_tps": rate(answer.prefilled, answer.prefillSeconds),
        "decode_tps": rate(answer.tokens.count - 1, answer.decodeSeconds),
        "elapsed_s": .double((-start.timeIntervalSinceNow * 10_000).rounded() / 10_000)]
}
