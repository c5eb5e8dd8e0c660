extension Manifest {
    /// Where tokens are in what a decoder's programs exchange with the host, by the manifest's `form`.
    ///
    ///     form    cache           new rows        mask             rotary tables
    ///     rows    (n, K, S, D)    (n, K, T, D)    (1, 1, T, S+T)   (1, 1, T, D)
    ///     apple   (n, K*D, 1, S)  (n, K*D, 1, T)  (1, S+T, 1, T)   (1, D, 1, T)
    ///
    /// The same as the Python library's (`ane_book/layout.py`, which has the reference). Letters: n
    /// layers of a package, K key/value heads, D head size, S slots of the cache, T tokens.
    public enum Layout: String, Codable, Sendable {
        case rows, apple

        /// The axis of a cache, and of a rotary table, on which the tokens are.
        var tokens: Int { self == .rows ? 2 : 3 }

        /// The shape in which programs take a mask or a rotary table (1, 1, T, `width`).
        func input(_ T: Int, _ width: Int) -> [Int] { self == .rows ? [1, 1, T, width] : [1, width, 1, T] }

        /// How far apart in such an input the numbers of two tokens are, and those of two columns.
        package func steps(_ T: Int, _ width: Int) -> (token: Int, column: Int) { self == .rows ? (width, 1) : (1, T) }

        /// The shape of a cache or a table with another number of tokens; it has four extents.
        func sized(_ shape: [Int], _ tokens: Int) -> [Int] {
            var shape = shape
            shape[self.tokens] = tokens
            return shape
        }

        /// Whether what is kept under this name is no cache, but the tail (n, R, 1, W) of an activation.
        package static func isTail(_ name: String) -> Bool { !["keys", "values", "cache"].contains(where: name.hasPrefix) }
    }
}
