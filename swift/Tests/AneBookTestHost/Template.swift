import AneBook
import Foundation

/// Lays out conversations.
///
/// Reads lines `{"segments": {...}, "messages": [...]}`, of which some have `"today": [year, month, day]`,
/// and writes for each a line `{"text": ...}` or `{"error": ...}`.
func template() {
    struct Question: Codable {
        var segments: ChatSegments
        var messages: [Message]
        var today: [Int]?
    }
    let encoder = JSONEncoder()
    while let line = readLine() {
        var answer: [String: String]
        do {
            let question = try decode(Question.self, from: Data(line.utf8))
            let day = (question.today ?? []).count == 3 ? question.today ?? [] : []
            let parts = day.isEmpty ? nil : DateComponents(year: day[0], month: day[1], day: day[2])
            let today = parts.flatMap { Calendar(identifier: .gregorian).date(from: $0) } ?? Date()
            answer = ["text": try question.segments.render(question.messages, today: today)]
        } catch {
            answer = ["error": "\(error)"]
        }
        guard let line = try? encoder.encode(answer) else { continue }
        print(String(decoding: line, as: UTF8.self))
    }
}
