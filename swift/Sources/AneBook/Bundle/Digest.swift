import Foundation
#if canImport(CryptoKit)
import CryptoKit
#endif

extension ModelBundle {
    /// Reads every file that is there, and compares its SHA-256 with the manifest's, and the manifest
    /// with its seal.
    ///
    /// For a bundle that a device downloaded, before it takes the former one's place: opening
    /// compares sizes alone. Throws `invalidBundle` for the first file that is not as it was
    /// written, and stops when its task is cancelled. A compiled package is in no list, so it is not
    /// compared.
    public func verify() async throws {
        func changed(_ file: URL) -> AneBookError {
            .invalidBundle("\(file.path) is not as it was written; copy or download the bundle again")
        }
        let own = url.appendingPathComponent("manifest.json")
        guard let json = try? Data(contentsOf: own), (try? decode(Manifest.self, from: json)) != nil,
            SealedFields(json).text.sha256 == manifest.seal
        else { throw changed(own) }
        for name in manifest.files.keys.sorted() {
            let file = url.appendingPathComponent(name)
            guard Self.size(of: file) != nil else { continue }  // left out, as an app may
            guard let sum = manifest.sha256?[name], try MappedFile(file).sha256() == sum else { throw changed(file) }
        }
    }
}

/// What a manifest's seal is the SHA-256 of: all other fields, in one line with sorted keys, as Python's
/// `json.dumps` has them. Numbers and texts stay as they are in the file, which Python wrote.
struct SealedFields {
    private(set) var text = ""
    private var rest: ArraySlice<UInt8>

    /// json: an object that can be decoded.
    init(_ json: Data) {
        rest = ArraySlice(json)
        text = value(token(), without: "\"seal\"")
    }

    private mutating func value(_ first: String, without field: String? = nil) -> String {
        guard first == "{" || first == "[" else { return first }
        var parts: [(key: String, text: String)] = [], next = token()
        while next != "}", next != "]" {
            if first == "[" { parts.append(("", value(next))) } else {
                let key = next, escaped = key.contains("\\") ? try? decode(String.self, from: Data(key.utf8)) : nil
                (_, next) = (token(), token())  // the colon, and what is behind it
                let own = "\(key): \(value(next))"
                if key != field { parts.append((escaped ?? String(key.dropFirst().dropLast()), own)) }
            }
            next = token()
            if next == "," { next = token() }
        }
        if first == "{" { parts.sort { $0.key.utf8.lexicographicallyPrecedes($1.key.utf8) } }
        return first + parts.map(\.text).joined(separator: ", ") + (first == "{" ? "}" : "]")
    }

    /// The next text with its quotation marks, number, word or single character.
    private mutating func token() -> String {
        rest = rest.drop { $0 <= 0x20 }
        guard let first = rest.first else { return "]" }
        var end = rest.startIndex + 1
        if first == UInt8(ascii: "\"") {
            while rest[end] != first { end += rest[end] == UInt8(ascii: "\\") ? 2 : 1 }
            end += 1
        } else if !"{}[]:,".utf8.contains(first) {
            end = rest.firstIndex { $0 <= 0x20 || "}],".utf8.contains($0) } ?? rest.endIndex
        }
        defer { rest = rest[end...] }
        return String(decoding: rest[..<end], as: UTF8.self)
    }
}

extension MappedFile {
    /// The SHA-256 of its bytes. Throws when the task is cancelled.
    func sha256() throws -> String {
        var digest = SHA256()
        try withBytes { bytes in
            for start in stride(from: 0, to: bytes.count, by: 1 << 24) {
                try Task.checkCancellation()
                digest.update(bufferPointer: UnsafeRawBufferPointer(rebasing: bytes[start...].prefix(1 << 24)))
            }
        }
        return digest.hex()
    }
}

extension String {
    /// The SHA-256 of its UTF-8, in hexadecimal digits.
    var sha256: String {
        var digest = SHA256()
        Array(utf8).withUnsafeBytes { digest.update(bufferPointer: $0) }
        return digest.hex()
    }
}

extension SHA256 {
    /// In hexadecimal digits.
    fileprivate mutating func hex() -> String {
        finalize().map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()
    }
}

#if !canImport(CryptoKit)
/// SHA-256 (FIPS 180-4) for systems without CryptoKit, with that one's names.
struct SHA256 {
    /// The first 32 bits of the fractions of the cube roots of the first 64 primes.
    private static let constants: [UInt32] = [
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
    ]
    /// The same of the square roots of the first 8.
    private var state: [UInt32] = [
        0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
    ]
    private var waiting: [UInt8] = [], count: UInt64 = 0

    mutating func update(bufferPointer bytes: UnsafeRawBufferPointer) {
        count += UInt64(bytes.count)
        waiting += bytes
        let blocks = waiting.prefix(waiting.count / 64 * 64)
        blocks.withUnsafeBytes { bytes in
            for block in stride(from: 0, to: bytes.count, by: 64) { Self.add(bytes, block, to: &state) }
        }
        waiting.removeFirst(blocks.count)
    }

    mutating func finalize() -> [UInt8] {
        let bits = withUnsafeBytes(of: (count * 8).bigEndian, Array.init)
        let padded = [0x80] + [UInt8](repeating: 0, count: (119 - waiting.count) % 64) + bits
        padded.withUnsafeBytes { update(bufferPointer: $0) }
        return state.flatMap { withUnsafeBytes(of: $0.bigEndian, Array.init) }
    }

    private static func add(_ bytes: UnsafeRawBufferPointer, _ block: Int, to state: inout [UInt32]) {
        func turned(_ x: UInt32, _ n: UInt32) -> UInt32 { x >> n | x << (32 - n) }
        var w = [UInt32](repeating: 0, count: 64)
        for i in 0..<16 { w[i] = UInt32(bigEndian: bytes.loadUnaligned(fromByteOffset: block + 4 * i, as: UInt32.self)) }
        for i in 16..<64 {
            let a = w[i - 15], b = w[i - 2]
            let mixed = (turned(a, 7) ^ turned(a, 18) ^ a >> 3) &+ (turned(b, 17) ^ turned(b, 19) ^ b >> 10)
            w[i] = w[i - 16] &+ w[i - 7] &+ mixed
        }
        var s = state
        for i in 0..<64 {
            let (a, e) = (s[0], s[4])
            let one = s[7] &+ (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) &+ (e & s[5] ^ ~e & s[6])
                &+ constants[i] &+ w[i]
            let two = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) &+ (a & s[1] ^ a & s[2] ^ s[1] & s[2])
            for place in (1..<8).reversed() { s[place] = s[place - 1] }
            s[4] &+= one
            s[0] = one &+ two
        }
        for i in 0..<8 { state[i] &+= s[i] }
    }
}
#endif
