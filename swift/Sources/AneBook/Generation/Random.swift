/// Numpy's default generator of random numbers, so that a seed draws the same here as in Python.
///
/// PCG64 (XSL-RR 128/64: O'Neill 2014, pcg-random.org), seeded by numpy's `SeedSequence`
/// (numpy/random/bit_generator.pyx).
struct PCG64 {
    private var state: UInt128 = 0
    private let increment: UInt128

    init(seed: UInt64) {
        let words = Self.seedSequence(seed)
        increment = (UInt128(words[2]) << 64 | UInt128(words[3])) << 1 | 1
        step()
        state &+= UInt128(words[0]) << 64 | UInt128(words[1])
        step()
    }

    /// A number in [0, 1) with 53 random bits.
    mutating func uniform() -> Double {
        step()
        let (high, low) = (UInt64(truncatingIfNeeded: state >> 64), UInt64(truncatingIfNeeded: state))
        let turn = high >> 58, mixed = high ^ low
        let value = mixed >> turn | mixed << ((64 - turn) & 63)
        return Double(value >> 11) * 0x1p-53
    }

    private mutating func step() {
        state = state &* (2_549_297_995_355_413_924 << 64 | 4_865_540_595_714_422_341) &+ increment
    }

    private static func seedSequence(_ seed: UInt64) -> [UInt64] {
        var constant: UInt32 = 0x43b0_d7e5
        func hash(_ value: UInt32, _ multiplier: UInt32) -> UInt32 {
            let mixed = value ^ constant
            constant = constant &* multiplier
            let product = mixed &* constant
            return product ^ product >> 16
        }
        func mix(_ x: UInt32, _ y: UInt32) -> UInt32 {
            let mixed = 0xca01_f9dd &* x &- 0x4973_f715 &* y
            return mixed ^ mixed >> 16
        }
        var pool = [UInt32(truncatingIfNeeded: seed), UInt32(seed >> 32), 0, 0].map { hash($0, 0x931e_8875) }
        for from in 0..<4 {
            for to in 0..<4 where to != from { pool[to] = mix(pool[to], hash(pool[from], 0x931e_8875)) }
        }
        constant = 0x8b51_f9dd
        let words = (0..<8).map { hash(pool[$0 % 4], 0x58f3_8ded) }
        return (0..<4).map { UInt64(words[2 * $0]) | UInt64(words[2 * $0 + 1]) << 32 }
    }
}
