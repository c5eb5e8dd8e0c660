import AneBook
import Foundation

/// Answers each line of JSON on standard input with one, from the file `tokenizer.bin`:
///
/// `{"text": t, "special": bool}` or `{"bytes": base64, "special": bool}` gives `{"ids": [...]}`;
/// `{"locate": t}` gives `{"ids": [[id, start, end], ...]}`; `{"ids": [...]}` gives `{"text": t}`;
/// `{"stream": [...], "stop": [...]}` gives `{"parts": [...], "stopped": bool}`, its last part what
/// came at the end; `{"file": path, "rounds": n}` gives the seconds that it takes to open the tokenizer
/// and to encode that file, each of n times.
func tokens(_ path: String) throws {
    let url = URL(fileURLWithPath: path)
    let tokenizer = try Tokenizer(contentsOf: url)
    while let line = readLine() {
        guard let request = try JSONSerialization.jsonObject(with: Data(line.utf8))
            as? [String: Any]
        else { throw AneBookError.invalidInput("a request is a JSON object") }
        let reply: [String: Any]
        if let path = request["file"] as? String {
            reply = try times(url, path, rounds: request["rounds"] as? Int ?? 1)
        } else {
            reply = try answer(request, tokenizer)
        }
        FileHandle.standardOutput.write(
            try JSONSerialization.data(withJSONObject: reply) + Data("\n".utf8))
    }
}

private func answer(_ request: [String: Any], _ tokenizer: Tokenizer) throws -> [String: Any] {
    let special = request["special"] as? Bool ?? false
    if let text = request["text"] as? String {
        return ["ids": try tokenizer.encode(text, addSpecialTokens: special).map { Int($0) }]
    }
    if let text = request["bytes"] as? String, let data = Data(base64Encoded: text) {
        let text = String(decoding: data, as: UTF8.self)
        return ["ids": try tokenizer.encode(text, addSpecialTokens: special).map { Int($0) }]
    }
    if let text = request["locate"] as? String {
        let tokens = try tokenizer.locate(text)
        return ["ids": tokens.map { [Int($0.id), $0.scalars.lowerBound, $0.scalars.upperBound] }]
    }
    if let ids = request["ids"] as? [Int] {
        return ["text": tokenizer.decode(ids.map { Int32(truncatingIfNeeded: $0) })]
    }
    guard let ids = request["stream"] as? [Int] else {
        throw AneBookError.invalidInput("a request that is none: \(request.keys.sorted())")
    }
    var stream = TextStream(tokenizer, stops: request["stop"] as? [String] ?? [])
    var parts = ids.map { stream.add(Int32(truncatingIfNeeded: $0)) }
    parts.append(stream.finish())
    return ["parts": parts, "stopped": stream.stopped]
}

private func times(_ url: URL, _ path: String, rounds: Int) throws -> [String: Any] {
    let text = try String(contentsOfFile: path, encoding: .utf8)
    var open: [Double] = [], encode: [Double] = [], tokens = 0
    for _ in 0..<rounds {
        let start = DispatchTime.now().uptimeNanoseconds
        let tokenizer = try Tokenizer(contentsOf: url)
        let opened = DispatchTime.now().uptimeNanoseconds
        tokens = try tokenizer.encode(text, addSpecialTokens: false).count
        let encoded = DispatchTime.now().uptimeNanoseconds
        open.append(Double(opened - start) / 1e9)
        encode.append(Double(encoded - opened) / 1e9)
    }
    return ["open": open, "encode": encode, "tokens": tokens]
}
