import Foundation
import Testing

@testable import AneBook

/// The runs of an array: where each begins there, where here, and its length.
private func runs(_ shape: [Int], _ strides: [Int]) -> [[Int]] {
    var runs: [[Int]] = []
    Strides(shape, strides).forEachRun { runs.append([$0, $1, $2]) }
    return runs
}

@Test func rowsWithoutPaddingAreOneRun() {
    #expect(runs([2, 3, 4], [12, 4, 1]) == [[0, 0, 24]])
    #expect(runs([1, 1, 4], [999, 999, 1]) == [[0, 0, 4]])  // a stride that is never taken
}

@Test func paddedRowsAreARunEach() {
    #expect(runs([2, 2, 3], [16, 8, 1]) == [[0, 0, 3], [8, 3, 3], [16, 6, 3], [24, 9, 3]])
    #expect(Strides([2, 2, 3], [16, 8, 1]).span == 27)
}

@Test func scatteredElementsAreARunEach() {
    #expect(runs([2, 2], [64, 32]) == [[0, 0, 1], [32, 1, 1], [64, 2, 1], [96, 3, 1]])
}

@Suite struct CompiledFolderTests {
    private let files = FileManager.default
    private let base: URL, package: URL, folder: CompiledFolder

    init() throws {
        base = files.temporaryDirectory.appendingPathComponent(UUID().uuidString)
        package = base.appendingPathComponent("layers.mlpackage")
        folder = CompiledFolder(url: base.appendingPathComponent("kept"))
        try files.createDirectory(at: package, withIntermediateDirectories: true)
        try write("one")
    }

    private func write(_ text: String) throws {
        try Data(text.utf8).write(to: package.appendingPathComponent("weights"))
    }

    /// What would compile: a new folder with the package's bytes.
    private func make() throws -> URL {
        let made = base.appendingPathComponent(UUID().uuidString)
        try files.copyItem(at: package, to: made)
        return made
    }

    @Test func anUnchangedPackageIsCompiledOnce() throws {
        let first = try folder.compiled(package, make: make)
        var again = false
        let second = try folder.compiled(package) { again = true; return try make() }
        #expect(first == second && !again && first.pathExtension == "mlmodelc")
        #expect(try files.contentsOfDirectory(atPath: folder.url.path) == [first.lastPathComponent])
    }

    @Test func aChangedPackageIsCompiledAgain() throws {
        let first = try folder.compiled(package, make: make)
        try write("another")
        let second = try folder.compiled(package, make: make)
        #expect(first != second)
        #expect(try String(contentsOf: second.appendingPathComponent("weights"), encoding: .utf8) == "another")
    }

    @Test func whereNothingCanBeKeptTheNewFolderIsTheAnswer() throws {
        try Data().write(to: folder.url)  // a file, where the folder should be
        let made = try make()
        #expect(try folder.compiled(package) { made } == made)
    }
}
