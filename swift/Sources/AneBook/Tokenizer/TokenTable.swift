/// Finds a token by its bytes: an open-addressing table over the tokens as they lie in the file.
struct TokenTable: Sendable {
    let texts: TextList
    let flags: [UInt8]
    /// The upper half of a hash and the id plus 1; 0 where there is none.
    private var slots: [UInt64]

    static let inVocabulary: UInt8 = 1, wholeWord: UInt8 = 2, special: UInt8 = 4, byte: UInt8 = 8,
        token: UInt8 = 16

    init(_ file: PackedFile) throws(AneBookError) {
        texts = try file.texts("tok")
        flags = file.bytes("tokf")
        guard flags.count == texts.count, flags.count < 1 << 24 else { throw damaged("tokf") }
        slots = Array(repeating: 0, count: capacity(flags.count))
        file.data.withUnsafeBytes { raw in
            for id in flags.indices where flags[id] & Self.inVocabulary != 0 {
                insert(id, raw)
            }
        }
    }

    private mutating func insert(_ id: Int, _ raw: UnsafeRawBufferPointer) {
        let key = UnsafeRawBufferPointer(rebasing: raw[texts.range(id)])
        let hash = hash(key)
        var slot = Int(truncatingIfNeeded: hash) & (slots.count - 1)
        while slots[slot] != 0 {
            let other = Int(slots[slot] & 0xFFFF_FFFF) - 1
            // Of two tokens with the same bytes, the one that a word becomes.
            if slots[slot] >> 32 == hash >> 32, equal(key, raw, texts.range(other)) {
                if flags[id] & Self.wholeWord == 0 { return }
                break
            }
            slot = (slot + 1) & (slots.count - 1)
        }
        slots[slot] = (hash & ~0xFFFF_FFFF) | UInt64(id + 1)
    }

    /// The token of these bytes that has a flag. `raw` is the file.
    func id(of key: UnsafeRawBufferPointer, _ flag: UInt8, _ raw: UnsafeRawBufferPointer) -> Int? {
        let hash = hash(key)
        var slot = Int(truncatingIfNeeded: hash) & (slots.count - 1)
        while slots[slot] != 0 {
            if slots[slot] >> 32 == hash >> 32 {
                let id = Int(slots[slot] & 0xFFFF_FFFF) - 1
                if equal(key, raw, texts.range(id)) { return flags[id] & flag != 0 ? id : nil }
            }
            slot = (slot + 1) & (slots.count - 1)
        }
        return nil
    }

    func id(of key: some Collection<UInt8>, _ flag: UInt8, _ raw: UnsafeRawBufferPointer) -> Int? {
        Array(key).withUnsafeBytes { id(of: $0, flag, raw) }
    }
}

/// A power of two that leaves half of a table free.
func capacity(_ count: Int) -> Int {
    var slots = 16
    while slots < 2 * count { slots *= 2 }
    return slots
}

@inline(__always)
private func equal(
    _ key: UnsafeRawBufferPointer, _ raw: UnsafeRawBufferPointer, _ range: Range<Int>
) -> Bool {
    guard key.count == range.count else { return false }
    for i in 0..<key.count where key[i] != raw[range.lowerBound + i] { return false }
    return true
}

@inline(__always)
private func hash(_ key: UnsafeRawBufferPointer) -> UInt64 {
    var hash = UInt64(key.count), place = 0
    while place + 8 <= key.count {
        hash = mixed(hash ^ key.loadUnaligned(fromByteOffset: place, as: UInt64.self))
        place += 8
    }
    var rest: UInt64 = 0
    while place < key.count {
        rest = rest << 8 | UInt64(key[place])
        place += 1
    }
    return mixed(hash ^ rest)
}

@inline(__always)
func mixed(_ value: UInt64) -> UInt64 {
    let product = value &* 0x9E37_79B9_7F4A_7C15
    return (product ^ product >> 32) &* 0xD6E8_FEB8_6659_FD93 ^ (product >> 29)
}
