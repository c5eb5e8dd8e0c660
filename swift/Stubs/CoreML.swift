// What AneBook uses of Core ML. Each declaration follows its page on developer.apple.com.
//
// No class is Sendable here but `MLState`: their headers say NS_SWIFT_SENDABLE of it alone, as read
// in the bindings generated from them (docs.rs/objc2-core-ml 0.3.2, `unsafe impl Send`).
import Foundation

// documentation/coreml/mlmodel
open class MLModel: NSObject {
    // documentation/coreml/mlmodel/init(contentsof:configuration:) (not read)
    public convenience init(contentsOf url: URL, configuration: MLModelConfiguration) throws { fatalError() }
    // documentation/coreml/mlmodel/compilemodel(at:)-6442s
    open class func compileModel(at modelURL: URL) throws -> URL { fatalError() }
    // documentation/coreml/mlmodel/compilemodel(at:)-45ao6
    public class func compileModel(at url: URL) async throws -> URL { fatalError() }
    // documentation/coreml/mlmodel/prediction(from:options:)-81mr6
    open func prediction(from input: any MLFeatureProvider, options: MLPredictionOptions) throws -> any MLFeatureProvider { fatalError() }
    // documentation/coreml/mlmodel/prediction(from:options:)-3vg03
    public func prediction(from input: any MLFeatureProvider, options: MLPredictionOptions = MLPredictionOptions()) async throws -> any MLFeatureProvider { fatalError() }
    // documentation/coreml/mlmodel/prediction(from:using:options:)
    open func prediction(from inputFeatures: any MLFeatureProvider, using state: MLState, options: MLPredictionOptions) throws -> any MLFeatureProvider { fatalError() }
    // documentation/coreml/mlmodel/makestate()
    public func makeState() -> MLState { fatalError() }
    // documentation/coreml/mlmodel/availablecomputedevices (not read)
    public class var availableComputeDevices: [MLComputeDevice] { fatalError() }
    // documentation/coreml/mlmodel/modeldescription
    open var modelDescription: MLModelDescription { fatalError() }
}

// documentation/coreml/mlcomputedevice
public enum MLComputeDevice {
    // documentation/coreml/mlcomputedevice/cpu(_:)
    case cpu(MLCPUComputeDevice)
    // documentation/coreml/mlcomputedevice/gpu(_:)
    case gpu(MLGPUComputeDevice)
    // documentation/coreml/mlcomputedevice/neuralengine(_:)
    case neuralEngine(MLNeuralEngineComputeDevice)
}

// documentation/coreml/mlcpucomputedevice (not read)
open class MLCPUComputeDevice: NSObject {}
// documentation/coreml/mlgpucomputedevice (not read)
open class MLGPUComputeDevice: NSObject {}
// documentation/coreml/mlneuralenginecomputedevice (not read)
open class MLNeuralEngineComputeDevice: NSObject {}

// documentation/coreml/mlmodeldescription
open class MLModelDescription: NSObject {
    // documentation/coreml/mlmodeldescription/inputdescriptionsbyname
    open var inputDescriptionsByName: [String: MLFeatureDescription] { fatalError() }
    // documentation/coreml/mlmodeldescription/outputdescriptionsbyname (not read)
    open var outputDescriptionsByName: [String: MLFeatureDescription] { fatalError() }
    // documentation/coreml/mlmodeldescription/statedescriptionsbyname
    open var stateDescriptionsByName: [String: MLFeatureDescription] { fatalError() }
}

// documentation/coreml/mlfeaturedescription
open class MLFeatureDescription: NSObject {
    // documentation/coreml/mlfeaturedescription/multiarrayconstraint (not read)
    open var multiArrayConstraint: MLMultiArrayConstraint? { fatalError() }
    // documentation/coreml/mlfeaturedescription/stateconstraint
    open var stateConstraint: MLStateConstraint? { fatalError() }
}

// documentation/coreml/mlmultiarrayconstraint
open class MLMultiArrayConstraint: NSObject {
    // documentation/coreml/mlmultiarrayconstraint/shape (not read)
    open var shape: [NSNumber] { fatalError() }
    // documentation/coreml/mlmultiarrayconstraint/datatype (not read)
    open var dataType: MLMultiArrayDataType { fatalError() }
}

// documentation/coreml/mlstateconstraint
open class MLStateConstraint: NSObject {
    // documentation/coreml/mlstateconstraint/buffershape-4zb3w
    public var bufferShape: [Int] { fatalError() }
    // documentation/coreml/mlstateconstraint/datatype
    open var dataType: MLMultiArrayDataType { fatalError() }
}

// documentation/coreml/mlmodelconfiguration
open class MLModelConfiguration: NSObject {
    // documentation/coreml/mlmodelconfiguration/computeunits
    open var computeUnits: MLComputeUnits { get { fatalError() } set {} }
    // documentation/coreml/mlmodelconfiguration/functionname
    open var functionName: String? { get { fatalError() } set {} }
}

// documentation/coreml/mlcomputeunits
@frozen public enum MLComputeUnits: Int, Sendable {
    // documentation/coreml/mlcomputeunits/cpuonly
    case cpuOnly = 0
    // documentation/coreml/mlcomputeunits/cpuandgpu
    case cpuAndGPU = 1
    // documentation/coreml/mlcomputeunits/all
    case all = 2
    // documentation/coreml/mlcomputeunits/cpuandneuralengine
    case cpuAndNeuralEngine = 3
}

// documentation/coreml/mlstate
public final class MLState: NSObject, @unchecked Sendable {
    // documentation/coreml/mlstate/withmultiarray(for:_:)
    public func withMultiArray<R>(for stateName: String, _ body: (MLMultiArray) throws -> R) rethrows -> R { fatalError() }
}

// documentation/coreml/mlpredictionoptions
open class MLPredictionOptions: NSObject {
    // documentation/coreml/mlpredictionoptions/outputbackings
    open var outputBackings: [String: Any] { get { fatalError() } set {} }
}

// documentation/coreml/mlfeatureprovider (not read)
public protocol MLFeatureProvider {
    // documentation/coreml/mlfeatureprovider/featurevalue(for:) (not read)
    func featureValue(for featureName: String) -> MLFeatureValue?
}

// documentation/coreml/mldictionaryfeatureprovider
open class MLDictionaryFeatureProvider: NSObject, MLFeatureProvider {
    // documentation/coreml/mldictionaryfeatureprovider/init(dictionary:)
    public init(dictionary: [String: Any]) throws { fatalError() }
    // documentation/coreml/mlfeatureprovider/featurevalue(for:) (not read)
    open func featureValue(for featureName: String) -> MLFeatureValue? { fatalError() }
}

// documentation/coreml/mlfeaturevalue
open class MLFeatureValue: NSObject {
    // documentation/coreml/mlfeaturevalue/init(multiarray:)
    public convenience init(multiArray value: MLMultiArray) { fatalError() }
    // documentation/coreml/mlfeaturevalue/multiarrayvalue (not read)
    open var multiArrayValue: MLMultiArray? { fatalError() }
}

// documentation/coreml/mlmultiarray
open class MLMultiArray: NSObject {
    // documentation/coreml/mlmultiarray/init(datapointer:shape:datatype:strides:deallocator:)
    public init(dataPointer: UnsafeMutableRawPointer, shape: [NSNumber], dataType: MLMultiArrayDataType, strides: [NSNumber], deallocator: ((UnsafeMutableRawPointer) -> Void)? = nil) throws { fatalError() }
    // documentation/coreml/mlmultiarray/datatype (not read)
    open var dataType: MLMultiArrayDataType { fatalError() }
    // documentation/coreml/mlmultiarray/shape (not read)
    open var shape: [NSNumber] { fatalError() }
    // documentation/coreml/mlmultiarray/withunsafemutablebytes(_:)
    public func withUnsafeMutableBytes<R>(_ body: (UnsafeMutableRawBufferPointer, [Int]) throws -> R) rethrows -> R { fatalError() }
}

// documentation/coreml/mlmultiarraydatatype
public enum MLMultiArrayDataType: Int, Sendable {
    // documentation/coreml/mlmultiarraydatatype/float16
    case float16 = 65552
    // documentation/coreml/mlmultiarraydatatype/float32
    case float32 = 65568
    // documentation/coreml/mlmultiarraydatatype/int32
    case int32 = 131104
}
