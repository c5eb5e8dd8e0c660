import Foundation
import Testing

@testable import AneBook

@Test func anErrorIsItsSentence() {
    let error: any Error = AneBookError.invalidInput("no such model")
    #expect("\(error)" == "no such model")
    #expect(error.localizedDescription == "no such model")
    #expect((error as NSError).localizedDescription == "no such model")
}
