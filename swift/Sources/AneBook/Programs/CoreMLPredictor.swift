#if canImport(CoreML)
import CoreML
import Foundation
import ObjectiveC

/// Runs programs on Core ML.
///
/// Unmeasured: its calls are type-checked against what Apple documents (`Stubs`), and have not run
/// on a Mac by this project.
public struct CoreMLPredictor: Predictor {
    /// The processors that Core ML may use; the names after them are those of the command line.
    ///
    /// Not all of them: with `.all`, Core ML may abort the process on macOS (ultralytics, pull
    /// request 24885) or be slower (ml-stable-diffusion, issue 122).
    public enum Units: String, Sendable {
        /// Of the processors but the CPU, the one that an app may use in the background on iOS. On
        /// a Mac without it, such as a virtual one, Core ML may look for it for half an hour
        /// (soniqo/speech-swift, pull request 286): where it names none, the CPU is asked for.
        case cpuAndNeuralEngine = "ane"
        case cpuAndGPU = "gpu"
        case cpuOnly = "cpu"

        var coreML: MLComputeUnits {
            switch self {
            case .cpuAndNeuralEngine: .cpuAndNeuralEngine
            case .cpuAndGPU: .cpuAndGPU
            case .cpuOnly: .cpuOnly
            }
        }
    }

    let units: Units
    let folder: CompiledFolder
    let onWarning: @Sendable (String) -> Void
    let configure: @Sendable (MLModelConfiguration) -> Void

    /// folder: where compiled packages are kept; nil: among the app's caches.
    /// onWarning: told in a sentence when Core ML does less than asked for. configure: sets what else
    /// a model's configuration has, such as optimization hints; units and function are set after it.
    public init(
        _ units: Units = .cpuAndNeuralEngine, folder: URL? = nil,
        onWarning: @escaping @Sendable (String) -> Void = {
            FileHandle.standardError.write(Data("Warning: \($0)\n".utf8))
        },
        configure: @escaping @Sendable (MLModelConfiguration) -> Void = { _ in }
    ) {
        let files = FileManager.default
        let caches = files.urls(for: .cachesDirectory, in: .userDomainMask).first ?? files.temporaryDirectory
        self.folder = CompiledFolder(url: folder ?? caches.appendingPathComponent("AneBook"))
        (self.units, self.onWarning, self.configure) = (units, onWarning, configure)
    }

    public func open() throws -> any Programs { CoreMLPrograms(self) }

    /// Compiled packages that were kept and are of none of these bundles: of bundles that are gone,
    /// or were renewed. Whoever removes one loses no more than the time to compile it again.
    public func compiled(butOf bundles: [ModelBundle]) -> [URL] { folder.others(bundles) }
}

private final class CoreMLPrograms: Programs {
    private let predictor: CoreMLPredictor
    private var compiled: [URL: URL] = [:]  // package -> its compiled form
    private let placement: Placement<MLModel>

    init(_ predictor: CoreMLPredictor) {
        let engine = MLModel.availableComputeDevices.contains { if case .neuralEngine = $0 { true } else { false } }
        let lacks = predictor.units == .cpuAndNeuralEngine && !engine
        if lacks { predictor.onWarning("Core ML names no Neural Engine on this machine; programs run on the CPU, slowly") }
        (self.predictor, placement) = (predictor, Placement(onCPU: lacks || predictor.units == .cpuOnly))
    }

    func load(_ function: FunctionReference, inputs: [String: Tensor], outputs: [String: Tensor]) throws
        -> any LoadedFunction {
        let place = try open(function)
        do { try function.check(place.model.modelDescription) } catch let error as AneBookError {
            predictor.onWarning("\(error.message), unless Core ML describes another function than the one "
                + "that was named (no Mac has told)")
        }
        return try CoreMLFunction(place, placement, function, inputs: inputs, outputs: outputs)
    }

    /// Loads from a compiled package as it lies, or from what was compiled of it before, or is now.
    private func open(_ function: FunctionReference) throws -> Placement<MLModel>.Place {
        let package = function.package
        if package.pathExtension == "mlmodelc" { return try place(package, function) }
        if let url = compiled[package] { return try place(url, function) }
        return try predictor.folder.load(function) {
            // The form that waits, deprecated by macOS 27: the asynchronous one would need a thread
            // that waits for it, and a session has one of its own.
            do { return try MLModel.compileModel(at: package) } catch { throw function.refused("compile", error) }
        } load: { url in
            let place = try place(url, function)
            compiled[package] = url
            return place
        }
    }

    /// Some systems refuse a model on one processor and take it on another (whisper.cpp, issue 3914,
    /// on iOS 27 beta): then the bundle's programs run on the CPU.
    private func place(_ url: URL, _ function: FunctionReference) throws -> Placement<MLModel>.Place {
        let predictor = predictor
        return try placement.open { onCPU in
            let configuration = MLModelConfiguration()
            predictor.configure(configuration)
            configuration.computeUnits = onCPU ? .cpuOnly : predictor.units.coreML
            // nil is the package's default function (documentation/coreml/mlmodelconfiguration/functionname).
            // Those of a bundle are all described by name, also one that is alone.
            configuration.functionName = function.name
            do { return try MLModel(contentsOf: url, configuration: configuration) } catch {
                throw function.refused("load", error)
            }
        } refused: { predictor.onWarning("\($0); the bundle's programs run on the CPU, slowly") }
    }
}

private final class CoreMLFunction: LoadedFunction {
    private let place: Placement<MLModel>.Place, placement: Placement<MLModel>, function: FunctionReference
    private let inputs: MLDictionaryFeatureProvider, options = MLPredictionOptions()
    private let outputs: [(name: String, tensor: Tensor, backing: MLMultiArray)]
    private let kept: [Tensor]  // whose memory Core ML reads

    init(_ place: Placement<MLModel>.Place, _ placement: Placement<MLModel>, _ function: FunctionReference,
        inputs: [String: Tensor], outputs: [String: Tensor]) throws {
        (self.place, self.placement, self.function, kept) = (place, placement, function, Array(inputs.values))
        do {
            // An array over memory that is given copies nothing, so a call should read what the
            // memory holds then (unmeasured: nothing documented says that a call keeps no copy).
            self.inputs = try MLDictionaryFeatureProvider(
                dictionary: inputs.mapValues { MLFeatureValue(multiArray: try $0.multiArray()) })
            self.outputs = try outputs.map { ($0, $1, try $1.multiArray()) }
        } catch {
            throw function.refused("take the memory of", error)
        }
        options.outputBackings = Dictionary(uniqueKeysWithValues: self.outputs.map { ($0.name, $0.backing) })
    }

    func makeState() throws -> any ProgramState {
        placement.begun = true
        return CoreMLState(place.model.makeState(), function)
    }

    func predict(_ state: (any ProgramState)?) throws {
        // What Core ML makes in a call is released with it, not whenever the thread next rests.
        try autoreleasepool {
            let results: any MLFeatureProvider
            do {
                if let state = state as? CoreMLState {
                    results = try place.model.prediction(from: inputs, using: state.state, options: options)
                } else {
                    results = try place.model.prediction(from: inputs, options: options)
                }
            } catch {
                throw function.refused("run", error)
            }
            for (name, tensor, backing) in outputs {
                guard let array = results.featureValue(for: name)?.multiArrayValue else {
                    throw function.misfit("gives no output \(name)")
                }
                // Core ML may use another array than the one proposed; "to check if the backing object
                // was used, compare the output prediction and the backing object by object identity"
                // (MLPredictionOptions.h).
                if array !== backing { try tensor.exchange(array, function, reading: true) }
            }
        }
    }
}

/// The states of a package, made by one of its functions and taken by all (unmeasured).
private final class CoreMLState: ProgramState {
    let state: MLState
    private let function: FunctionReference

    init(_ state: MLState, _ function: FunctionReference) { (self.state, self.function) = (state, function) }

    func read(_ name: String, into tensor: Tensor) throws {
        try state.withMultiArray(for: name) { try tensor.exchange($0, function, reading: true) }
    }

    func write(_ name: String, from tensor: Tensor) throws {
        try state.withMultiArray(for: name) { try tensor.exchange($0, function, reading: false) }
    }
}

extension ElementType {
    fileprivate var coreML: MLMultiArrayDataType {
        switch self {
        case .half: .float16
        case .single: .float32
        case .integer: .int32
        }
    }
}

extension Tensor {
    /// An array of Core ML over this tensor's memory, which the tensor must outlive.
    fileprivate func multiArray() throws -> MLMultiArray {
        guard let base = bytes.baseAddress else { throw AneBookError.invalidInput("a tensor without memory") }
        var strides = [Int](repeating: 1, count: shape.count)
        for axis in stride(from: shape.count - 2, through: 0, by: -1) {
            strides[axis] = strides[axis + 1] * shape[axis + 1]
        }
        return try MLMultiArray(
            dataPointer: base, shape: shape.map { NSNumber(value: $0) }, dataType: type.coreML,
            strides: strides.map { NSNumber(value: $0) }, deallocator: nil)
    }

    /// Copies from an array of Core ML, or to it; its rows may be padded.
    fileprivate func exchange(_ array: MLMultiArray, _ function: FunctionReference, reading: Bool) throws {
        guard array.dataType == type.coreML, array.shape.map(\.intValue) == shape else {
            throw function.misfit("has \(array.shape) where its manifest says \(type.rawValue) \(shape)")
        }
        // These strides, and not those of the array: they "may be different" until its memory is
        // asked for (documentation/coreml/mlmultiarray/withunsafemutablebytes(_:)).
        try array.withUnsafeMutableBytes { there, strides in
            let layout = Strides(shape, strides), size = type.size
            guard let from = there.baseAddress, let to = bytes.baseAddress, from != to else { return }
            guard layout.span * size <= there.count else { throw function.misfit("gives too little memory") }
            layout.forEachRun { other, own, count in
                let (other, own) = (from + other * size, to + own * size)
                memcpy(reading ? own : other, reading ? other : own, count * size)
            }
        }
    }
}

extension FunctionReference {
    /// Throws where Core ML describes other features than the manifest (unmeasured: that this is the
    /// description of the function which the configuration names).
    fileprivate func check(_ model: MLModelDescription) throws {
        func type(_ type: MLMultiArrayDataType?, _ shape: [Int]?) -> Manifest.TensorSpec? {
            let element = [ElementType.half, .single, .integer].first { $0.coreML == type }
            return element.map { Manifest.TensorSpec(dtype: $0, shape: shape ?? []) }
        }
        func array(_ feature: MLFeatureDescription) -> Manifest.TensorSpec? {
            let form = feature.multiArrayConstraint
            return type(form?.dataType, form?.shape.map(\.intValue))
        }
        try check(
            inputs: model.inputDescriptionsByName.mapValues(array),
            states: model.stateDescriptionsByName.mapValues {
                type($0.stateConstraint?.dataType, $0.stateConstraint?.bufferShape)
            },
            outputs: model.outputDescriptionsByName.mapValues(array))
    }

    fileprivate func refused(_ verb: String, _ error: any Error) -> AneBookError {
        let text = "\(package.path): Core ML cannot \(verb) its function \(name): \(error.reason)"
        return verb == "run" ? .backendUnavailable(text) : .invalidBundle(text)
    }
}
#endif
