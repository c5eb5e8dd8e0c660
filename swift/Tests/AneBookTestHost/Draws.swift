import AneBook
import Foundation

/// Draws from logits that are given, for tests that hold the sampler to Python's.
///
/// Reads lines `{"logits": FILE, "vocabulary": V}` with fields of `Options`; the file has rows of V
/// halfs, of which each gives a token. Writes for each `{"token_ids": [...], "microseconds": [...]}`,
/// the times of the processor that the tokens took, or `{"error": ...}`.
func draws() throws {
    while let line = readLine() {
        do {
            let request = try decode(Request.self, from: Data(line.utf8)), V = request.vocabulary ?? 0
            let rows = try MappedFile(URL(fileURLWithPath: request.logits ?? "")), row = Tensor(.half, [1, V, 1, 1])
            var sampler = Sampler(request.options), drawn = Draws()
            for start in stride(from: 0, to: rows.count, by: row.bytes.count) {
                rows.withBytes { row.bytes.copyMemory(from: UnsafeRawBufferPointer(rebasing: $0[start..<(start + row.bytes.count)])) }
                let begun = clock()
                drawn.token_ids.append(try sampler.token(Output(parts: [row], token: nil, column: 0)))
                drawn.microseconds.append(Double(clock() - begun) * 1e6 / Double(CLOCKS_PER_SEC))
            }
            try reply(drawn)
        } catch let error as AneBookError {
            try reply(["error": error.message])
        }
    }
}

private struct Draws: Encodable {
    var token_ids: [Int32] = [], microseconds: [Double] = []
}
