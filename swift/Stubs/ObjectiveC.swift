// What AneBook uses of ObjectiveC. Each declaration follows its page on developer.apple.com.

// documentation/objectivec/autoreleasepool(invoking:) (not read)
public func autoreleasepool<Result>(invoking body: () throws -> Result) rethrows -> Result { fatalError() }
