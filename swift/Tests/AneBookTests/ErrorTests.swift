import Testing

@testable import AneBook

@Test func anErrorIsItsSentence() {
    #expect("\(AneBookError.invalidInput("no such model"))" == "no such model")
}
