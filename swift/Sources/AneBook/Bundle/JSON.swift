import Foundation

/// Decodes JSON that somebody else wrote; whatever the bytes are, it is decoded or an error.
///
/// Foundation's decoder of Swift 6.0 on Linux ends the process at a key that is no UTF-8 or has a
/// control character; its older parser throws, and goes first.
package func decode<Value: Decodable>(_ type: Value.Type, from data: Data) throws -> Value {
    guard String(validating: data, as: UTF8.self) != nil else {
        throw DecodingError.dataCorrupted(.init(codingPath: [], debugDescription: "not UTF-8"))
    }
    _ = try JSONSerialization.jsonObject(with: data, options: .fragmentsAllowed)
    return try JSONDecoder().decode(type, from: data)
}
