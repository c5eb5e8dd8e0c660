/// How the elements of an array lie that is not ours: its rows may be padded, in scalars.
struct Strides {
    private let shape: [Int], strides: [Int]
    /// Elements that follow each other without a gap, and the dimensions outside of them.
    private let run: Int, outer: Int

    init(_ shape: [Int], _ strides: [Int]) {
        var run = 1, outer = shape.count
        while outer > 0, strides[outer - 1] == run || shape[outer - 1] == 1 {
            outer -= 1
            run *= shape[outer]
        }
        (self.shape, self.strides, self.run, self.outer) = (shape, strides, run, outer)
    }

    /// How many scalars such an array spans, from its first element to its last.
    var span: Int { zip(shape, strides).reduce(1) { $0 + ($1.0 - 1) * $1.1 } }

    /// Calls `body` for each run: where it begins in the array and in C order, and its length.
    func forEachRun(_ body: (_ there: Int, _ here: Int, _ count: Int) -> Void) {
        for i in 0..<shape[..<outer].reduce(1, *) {
            var rest = i, there = 0
            for axis in stride(from: outer - 1, through: 0, by: -1) {
                there += rest % shape[axis] * strides[axis]
                rest /= shape[axis]
            }
            body(there, i * run, run)
        }
    }
}
