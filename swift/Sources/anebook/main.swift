import AneBook

let arguments = Array(CommandLine.arguments.dropFirst())
switch arguments.first {
case "template": template(arguments: Array(arguments.dropFirst()))
default: break
}
