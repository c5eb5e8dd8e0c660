import Foundation
import Testing

@testable import AneBook
@testable import AneBookCaches

@Suite struct SafetensorsTests {
    private let folder = FileManager.default.temporaryDirectory.appendingPathComponent("tensors-\(UUID())")

    private func file(_ header: String, _ bytes: Int, length: UInt64? = nil) throws -> URL {
        let size = withUnsafeBytes(of: (length ?? UInt64(header.utf8.count)).littleEndian) { Data($0) }
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        let url = folder.appendingPathComponent(UUID().uuidString)
        try (size + Data(header.utf8) + Data(repeating: 0, count: bytes)).write(to: url)
        return url
    }

    @Test func whatIsWrittenIsRead() throws {
        defer { try? FileManager.default.removeItem(at: folder) }
        let url = try file("", 0), half = Tensor(.half, [2, 3]), whole = Tensor(.integer, [])
        for i in 0..<6 { half.halfs[i] = Float16(i) }
        whole.integers[0] = -7
        try Safetensors.write(url, texts: ["a": "\"ü\""], arrays: [("b", half), ("none", Tensor(.half, [0])), ("c", whole)])
        let read = try Safetensors(url), place = try #require(read.arrays["b"])
        #expect(read.texts == ["a": "\"ü\""] && read.arrays["c"].flatMap(read.number) == -7 && read.number(place) == nil)
        #expect(place.shape == [2, 3] && read.arrays["none"]?.shape == [0])
        #expect(read.halfs(place).map { Array($0.halfs) } == [0, 1, 2, 3, 4, 5])
        let facts = try FileManager.default.attributesOfItem(atPath: url.path)
        #expect(facts[.posixPermissions] as? Int == 0o600)
        #expect(try FileManager.default.contentsOfDirectory(atPath: folder.path).count == 1)
    }

    /// What is not written leaves the former file, and nothing beside it.
    @Test func aFolderIsNotReplaced() throws {
        defer { try? FileManager.default.removeItem(at: folder) }
        let place = try file("", 0).deletingLastPathComponent().appendingPathComponent("d/e")
        try FileManager.default.createDirectory(at: place, withIntermediateDirectories: true)
        #expect(throws: AneBookError.self) { try Safetensors.write(place.deletingLastPathComponent(), texts: [:], arrays: []) }
        #expect(throws: AneBookError.self) { try Safetensors.write(place.appendingPathComponent("f/g"), texts: [:], arrays: []) }
        #expect(try FileManager.default.contentsOfDirectory(atPath: folder.path).count == 2)
    }

    @Test(arguments: [
        (#"{}"#, 1), (#"[]"#, 0), (#"{"a": 1}"#, 0), (#"{"#, 0), ("\u{1}", 0), (#"{"__metadata__": {"a": 1}}"#, 0),
        (#"{"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}}"#, 3),
        (#"{"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}}"#, 5),
        (#"{"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 6]}}"#, 6),
        (#"{"a": {"dtype": "F16", "shape": [2], "data_offsets": [4, 0]}}"#, 4),
        (#"{"a": {"dtype": "F16", "shape": [2], "data_offsets": [0]}}"#, 4),
        (#"{"a": {"dtype": "F16", "shape": [2], "data_offsets": [2, 6]}}"#, 6),
        (#"{"a": {"dtype": "F16", "shape": [-2], "data_offsets": [0, -4]}}"#, 0),
        (#"{"a": {"dtype": "F16", "shape": [-1, -2], "data_offsets": [0, 4]}}"#, 4),
        (#"{"a": {"dtype": "F16", "shape": [1e300], "data_offsets": [0, 4]}}"#, 4),
        (#"{"a": {"dtype": "F16", "shape": [4294967296, 4294967296], "data_offsets": [0, 0]}}"#, 0),
        (#"{"a": {"dtype": "F16", "shape": [1], "data_offsets": [9223372036854775807, -9223372036854775808]}}"#, 2),
        (#"{"a": {"dtype": "F8", "shape": [4], "data_offsets": [0, 4]}}"#, 4),
        (#"{"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}, "b": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}}"#, 4),
        (#"{"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}, "a": {"dtype": "F16", "shape": [2], "data_offsets": [4, 8]}}"#, 8),
    ]) func aHeaderThatLies(_ header: String, _ bytes: Int) throws {
        defer { try? FileManager.default.removeItem(at: folder) }
        let url = try file(header, bytes)
        #expect(throws: AneBookError.self) { try Safetensors(url) }
    }

    @Test(arguments: [0, 3, 1 << 20, 1 << 62, .max] as [UInt64]) func aLengthThatLies(_ length: UInt64) throws {
        defer { try? FileManager.default.removeItem(at: folder) }
        let url = try file("{} ", 0, length: length)
        if length == 3 { #expect(try Safetensors(url).arrays.isEmpty) } else {
            #expect(throws: AneBookError.self) { try Safetensors(url) }
        }
        #expect(throws: AneBookError.self) { try Safetensors(folder) }
    }
}
