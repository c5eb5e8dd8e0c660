// What `ModelBundle.verify` uses of CryptoKit.

// documentation/cryptokit/sha256 (not read)
public struct SHA256 {
    // documentation/cryptokit/hashfunction/init() (not read)
    public init() {}
    // documentation/cryptokit/hashfunction/update(bufferpointer:) (not read)
    public mutating func update(bufferPointer: UnsafeRawBufferPointer) {}
    // documentation/cryptokit/hashfunction/finalize() (not read)
    public func finalize() -> SHA256Digest { fatalError() }
}

// documentation/cryptokit/sha256digest (not read)
public struct SHA256Digest: Sequence {
    // documentation/swift/sequence/makeiterator() (not read)
    public func makeIterator() -> Array<UInt8>.Iterator { fatalError() }
}
