import Foundation

/// The sections of a tokenizer.bin, whose form `swift_tables.packed` describes.
///
/// Nothing in the file is believed: every place and count is checked before it is used.
struct PackedFile: Sendable {
    let data: Data
    private let sections: [String: Range<Int>]

    init(_ data: Data) throws(AneBookError) {
        let bytes = [UInt8](data.prefix(12))
        guard bytes.count == 12, bytes.prefix(8).elementsEqual("ANETOK01".utf8) else {
            throw damaged("it does not begin with ANETOK01")
        }
        var sections: [String: Range<Int>] = [:]
        let count = Int(number(bytes, at: 8))
        guard count <= 64, data.count >= 12 + 12 * count else { throw damaged("its sections") }
        let rows = [UInt8](data.prefix(12 + 12 * count))
        for row in stride(from: 12, to: rows.count, by: 12) {
            let name = String(decoding: rows[row..<row + 4], as: UTF8.self)
            let start = Int(number(rows, at: row + 4)), length = Int(number(rows, at: row + 8))
            guard start + length <= data.count else { throw damaged("the place of \(name)") }
            sections[name] = start..<start + length
        }
        self.data = data
        self.sections = sections
    }

    /// Where a section's bytes lie; an empty range for one that is not there.
    func range(_ name: String) -> Range<Int> { sections[name] ?? 0..<0 }

    func bytes(_ name: String) -> [UInt8] {
        let range = range(name)
        return data.withUnsafeBytes { [UInt8]($0[range]) }
    }

    func words(_ name: String) throws(AneBookError) -> [UInt32] {
        try integers(name, UInt32.self)
    }

    func integers<T: FixedWidthInteger & BitwiseCopyable>(
        _ name: String, _: T.Type
    ) throws(AneBookError) -> [T] {
        let range = range(name), width = MemoryLayout<T>.size
        guard range.count % width == 0 else { throw damaged("the length of \(name)") }
        return data.withUnsafeBytes { raw in
            (0..<range.count / width).map {
                T(littleEndian: raw.loadUnaligned(
                    fromByteOffset: range.lowerBound + width * $0, as: T.self))
            }
        }
    }

    /// The list of texts with this name: where in the file each of them lies.
    func texts(_ name: String) throws(AneBookError) -> TextList {
        let places = try words(name + "o"), area = range(name + "b")
        guard let last = places.last else { return TextList(places: [0], base: 0) }
        guard last <= area.count, zip(places, places.dropFirst()).allSatisfy({ $0 <= $1 }) else {
            throw damaged("the texts of \(name)")
        }
        return TextList(places: places, base: area.lowerBound)
    }
}

func damaged(_ what: String) -> AneBookError {
    .invalidBundle("tokenizer.bin is damaged or of another version: \(what)")
}

private func number(_ bytes: [UInt8], at place: Int) -> UInt32 {
    (0..<4).reduce(0) { $0 | UInt32(bytes[place + $1]) << (8 * UInt32($1)) }
}

/// Texts that lie one behind another in the file.
struct TextList: Sendable {
    fileprivate let places: [UInt32]
    fileprivate let base: Int

    var count: Int { places.count - 1 }

    /// Where in the file a text lies.
    func range(_ index: Int) -> Range<Int> {
        base + Int(places[index])..<base + Int(places[index + 1])
    }
}

/// A value for each code point; blocks of 128 that are alike lie in it once.
struct CharacterTable<Value: FixedWidthInteger & BitwiseCopyable & Sendable>: Sendable {
    private let pages: [UInt16]
    private let values: [Value]

    /// `limit`: all values are below it.
    init(_ file: PackedFile, _ name: String, below limit: Int) throws(AneBookError) {
        pages = try file.integers(name + "p", UInt16.self)
        values = try file.integers(name + "b", Value.self)
        guard pages.count == 0x110000 / 128,
            values.count % 128 == 0, pages.allSatisfy({ Int($0) < values.count / 128 }),
            values.allSatisfy({ Int($0) < limit })
        else { throw damaged("the table \(name)") }
    }

    subscript(scalar: UInt32) -> Value {
        values[Int(pages[Int(scalar >> 7)]) << 7 | Int(scalar & 127)]
    }
}

/// The scalar that begins at a place in UTF-8 that is whole, and how many bytes it has.
@inline(__always)
func scalar(_ bytes: UnsafeBufferPointer<UInt8>, _ at: Int) -> (value: UInt32, length: Int) {
    let lead = UInt32(bytes[at])
    if lead < 0x80 { return (lead, 1) }
    let second = UInt32(bytes[at + 1] & 0x3F)
    if lead < 0xE0 { return ((lead & 0x1F) << 6 | second, 2) }
    let third = second << 6 | UInt32(bytes[at + 2] & 0x3F)
    if lead < 0xF0 { return ((lead & 0x0F) << 12 | third, 3) }
    return ((lead & 0x07) << 18 | third << 6 | UInt32(bytes[at + 3] & 0x3F), 4)
}
