import Foundation

/// A way to run the programs of bundles: on Core ML, in the executor's process, from a recording.
public protocol Predictor: Sendable {
    /// Opens it for one session, on whose thread everything stays that it gives.
    func open() throws -> any Programs
}

/// A predictor at work for one session.
public protocol Programs: AnyObject {
    /// Loads a function, and ties it to the memory of its inputs and outputs for as long as it lives.
    ///
    /// The tensors have the types that `function` declares. Throws `AneBookError.invalidBundle`
    /// where the package has no such function.
    func load(_ function: FunctionReference, inputs: [String: Tensor], outputs: [String: Tensor]) throws
        -> any LoadedFunction
}

/// A function of a package, ready to be called.
public protocol LoadedFunction: AnyObject {
    /// Zeroed states, good for every function of the package with states of these shapes.
    func makeState() throws -> any ProgramState

    /// Runs the function on what its inputs hold; then its outputs, and the state, are up to date.
    func predict(_ state: (any ProgramState)?) throws
}

/// The states of a program between calls.
public protocol ProgramState: AnyObject {
    /// Copies the bytes of a state into a tensor of its type.
    func read(_ name: String, into tensor: Tensor) throws
    /// Replaces a state by the bytes of a tensor of its type.
    func write(_ name: String, from tensor: Tensor) throws
}

/// Which function of which package.
public struct FunctionReference: Sendable {
    /// The package, or its compiled form.
    public let package: URL
    /// The name of the function in the package.
    public let name: String
    public let spec: Manifest.FunctionSpec
    /// The bundle's seal and the name of its folder: which conversion the package is of, and where
    /// another one takes its place.
    var seal = "", folder = ""

    init(_ bundle: ModelBundle, _ part: Manifest.Part, _ spec: Manifest.FunctionSpec, name: String) {
        (package, self.name, self.spec) = (bundle.program(part), name, spec)
        (seal, folder) = (bundle.manifest.seal ?? "", bundle.url.lastPathComponent)
    }

    init(package: URL, name: String, spec: Manifest.FunctionSpec) {
        (self.package, self.name, self.spec) = (package, name, spec)
    }

    /// Throws `invalidBundle` for the first feature that the manifest and the package, as whoever
    /// runs it describes it, do not have alike.
    ///
    /// described: nil for a feature that is no array of a type here; a shape [] says nothing.
    func check(inputs: [String: Manifest.TensorSpec?], states: [String: Manifest.TensorSpec?],
        outputs: [String: Manifest.TensorSpec?]) throws {
        for (kind, own, described) in [
            ("input", spec.inputs, inputs), ("state", spec.states, states), ("output", spec.outputs, outputs),
        ] {
            for feature in Set(own.keys).union(described.keys).sorted() {
                guard let type = own[feature] else {
                    throw misfit("has the \(kind) \(feature), of which its manifest says nothing")
                }
                guard let found = described[feature] else { throw misfit("has no \(kind) \(feature)") }
                guard let found, found.dtype == type.dtype, [[], type.shape].contains(found.shape) else {
                    let form = found.map { "\($0.dtype.rawValue) \($0.shape)" } ?? "of another type"
                    throw misfit("has the \(kind) \(feature), \(form), where its manifest says "
                        + "\(type.dtype.rawValue) \(type.shape)")
                }
            }
        }
    }

    func misfit(_ what: String) -> AneBookError {
        .invalidBundle("\(package.path): the function \(name) \(what); convert the model again")
    }
}
