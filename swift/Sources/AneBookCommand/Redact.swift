import AneBook
import AneBookEncoders
import Foundation

/// `anebook redact BUNDLE TEXT`: prints a text with what is private replaced by its kind.
///
/// How many spans there were, and of which kinds, goes to standard error, as of `ane-book redact`.
func redact(_ arguments: inout Arguments) async throws {
    let settings = try Settings(&arguments)
    guard settings.words.count == 2 else { throw AneBookError.invalidInput("give BUNDLE and TEXT\n\(usage)") }
    let tagger = try Tagger(settings.bundle(), predictor: settings.predictor())
    let spans = try await tagger.tag(settings.words[1])
    print(spans.replaced(in: settings.words[1]))
    let kinds = Dictionary(grouping: spans, by: \.label).mapValues(\.count)
    let listed = kinds.sorted { ($1.value, $0.key) < ($0.value, $1.key) }.map { ", \($1) \($0)" }
    tell("\(spans.count) spans\(listed.joined())")
}
