import Foundation

/// A file in memory that the system reads where it is looked at, and may drop again.
///
/// The bytes are immutable, so threads may share it. Whoever changes the file under a running
/// program changes them; a bundle is never changed in place.
public final class MappedFile: Sendable {
    private let data: Data

    /// Throws `invalidBundle` where there is no such file.
    public init(_ url: URL) throws {
        do {
            data = try Data(contentsOf: url, options: .alwaysMapped)
        } catch {
            throw AneBookError.invalidBundle("\(url.path): cannot be read (\(error.reason))")
        }
    }

    public var count: Int { data.count }

    public func withBytes<Result>(_ body: (UnsafeRawBufferPointer) throws -> Result) rethrows -> Result {
        try data.withUnsafeBytes(body)
    }
}

/// A table of rows (C,) in half precision, in a mapped file of numpy's format (.npy).
///
/// Only the rows that are asked for are ever read.
package struct Table: Sendable {
    package let rows: Int, columns: Int
    private let file: MappedFile
    private let start: Int

    /// Throws `invalidBundle` unless the file holds rows x columns halfs in C order.
    ///
    /// Format: numpy.lib.format, version 1.0.
    init(_ url: URL, rows: Int, columns: Int) throws {
        let file = try MappedFile(url)
        let header = file.withBytes { bytes -> String? in
            guard bytes.count >= 10, bytes.prefix(8).elementsEqual([0x93] + Array("NUMPY".utf8) + [1, 0])
            else { return nil }
            let length = Int(bytes[8]) | Int(bytes[9]) << 8
            guard bytes.count >= 10 + length else { return nil }
            return String(decoding: bytes[10..<10 + length], as: UTF8.self)
        }
        let shape = "'shape': (\(rows), \(columns))"
        guard let header, header.contains("'descr': '<f2'"), header.contains("'fortran_order': False"),
            header.contains(shape), file.count == 10 + header.utf8.count + 2 * rows * columns
        else {
            throw AneBookError.invalidBundle(
                "\(url.path) is damaged: no table of \(rows) x \(columns) halfs; convert the model again")
        }
        (self.file, self.rows, self.columns, start) = (file, rows, columns, 10 + header.utf8.count)
    }

    /// The row of a token, for as long as `body` runs. `row` is one of the table's.
    package func withRow<Result>(_ row: Int, _ body: (UnsafeBufferPointer<Float16>) -> Result) -> Result {
        precondition(row >= 0 && row < rows)
        return file.withBytes { bytes in
            let part = bytes[(start + 2 * row * columns)..<(start + 2 * (row + 1) * columns)]
            return body(UnsafeRawBufferPointer(rebasing: part).bindMemory(to: Float16.self))
        }
    }
}
