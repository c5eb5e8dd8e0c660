import AneBook
import Foundation

/// Prints the microseconds a token that are spent in this host, over so many tokens.
///
/// Its programs answer at once, with zeros. `resident` is the process's memory in bytes after the
/// first thousand tokens or so, and after all; null where the system has no /proc.
/// `research/measurements/swift_host.py` also counts allocations.
func hostCost(_ folder: String, tokens wanted: Int) async throws {
    let bundle = try ModelBundle(URL(fileURLWithPath: folder))
    let session = try Session(bundle, predictor: InstantPredictor())
    try await session.load()
    var options = Options(), left = wanted, seconds = 0.0, tokens = 0, early: Int?
    while left > 0 {
        options.maxTokens = min(left, bundle.manifest.context - 1)
        let answer = try await session.respond(to: .tokens([1]), options)
        left -= answer.tokens.count
        seconds += answer.decodeSeconds
        tokens += answer.tokens.count - 1
        if early == nil, wanted - left >= 1000 { early = residentBytes() }
    }
    let resident = [early, residentBytes()].map { $0.map(String.init) ?? "null" }.joined(separator: ", ")
    print(#"{"tokens": \#(tokens), "microseconds": \#(1e6 * seconds / Double(tokens)), "resident": [\#(resident)]}"#)
}

/// Memory of this process that is in use, on Linux.
private func residentBytes() -> Int? {
    guard let counts = try? String(contentsOfFile: "/proc/self/statm", encoding: .utf8).split(separator: " "),
        counts.count > 1
    else { return nil }
    return Int(counts[1]).map { $0 * Int(sysconf(Int32(_SC_PAGESIZE))) }
}

/// Programs that do nothing.
struct InstantPredictor: Predictor {
    /// Is told which function is loaded or called, and of a new state.
    var told: @Sendable (String) -> Void = { _ in }

    func open() -> any Programs { Nothing(told, "") }

    private final class Nothing: Programs, LoadedFunction, ProgramState {
        private let told: @Sendable (String) -> Void, name: String

        init(_ told: @escaping @Sendable (String) -> Void, _ name: String) { (self.told, self.name) = (told, name) }

        func load(_ function: FunctionReference, inputs: [String: Tensor], outputs: [String: Tensor])
            -> any LoadedFunction {
            let name = "\(function.package.deletingPathExtension().lastPathComponent) \(function.name)"
            told(name)
            return Nothing(told, name)
        }
        func makeState() -> any ProgramState {
            told("state")
            return self
        }
        func predict(_ state: (any ProgramState)?) { told(name) }
        func read(_ name: String, into tensor: Tensor) {}
        func write(_ name: String, from tensor: Tensor) {}
    }
}
