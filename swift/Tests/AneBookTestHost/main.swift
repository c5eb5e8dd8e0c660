import AneBook
import AneBookExecutor
import Foundation

// What tests and measurements ask of the package, to hold it to Python's. No app runs this.
let usage = """
    usage: AneBookTestHost answers BUNDLE [--executor CMD | --recording FOLDER]
           AneBookTestHost tokens TOKENIZER.bin
           AneBookTestHost template
           AneBookTestHost draws
           AneBookTestHost functions BUNDLE
           AneBookTestHost host-cost BUNDLE TOKENS
    """

/// What runs the programs, by the options after BUNDLE.
func predictor(_ options: ArraySlice<String>) throws -> any Predictor {
    switch (options.first, options.last) {
    case ("--executor", let command?) where options.count == 2:
        return ExecutorPredictor(command: command.split(separator: " ").map(String.init))
    case ("--recording", let folder?) where options.count == 2:
        return try RecordedPredictor(URL(fileURLWithPath: folder))
    case (nil, _):
        #if canImport(CoreML)
        return CoreMLPredictor()
        #else
        throw AneBookError.backendUnavailable("Core ML is not on this machine; give --executor or --recording")
        #endif
    default: throw AneBookError.invalidInput(usage)
    }
}

let words = CommandLine.arguments.dropFirst()
do {
    switch (words.first, words.count) {
    case ("answers", 2...): try await answers(words[2], predictor(words.dropFirst(2)))
    case ("functions", 2): try await functions(words[2])
    case ("host-cost", 3): try await hostCost(words[2], tokens: Int(words[3]) ?? 0)
    case ("tokens", 2): try tokens(words[2])
    case ("template", 1): template()
    case ("draws", 1): try draws()
    default: throw AneBookError.invalidInput(usage)
    }
} catch {
    FileHandle.standardError.write(Data("Error: \(error)\n".utf8))
    exit(error is AneBookError ? 2 : 1)
}
