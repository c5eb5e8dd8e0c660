import Foundation
public struct Tokenizer: Sendable { init(contentsOf: URL) throws {} 
 func encode(_ text: String, addSpecialTokens: Bool) -> [Int32] { [] }
 func decode(_ ids: some Sequence<Int32>) -> String { "" } }
struct TextStream { init(_ t: Tokenizer, stops: [String]) {}; var stopped = false; mutating func add(_ t: Int32) -> String { "" }; mutating func finish() -> String { "" } }
public struct Message: Codable, Sendable { let role: String; let content: String; public init(role: String, content: String) { self.role = role; self.content = content } }
public struct ChatSegments: Codable, Sendable { func render(_ m: [Message]) throws -> String { "" } }
