import Foundation
import Testing

@testable import AneBook
import AneBookExecutor

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

@Suite final class CompiledFolderTests {
    private let files = FileManager.default
    private let base: URL, package: URL, folder: CompiledFolder

    init() throws {
        base = files.temporaryDirectory.appendingPathComponent(UUID().uuidString)
        package = base.appendingPathComponent("layers.mlpackage")
        folder = CompiledFolder(url: base.appendingPathComponent("kept"))
        try files.createDirectory(at: package, withIntermediateDirectories: true)
        try write("one")
    }

    deinit { try? files.removeItem(at: base) }

    private func write(_ text: String) throws {
        try Data(text.utf8).write(to: package.appendingPathComponent("weights"))
    }

    private func function(seal: String = "one", folder: String = "Model") -> FunctionReference {
        var function = reference(package)
        (function.seal, function.folder) = (seal, folder)
        return function
    }

    /// What would compile: a new folder with the package's bytes.
    private func make() throws -> URL {
        let made = base.appendingPathComponent(UUID().uuidString)
        try files.copyItem(at: package, to: made)
        return made
    }

    private func kept(_ function: FunctionReference) throws -> URL {
        try folder.load(function, make: make) { $0 }
    }

    private var names: Set<String> {
        get throws { Set(try files.contentsOfDirectory(atPath: folder.url.path)) }
    }

    @Test func anUnchangedPackageIsCompiledOnce() throws {
        let first = try kept(function())
        var again = false
        let second = try folder.load(function()) { again = true; return try make() } load: { $0 }
        #expect(first == second && !again && first.pathExtension == "mlmodelc")
        #expect(try names == [first.lastPathComponent])
    }

    @Test func aChangedPackageIsCompiledAgainAndTheFormerOneRemoved() throws {
        let first = try kept(function())
        try write("another")
        let second = try kept(function())
        #expect(first != second)
        #expect(try String(contentsOf: second.appendingPathComponent("weights"), encoding: .utf8) == "another")
        #expect(try names == [second.lastPathComponent])
    }

    @Test func bundlesOfEqualSizesAndDatesDoNotShare() throws {
        let first = try kept(function())
        let other = try kept(function(seal: "two", folder: "Other"))
        #expect(first != other)
        #expect(try names == [first.lastPathComponent, other.lastPathComponent])
        let renewed = try kept(function(seal: "three"))  // in the first one's folder
        #expect(try names == [renewed.lastPathComponent, other.lastPathComponent])
    }

    @Test func whatCannotBeLoadedIsCompiledAgainOnce() throws {
        _ = try kept(function())
        var made = 0, loads = 0
        func load(refusing refused: Int) throws -> URL {
            (made, loads) = (0, 0)
            return try folder.load(function()) { made += 1; return try make() } load: { url in
                loads += 1
                if loads <= refused { throw AneBookError.invalidBundle("cannot be loaded") }
                return url
            }
        }
        _ = try load(refusing: 1)
        #expect((made, loads) == (1, 2))
        #expect(throws: AneBookError.self) { try load(refusing: 2) }
        #expect((made, loads) == (1, 2))
        try files.removeItem(at: folder.url)
        #expect(throws: AneBookError.self) { try load(refusing: 1) }  // what is new needs no second time
        #expect((made, loads) == (1, 1))
    }

    /// The seal names their bytes: a bundle that was downloaded again is the same.
    @Test func datesMatterOnlyWithoutASeal() throws {
        for (seal, date) in [("one", 9.0), ("", 10)] {
            let first = try kept(function(seal: seal))
            try files.setAttributes([.modificationDate: Date(timeIntervalSince1970: date)],
                ofItemAtPath: package.appendingPathComponent("weights").path)
            #expect(try (kept(function(seal: seal)) == first) == (seal == "one"))
        }
    }

    @Test func whatIsKeptOfBundlesThatAreGoneIsListed() throws {
        let small = try SmallBundle(), bundle = try ModelBundle(small.folder)
        let own = try bundle.manifest.packages.map { part in
            try kept(FunctionReference(bundle, part, part.functions["decode"]!, name: "decode"))
        }
        let gone = try kept(function())
        #expect(folder.others([bundle]) == [gone])
        #expect(Set(folder.others([])) == Set(own + [gone]))
        #expect(folder.others([]).allSatisfy { files.fileExists(atPath: $0.path) })
    }

    @Test func whereNothingCanBeKeptTheNewFolderIsTheAnswer() throws {
        try Data().write(to: folder.url)  // a file, where the folder should be
        let made = try make()
        #expect(try folder.load(function(), make: { made }, load: { $0 }) == made)
    }
}

/// What is refused by one processor goes to the CPU with all that is there before and after it.
@Suite struct PlacementTests {
    private var told: [String] = []

    /// Opens functions by name, of which some are refused elsewhere than on the CPU, or everywhere.
    private mutating func open(_ placement: Placement<String>, _ name: String, refused: [Bool] = []) throws
        -> Placement<String>.Place {
        try placement.open { onCPU in
            if refused.contains(onCPU) { throw AneBookError.invalidBundle("\(name) on \(onCPU)") }
            return "\(name) \(onCPU ? "cpu" : "ane")"
        } refused: { told.append("\($0)") }
    }

    @Test mutating func aRefusalMovesTheWholeBundle() throws {
        let placement = Placement<String>(onCPU: false)
        let first = try open(placement, "decode")
        #expect(first.model == "decode ane")
        let second = try open(placement, "prefill", refused: [false])
        let third = try open(placement, "head")
        #expect([first, second, third].map(\.model) == ["decode cpu", "prefill cpu", "head cpu"])
        #expect(told == ["prefill on false"])  // once, and the engine is asked no more
    }

    @Test mutating func whatTheCPURefusesTooIsAnErrorOfTheFirst() throws {
        let placement = Placement<String>(onCPU: false), first = try open(placement, "decode")
        #expect(refusal { _ = try open(placement, "prefill", refused: [true, false]) } == "prefill on false")
        #expect(first.model == "decode ane" && told.isEmpty)
        #expect(refusal { _ = try open(Placement(onCPU: true), "x", refused: [true]) } == "x on true")
    }

    @Test mutating func afterAStateIsMadeNothingMoves() throws {
        let placement = Placement<String>(onCPU: false), first = try open(placement, "decode")
        placement.begun = true
        #expect(try open(placement, "expert", refused: [false]).model == "expert cpu")
        #expect(first.model == "decode ane" && told == ["expert on false"])
    }
}

private func reference(_ package: URL) -> FunctionReference {
    let type = { Manifest.TensorSpec(dtype: $0, shape: [1, 4]) }
    let spec = Manifest.FunctionSpec(
        tokens: 1, slots: nil, inputs: ["x": type(.half), "position": type(.integer)],
        states: ["keys": type(.half)], outputs: ["y": type(.half)])
    return FunctionReference(package: package, name: "decode", spec: spec)
}

@Test func whatAPackageHasIsHeldToItsManifest() throws {
    let function = reference(URL(fileURLWithPath: "/a.mlpackage")), spec = function.spec
    func told(_ change: (inout [String: [String: Manifest.TensorSpec?]]) -> Void) -> String {
        var all: [String: [String: Manifest.TensorSpec?]] = [
            "inputs": spec.inputs, "states": spec.states, "outputs": spec.outputs]
        change(&all)
        return refusal {
            try function.check(
                inputs: all["inputs"] ?? [:], states: all["states"] ?? [:], outputs: all["outputs"] ?? [:])
        }
    }
    func sentence(_ what: String) -> String {
        "/a.mlpackage: the function decode has \(what); convert the model again"
    }
    #expect(told { _ in } == "")
    #expect(told { $0["outputs"]?["y"] = Manifest.TensorSpec(dtype: .half, shape: []) } == "")
    #expect(told { $0["inputs"]?["x"] = nil } == sentence("no input x"))
    #expect(told { $0["states"]?["more"] = spec.states["keys"] }
        == sentence("the state more, of which its manifest says nothing"))
    #expect(told { $0["outputs"]?["y"] = Manifest.TensorSpec(dtype: .single, shape: [1, 4]) }
        == sentence("the output y, fp32 [1, 4], where its manifest says fp16 [1, 4]"))
    #expect(told { $0["states"]?["keys"] = Manifest.TensorSpec(dtype: .half, shape: [4]) }
        == sentence("the state keys, fp16 [4], where its manifest says fp16 [1, 4]"))
    #expect(told { $0["inputs"]?["position"] = .some(nil) }
        == sentence("the input position, of another type, where its manifest says int32 [1, 4]"))
}

#if os(macOS) || os(Linux)
@Suite struct ExecutorTests {
    /// The sentences of three calls of a function by a process that answers with these lines.
    private func told(_ answers: String) throws -> [String] {
        let script = #"read x; echo '{"function": 0}'; "# + answers + "; cat >/dev/null"
        let programs = try ExecutorPredictor(command: ["sh", "-c", script]).open()
        let function = reference(URL(fileURLWithPath: "/a.mlpackage")), output = Tensor(.half, [1, 4])
        let loaded = try programs.load(function, inputs: [:], outputs: ["y": output])
        return (0..<3).map { _ in refusal { try loaded.predict(nil) } }
    }

    @Test(arguments: [
        #"echo '{"bytes": 9}'; echo 123456789"#, "echo nonsense; echo '{}'", #"echo '{"error": "no", "bytes": 3}'"#,
        #"echo '{"bytes": "8"}'"#, "exec true",
    ])
    func afterAnAnswerThatIsNoneEachCallSaysSo(_ answers: String) throws {
        let told = try told(answers)
        #expect(told[0].contains("the executor's process has ended, or says what it should not"))
        #expect(told[1...] == [told[0], told[0]])
    }

    @Test func afterAnErrorThatIsOneTheNextCallIsMade() throws {
        let told = try told(#"echo '{"error": "no"}'; read x; printf '{"bytes": 8}\n12345678{"error": "again"}\n'"#)
        #expect(told == ["no", "", "again"])
    }
}
#endif
