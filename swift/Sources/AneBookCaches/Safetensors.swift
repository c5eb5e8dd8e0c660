import AneBook
import Foundation

/// Arrays by name in a file, and texts beside them: github.com/huggingface/safetensors.
///
/// Eight bytes say how long the header is; it is JSON, and behind it lie the arrays without a gap.
struct Safetensors {
    private let url: URL
    private(set) var texts: [String: String] = [:]
    private(set) var arrays: [String: Place] = [:]
    private let file: MappedFile

    private static let largestHeader = 1 << 26
    private static let widths = ["F16": 2, "BF16": 2, "F32": 4, "I32": 4]

    /// Where an array lies in the file.
    struct Place: Equatable {
        let type: String, shape: [Int], bytes: Range<Int>
    }

    /// Throws `invalidInput` unless the header says of every byte of the file whose it is.
    init(_ url: URL) throws {
        guard let size = ModelBundle.size(of: url), let file = try? MappedFile(url), file.count == size else {
            throw AneBookError.invalidInput("\(url.path): no such file, or none that can be read")
        }
        (self.url, self.file) = (url, file)
        let length = file.withBytes { $0.count < 8 ? .max : UInt64(littleEndian: $0.loadUnaligned(as: UInt64.self)) }
        let start = length <= min(size - 8, Self.largestHeader) ? 8 + Int(length) : 8
        let header = file.withBytes { Data($0.prefix(start).dropFirst(8)) }
        guard let entries = try? decode([String: Entry].self, from: header) else {
            throw refused("cut short, or no safetensors file")
        }
        var end = 0
        for (name, entry) in entries.sorted(by: { ($0.value.first, $0.value.last) < ($1.value.first, $1.value.last) }) {
            if let own = entry.texts { texts = own; continue }
            guard let width = Self.widths[entry.type], let count = product(entry.shape, atMost: size),
                entry.shape.allSatisfy({ $0 >= 0 }), entry.first == end, entry.last >= end,
                entry.last <= size - start, entry.last - end == count * width
            else { throw refused("its array \(name.prefix(40)) does not fit the file, or is of no type known here") }
            arrays[name] = Place(type: entry.type, shape: entry.shape, bytes: (start + end)..<(start + entry.last))
            end = entry.last
        }
        guard end == size - start else { throw refused("\(size - start - end) of its bytes are of no array") }
    }

    func refused(_ what: String, _ mend: String = "read the prompt again") -> AneBookError {
        .invalidInput("\(url.path): \(what); \(mend)")
    }

    /// The whole number that a scalar is, or nil.
    func number(_ place: Place) -> Int? {
        guard place.type == "I32", place.shape.isEmpty else { return nil }
        let number = file.withBytes { $0.loadUnaligned(fromByteOffset: place.bytes.lowerBound, as: Int32.self) }
        return Int(Int32(littleEndian: number))
    }

    /// The numbers of an array in half precision; nil where one is none, or too large.
    func halfs(_ place: Place) -> Tensor? {
        let tensor = Tensor(.half, place.shape), to = tensor.halfs
        func fill(_ value: (UnsafeRawPointer, Int) -> Float) -> Bool {
            file.withBytes { bytes in
                guard let from = bytes.baseAddress.map({ $0 + place.bytes.lowerBound }) else { return false }
                var finite = true
                for i in to.indices {
                    to[i] = Float16(value(from, i))
                    finite = finite && to[i].isFinite
                }
                return finite
            }
        }
        let finite = switch place.type {
        case "F16": fill { Float($0.loadUnaligned(fromByteOffset: 2 * $1, as: Float16.self)) }
        case "BF16": fill { Float(bitPattern: UInt32($0.loadUnaligned(fromByteOffset: 2 * $1, as: UInt16.self)) << 16) }
        case "F32": fill { $0.loadUnaligned(fromByteOffset: 4 * $1, as: Float.self) }
        default: false
        }
        return finite ? tensor : nil
    }

    /// Writes a file whole or not at all, readable for its owner alone.
    static func write(_ url: URL, texts: [String: String], arrays: [(name: String, tensor: Tensor)]) throws {
        var header: [String: Any] = ["__metadata__": texts], end = 0
        for (name, tensor) in arrays {
            let type = tensor.type == .half ? "F16" : "I32"
            header[name] = ["dtype": type, "shape": tensor.shape, "data_offsets": [end, end + tensor.bytes.count]]
            end += tensor.bytes.count
        }
        do {
            var json = try JSONSerialization.data(withJSONObject: header, options: .sortedKeys)
            json.append(Data(repeating: 0x20, count: -json.count & 7))
            let part = url.deletingLastPathComponent().appendingPathComponent("\(UUID().uuidString).part")
            let number = open(part.path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
            guard number >= 0 else { throw POSIXError(.init(rawValue: errno) ?? .EIO) }
            defer { try? FileManager.default.removeItem(at: part) }
            let handle = FileHandle(fileDescriptor: number, closeOnDealloc: true)
            try withUnsafeBytes(of: UInt64(json.count).littleEndian) { try handle.write(contentsOf: Data($0)) }
            try handle.write(contentsOf: json)
            for (_, tensor) in arrays where tensor.count > 0 {
                let bytes = tensor.bytes
                try bytes.baseAddress.map {
                    try handle.write(contentsOf: Data(bytesNoCopy: $0, count: bytes.count, deallocator: .none))
                }
            }
            try handle.synchronize()
            try handle.close()
            guard rename(part.path, url.path) == 0 else { throw POSIXError(.init(rawValue: errno) ?? .EIO) }
        } catch {
            throw AneBookError.invalidInput("\(url.path): cannot be written (\(error.reason)); name another file")
        }
    }

    /// An entry of the header: the texts, or an array's.
    private struct Entry: Decodable {
        var texts: [String: String]?
        var type = "", shape: [Int] = [], first = 0, last = 0

        enum CodingKeys: String, CodingKey { case dtype, shape, data_offsets }

        init(from decoder: any Decoder) throws {
            if decoder.codingPath.last?.stringValue == "__metadata__" {
                texts = try [String: String](from: decoder)
                return
            }
            let own = try decoder.container(keyedBy: CodingKeys.self)
            (type, shape) = try (own.decode(String.self, forKey: .dtype), own.decode([Int].self, forKey: .shape))
            let offsets = try own.decode([Int].self, forKey: .data_offsets)
            guard offsets.count == 2 else {
                throw DecodingError.dataCorruptedError(forKey: .data_offsets, in: own, debugDescription: "no two")
            }
            (first, last) = (offsets[0], offsets[1])
        }
    }
}
