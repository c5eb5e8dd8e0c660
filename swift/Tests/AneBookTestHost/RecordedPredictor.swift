import AneBook
import Foundation

/// Replays calls that Python wrote down (`swift_tables.recording`), with no program at all.
///
/// Every call has to be the next one of the recording, with the same inputs to the bit: so a test
/// holds a host to Python's without Core ML, and without Python.
final class RecordedPredictor: Predictor {
    private let calls: [Call], arrays: MappedFile

    /// Throws `invalidInput` where the folder is no recording.
    init(_ folder: URL) throws {
        arrays = try MappedFile(folder.appendingPathComponent("arrays.bin"))
        let lines = try MappedFile(folder.appendingPathComponent("calls.jsonl")).withBytes {
            $0.split(separator: 0x0A).map { Data($0) }
        }
        do { calls = try lines.map { try decode(Call.self, from: $0) } } catch {
            throw AneBookError.invalidInput("\(folder.path)/calls.jsonl: \(error)")
        }
        let places = calls.flatMap { [$0.inputs, $0.outputs].flatMap(\.values) }
        guard places.allSatisfy({ $0.start >= 0 && $0.bytes >= 0 && $0.start <= arrays.count - $0.bytes }) else {
            throw AneBookError.invalidInput("\(folder.path)/arrays.bin is shorter than calls.jsonl says")
        }
    }

    func open() throws -> any Programs { Replay(calls, arrays) }

    struct Call: Codable, Sendable {
        struct Place: Codable, Sendable { let start: Int, bytes: Int }
        let package: String, function: String
        let inputs: [String: Place], outputs: [String: Place]
    }

    private final class Replay: Programs {
        private var left: ArraySlice<Call>
        private let arrays: MappedFile

        init(_ calls: [Call], _ arrays: MappedFile) { (left, self.arrays) = (calls[...], arrays) }

        func load(_ function: FunctionReference, inputs: [String: Tensor], outputs: [String: Tensor]) throws
            -> any LoadedFunction {
            Function(self, function, inputs, outputs)
        }

        func play(_ function: FunctionReference, _ inputs: [String: Tensor], _ outputs: [String: Tensor]) throws {
            let name = "\(function.package.deletingPathExtension().lastPathComponent), \(function.name)"
            guard let call = left.popFirst() else { throw differs("\(name): the recording ends before this call") }
            let package = URL(fileURLWithPath: call.package).deletingPathExtension().lastPathComponent
            guard (package, call.function) == (function.package.deletingPathExtension().lastPathComponent, function.name)
            else { throw differs("\(name) is called, and in the recording \(package), \(call.function)") }
            try arrays.withBytes { bytes in
                for (key, tensor) in inputs {
                    guard let place = call.inputs[key], place.bytes == tensor.bytes.count,
                        bytes[place.start..<(place.start + place.bytes)].elementsEqual(tensor.bytes)
                    else { throw differs("\(name): the input \(key) is not the recorded one") }
                }
                for (key, tensor) in outputs {
                    guard let place = call.outputs[key], place.bytes == tensor.bytes.count else {
                        throw differs("\(name): the recording has no output \(key) of \(tensor.shape)")
                    }
                    tensor.bytes.copyBytes(from: bytes[place.start..<(place.start + place.bytes)])
                }
            }
        }

        private func differs(_ what: String) -> AneBookError { .invalidInput(what) }
    }

    private final class Function: LoadedFunction, ProgramState {
        private let replay: Replay, reference: FunctionReference
        private let inputs: [String: Tensor], outputs: [String: Tensor]

        init(_ replay: Replay, _ reference: FunctionReference, _ inputs: [String: Tensor], _ outputs: [String: Tensor]) {
            (self.replay, self.reference, self.inputs, self.outputs) = (replay, reference, inputs, outputs)
        }

        func predict(_ state: (any ProgramState)?) throws { try replay.play(reference, inputs, outputs) }

        // What is in a state, the recording does not say: the outputs are those that came of it.
        func makeState() throws -> any ProgramState { self }
        func read(_ name: String, into tensor: Tensor) throws {}
        func write(_ name: String, from tensor: Tensor) throws {}
    }
}
