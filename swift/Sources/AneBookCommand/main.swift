import AneBook
import Foundation

let usage = """
    usage: anebook run BUNDLE PROMPT [options]     answer a prompt
           anebook chat BUNDLE [options]           answer what is typed, line by line, until the
                                                   line /reset, which begins anew
           anebook tokens BUNDLE TEXT              the token ids of a text, as they are
           anebook redact BUNDLE TEXT [options]    a text with what is private replaced
           anebook serve BUNDLE [options]          an HTTP API on this machine

    options: --max-tokens N  --temperature T  --top-k K  --top-p P  --seed N  --system TEXT
             --stop TEXT  --stop-repeat N  --lookup
             --prompt-cache FILE   of `run` and `chat`: go on from what it holds, if it is there,
                              and write it again at the end
             --ids            PROMPT is token ids, separated by commas; so is the answer
             --executor CMD   run the programs by this command instead of Core ML,
                              such as "python3 -m mlprogram.pipe"
             --port N         of `serve`: 8000, or none where --socket PATH is given
             --socket PATH    of `serve`: a UNIX socket, for the same HTTP
             --stdin          of `serve`: lines of JSON in and out, and no HTTP
             --units U        of Core ML: ane (the default), gpu or cpu

    """

do {
    var arguments = Arguments(CommandLine.arguments.dropFirst())
    switch CommandLine.arguments.contains(where: ["--help", "-h"].contains) ? "--help" : arguments.next() {
    case "--help": print(usage)
    case "run": try await run(&arguments)
    case "chat": try await chat(&arguments)
    case "serve": try await serve(&arguments)
    case "redact": try await redact(&arguments)
    case "tokens": try tokens(&arguments)
    case let other:
        throw AneBookError.invalidInput("\(other.map { "no command \($0)" } ?? "no command is given")\n\(usage)")
    }
} catch {
    tell("Error: \(error)")
    exit(error is AneBookError ? 2 : 1)
}
