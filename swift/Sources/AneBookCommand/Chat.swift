import AneBook
import Foundation

/// `anebook template`: lays out conversations, for tests that compare with Python.
///
/// Reads lines `{"segments": {...}, "messages": [...]}` and writes for each a line `{"text": ...}`
/// or `{"error": ...}`.
func template(arguments: [String]) {
    struct Question: Codable {
        var segments: ChatSegments
        var messages: [Message]
    }
    let encoder = JSONEncoder()
    while let line = readLine() {
        var answer: [String: String]
        do {
            let question = try decode(Question.self, from: Data(line.utf8))
            answer = ["text": try question.segments.render(question.messages)]
        } catch {
            answer = ["error": "\(error)"]
        }
        guard let line = try? encoder.encode(answer) else { continue }
        print(String(decoding: line, as: UTF8.self))
    }
}
