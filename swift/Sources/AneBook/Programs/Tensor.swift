import Foundation

/// The numbers of one input, output or state, in memory that stays where it is.
///
/// Host and program share it: what the host writes into an input is what the program reads, without
/// a copy, and a program's output can be the next one's input. C order, no padding between rows.
public final class Tensor {
    public let shape: [Int]
    public let type: ElementType
    /// The bytes of all elements, at an address that is a multiple of a page.
    public let bytes: UnsafeMutableRawBufferPointer
    private let memory: Memory

    /// A tensor of zeros.
    public convenience init(_ type: ElementType, _ shape: [Int]) {
        self.init(type, shape, in: Memory(bytes: shape.reduce(type.size, *)))
    }

    /// A tensor in memory that others use too, such as the same cache with other slots.
    ///
    /// The memory has at least as many bytes as the tensor.
    init(_ type: ElementType, _ shape: [Int], in memory: Memory) {
        let count = shape.reduce(type.size, *)
        precondition(count <= memory.bytes.count)
        (self.type, self.shape, self.memory) = (type, shape, memory)
        bytes = UnsafeMutableRawBufferPointer(rebasing: memory.bytes[..<count])
    }

    public var count: Int { bytes.count / type.size }
    public var halfs: UnsafeMutableBufferPointer<Float16> { bytes.bindMemory(to: Float16.self) }
    public var integers: UnsafeMutableBufferPointer<Int32> { bytes.bindMemory(to: Int32.self) }

    func clear() {
        bytes.initializeMemory(as: UInt8.self, repeating: 0)
    }

    /// Copies `count` tokens, from `first` on, into another tensor, to its token `at` and after.
    ///
    /// Both are of half precision, and differ in nothing but their extents on `axis`, the tokens'.
    func copy(_ first: Int, _ count: Int, into target: Tensor, at: Int, axis: Int) {
        let token = shape[(axis + 1)...].reduce(2, *), (T, S) = (shape[axis], target.shape[axis])
        guard let from = bytes.baseAddress, let to = target.bytes.baseAddress else { return }
        for row in 0..<shape[..<axis].reduce(1, *) {
            memcpy(to + (row * S + at) * token, from + (row * T + first) * token, count * token)
        }
    }
}

/// What the elements of a tensor are, by the names that a manifest gives them.
public enum ElementType: String, Codable, Sendable {
    case half = "fp16"
    case single = "fp32"
    case integer = "int32"

    /// Bytes of an element.
    public var size: Int { self == .half ? 2 : 4 }
}

/// Zeroed memory, freed with its last user.
final class Memory {
    let bytes: UnsafeMutableRawBufferPointer

    init(bytes count: Int) {
        bytes = .allocate(byteCount: max(count, 1), alignment: 16_384)
        bytes.initializeMemory(as: UInt8.self, repeating: 0)
    }

    deinit { bytes.deallocate() }
}
