import Foundation

/// What went wrong, in one sentence that says what, where and what to do.
///
/// The kinds are those of the Python library's exceptions, so that a sentence can be looked up in
/// either language.
public enum AneBookError: Error, Equatable, Sendable {
    /// A bundle is damaged, incomplete, or of another version.
    case invalidBundle(String)
    /// What the caller gave makes no sense.
    case invalidInput(String)
    /// A prompt leaves no room for an answer in the bundle's context.
    case promptTooLong(String)
    /// Core ML, or the executor's process, is not here or has ended.
    case backendUnavailable(String)
    /// A program gave numbers that are none.
    case notFinite(String)

    public var message: String {
        switch self {
        case .invalidBundle(let text), .invalidInput(let text), .promptTooLong(let text),
            .backendUnavailable(let text), .notFinite(let text):
            text
        }
    }
}

extension AneBookError: CustomStringConvertible, LocalizedError {
    public var description: String { message }

    /// What an alert says, and `localizedDescription`.
    public var errorDescription: String? { message }
}

extension Error {
    /// The shortest words there are for an error, the system's or ours.
    package var reason: String { localizedDescription }
}
