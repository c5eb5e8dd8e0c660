import Foundation
import Testing

@testable import AneBook

/// Segments of a made-up template, with some fields of their own and of their system prompt's.
private func segments(_ fields: [String: Any] = [:], system: [String: Any]? = nil) throws
    -> ChatSegments
{
    var all: [String: Any] = [
        "start": "<user>", "reply": "<assistant>", "next": "<user>", "end": "<assistant>",
        "user": "none", "assistant": "none", "cut_strip": "none", "nonempty": false,
        "outside": [String](),
    ]
    all.merge(fields) { $1 }
    if let system {
        let plain: [String: Any] = [
            "before": "<system>", "after": "<user>", "strip": "none", "last": false,
            "joined": false,
        ]
        all["system"] = plain.merging(system) { $1 }
    }
    let data = try JSONSerialization.data(withJSONObject: all)
    return try JSONDecoder().decode(ChatSegments.self, from: data)
}

private let prompt = Message(role: "system", content: " Be brief. ")

private func turns(_ contents: String...) -> [Message] {
    contents.enumerated().map { Message(role: $0 % 2 == 0 ? "user" : "assistant", content: $1) }
}

@Test func textsStandBetweenContents() throws {
    let text = try segments().render(turns("a", "b", " c\n"))
    #expect(text == "<user>a<assistant>b<user> c\n<assistant>")
}

@Test func contentsLoseWhitespace() throws {
    let both = try segments(["user": "both", "assistant": "right"])
    #expect(try both.render(turns(" a\r\n", " b ", "")) == "<user>a<assistant> b<user><assistant>")
    let space = "\u{1C}\u{A0}\u{3000}\u{85}"
    #expect(strip("\(space)a\u{200B}\(space)", .both) == "a\u{200B}")
    #expect(strip("\n\n \na", .leftNewlines) == " \na")
    #expect(strip(" \u{301}a ", .both) == "\u{301}a")
}

@Test func ofAnAnswerTheThoughtIsCut() throws {
    let thinking = try segments(["cut": "</think>", "cut_strip": "left newlines"])
    let text = try thinking.render(turns("</think>", "<think>x</think>y</think>\n\n b", "c"))
    #expect(text == "<user></think><assistant> b<user>c<assistant>")
}

@Test func aSystemPromptStandsBeforeTheFirstOrTheLastQuestion() throws {
    let messages = [prompt] + turns("a", "b", "c")
    let first = try segments(system: [:]).render(messages)
    #expect(first == "<system> Be brief. <user>a<assistant>b<user>c<assistant>")
    let last = try segments(system: ["last": true, "strip": "both"]).render(messages)
    #expect(last == "<user>a<assistant>b<user><system>Be brief.<user>c<assistant>")
    let joined = try segments(["user": "both"], system: ["joined": true])
    #expect(try joined.render([prompt] + turns(" a ")) == "<system> Be brief. <user> a<assistant>")
    let empty = try segments(system: ["empty": "<user>", "strip": "both"])
    let blank = Message(role: "system", content: " \n")
    #expect(try empty.render([blank] + turns("a")) == "<user>a<assistant>")
}

@Test(arguments: [
    [], turns("a", "b"), [prompt], turns("a") + turns("b"), turns("a") + [prompt] + turns("b"),
    [Message(role: "tool", content: "a")],
])
func otherConversationsAreRefused(messages: [Message]) throws {
    let sentence =
        "a conversation is at most one system message, then messages of user and assistant in "
        + "turn, the first and the last of them the user's"
    let chat = try segments()
    #expect(throws: AneBookError.invalidInput(sentence)) { try chat.render(messages) }
}

@Test func whatTheTemplateReadsIsRefused() throws {
    let chat = try segments(["nonempty": true, "outside": ["e"]])
    #expect(throws: AneBookError.self) { try chat.render([prompt] + turns("a")) }
    #expect(throws: AneBookError.self) { try chat.render(turns("")) }
    let sentence = "a message holds e, which this model's chat template reads"
    #expect(throws: AneBookError.invalidInput(sentence)) { try chat.render(turns("e\u{301}")) }
    #expect(throws: AneBookError.self) { try segments().render([prompt] + turns("a")) }
}
