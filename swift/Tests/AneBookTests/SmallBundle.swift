import Foundation

@testable import AneBook

/// A bundle of two packages that are not there, for programs that count: the token after i is i + 1.
final class SmallBundle {
    static let channels = 4, vocabulary = 260, context = 16
    let folder: URL
    let manifest: [String: Any]

    init(_ form: Manifest.Layout = .rows, change: (inout [String: Any]) -> Void = { _ in }) throws {
        folder = FileManager.default.temporaryDirectory.appendingPathComponent("small-\(UUID())")
        let layers = Self.function(slots: Self.context) { tokens in
            let keys = form == .rows ? [1, 1, 0, 2] : [1, 2, 1, 0], mask = Self.context + tokens
            return (["hidden": [1, 4, 1, tokens], "keys": form.sized(keys, Self.context),
                "mask": form == .rows ? [1, 1, tokens, mask] : [1, mask, 1, tokens]],
                ["hidden_out": [1, 4, 1, tokens], "new_keys": form.sized(keys, tokens)])
        }
        let head = Self.function(slots: nil) { tokens in
            (["hidden": [1, 4, 1, tokens]], ["logits_0": [1, Self.vocabulary, 1, tokens]])
        }
        let table = Data([0x93] + "NUMPY".utf8 + [1, 0, 118, 0]) + Data(
            "{'descr': '<f2', 'fortran_order': False, 'shape': (260, 4), }".padding(toLength: 117, withPad: " ", startingAt: 0).utf8 + [10])
        let rows = (0..<Self.vocabulary).flatMap { [Float16($0), 0, 0, 0].map(\.bitPattern.littleEndian) }
        let files: [String: Data] = [
            "embedding.npy": table + rows.withUnsafeBytes { Data($0) },
            "tokenizer.bin": Data(SmallTokenizer().file()),
            "layers.mlpackage/Manifest.json": Data("{}".utf8),
            "head.mlpackage/Manifest.json": Data("{}".utf8),
        ]
        for (name, data) in files {
            let file = folder.appendingPathComponent(name)
            try FileManager.default.createDirectory(at: file.deletingLastPathComponent(), withIntermediateDirectories: true)
            try data.write(to: file)
        }
        var manifest: [String: Any] = [
            "format": Manifest.format, "name": "small", "task": "text-generation", "form": form.rawValue, "context": Self.context,
            "packages": [
                ["package": "layers.mlpackage", "part": "layers", "layers": [0, 1], "functions": layers],
                ["package": "head.mlpackage", "part": "head", "functions": head],
            ],
            "embedding": ["file": "embedding.npy", "shape": [Self.vocabulary, Self.channels]],
            "host": ["embedding_scale": 1, "rotary": [String: Any](), "masks": ["mask": NSNull()]],
            "tokenizer": ["packed": "tokenizer.bin", "eos_token_ids": [258]],
            "files": files.mapValues(\.count),
        ]
        change(&manifest)
        self.manifest = manifest
        try JSONSerialization.data(withJSONObject: manifest).write(to: folder.appendingPathComponent("manifest.json"))
    }

    deinit { try? FileManager.default.removeItem(at: folder) }

    func session(_ predictor: any Predictor = CountingPredictor()) throws -> Session {
        try Session(ModelBundle(folder), predictor: predictor)
    }

    private static func function(slots: Int?, _ types: (Int) -> ([String: [Int]], [String: [Int]])) -> [String: Any] {
        func specs(_ shapes: [String: [Int]]) -> [String: Any] {
            shapes.mapValues { ["dtype": "fp16", "shape": $0] as [String: Any] }
        }
        return ["decode": 1, "prefill": 4].mapValues { tokens in
            let (inputs, outputs) = types(tokens)
            return ["tokens": tokens, "slots": slots ?? NSNull(), "inputs": specs(inputs), "outputs": specs(outputs),
                "states": [String: Any]()] as [String: Any]
        }
    }
}

/// Programs that count: the layers pass the hidden state on, and the head's likeliest token is the
/// one after the number in the first channel.
struct CountingPredictor: Predictor {
    /// Called before each call of a program, with its number.
    var before: @Sendable (Int) -> Void = { _ in }
    /// Called before each function is loaded, with its name.
    var loading: @Sendable (String) -> Void = { _ in }

    func open() -> any Programs { Counting(before, loading) }

    private final class Counting: Programs {
        private let before: @Sendable (Int) -> Void, loading: @Sendable (String) -> Void
        private var calls = 0

        init(_ before: @escaping @Sendable (Int) -> Void, _ loading: @escaping @Sendable (String) -> Void) {
            (self.before, self.loading) = (before, loading)
        }

        func load(_ function: FunctionReference, inputs: [String: Tensor], outputs: [String: Tensor])
            -> any LoadedFunction {
            loading("\(function.package.deletingPathExtension().lastPathComponent) \(function.name)")
            return Function(self, inputs, outputs)
        }

        func count() {
            before(calls)
            calls += 1
        }
    }

    private final class Function: LoadedFunction {
        private let programs: Counting, inputs: [String: Tensor], outputs: [String: Tensor]

        init(_ programs: Counting, _ inputs: [String: Tensor], _ outputs: [String: Tensor]) {
            (self.programs, self.inputs, self.outputs) = (programs, inputs, outputs)
        }

        func makeState() throws -> any ProgramState { throw AneBookError.invalidInput("no states") }

        func predict(_ state: (any ProgramState)?) {
            programs.count()
            guard let hidden = inputs["hidden"] else { return }
            if let out = outputs["hidden_out"] { out.bytes.copyMemory(from: UnsafeRawBufferPointer(hidden.bytes)) }
            if let logits = outputs["logits_0"] {
                logits.clear()
                let tokens = hidden.shape[3]
                for t in 0..<tokens { logits.halfs[(Int(hidden.halfs[t]) + 1) % 256 * tokens + t] = 1 }
            }
        }
    }
}
