import Foundation
#if canImport(CryptoKit)
import CryptoKit
#endif

extension ModelBundle {
    /// Reads every file that is there, and compares its SHA-256 with the manifest's.
    ///
    /// For a bundle that a device downloaded, before it takes the former one's place: opening
    /// compares sizes alone. Throws `invalidBundle` for the first file that is not as it was
    /// written, and stops when its task is cancelled. A compiled package and manifest.json itself
    /// are in no list, so these are not compared.
    public func verify() async throws {
        for name in manifest.files.keys.sorted() {
            let file = url.appendingPathComponent(name)
            guard Self.size(of: file) != nil else { continue }  // left out, as an app may
            guard let expected = manifest.sha256?[name], try MappedFile(file).sha256() == expected else {
                throw AneBookError.invalidBundle("\(file.path) is not as it was written; copy or download the bundle again")
            }
        }
    }
}

extension MappedFile {
    /// The SHA-256 of its bytes, in hexadecimal digits. Throws when the task is cancelled.
    func sha256() throws -> String {
        var digest = SHA256()
        try withBytes { (bytes) throws -> Void in
            for start in stride(from: 0, to: bytes.count, by: 1 << 24) {
                try Task.checkCancellation()
                digest.update(bufferPointer: UnsafeRawBufferPointer(rebasing: bytes[start...].prefix(1 << 24)))
            }
        }
        return digest.finalize().map { byte in
            (byte < 16 ? "0" : "") + String(byte, radix: 16)
        }.joined()
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
