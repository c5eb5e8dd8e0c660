import AneBook
import Foundation

let arguments = Array(CommandLine.arguments.dropFirst())
do {
    if arguments.first == "tokens" { try tokens(arguments: Array(arguments.dropFirst())) }
} catch {
    FileHandle.standardError.write(Data("\(error)\n".utf8))
    exit(2)
}
