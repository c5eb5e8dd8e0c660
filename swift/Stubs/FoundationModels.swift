// What AneBook uses of Foundation Models 27. Each declaration follows its page on
// developer.apple.com. Where that is not read, it follows quotations of the SDK's interface in public
// repositories, and Apple's own adapter (github.com/apple/coreai-models, CoreAILanguageModel.swift),
// which uses all of it but the kinds of sampling. In the framework `respond(to:model:streamingInto:)`
// is `nonisolated(nonsending)`, which Swift 6.0 cannot say.
import Foundation

// documentation/foundationmodels/languagemodel
@available(macOS 27, iOS 27, *)
public protocol LanguageModel: Sendable {
    // documentation/foundationmodels/languagemodel/executor
    associatedtype Executor: LanguageModelExecutor where Executor.Model == Self
    // documentation/foundationmodels/languagemodel/capabilities
    var capabilities: LanguageModelCapabilities { get }
    // documentation/foundationmodels/languagemodel/executorconfiguration (not read)
    var executorConfiguration: Executor.Configuration { get }
}

// documentation/foundationmodels/languagemodelexecutor
@available(macOS 27, iOS 27, *)
public protocol LanguageModelExecutor: Sendable {
    // documentation/foundationmodels/languagemodelexecutor/configuration (not read)
    associatedtype Configuration: Hashable, Sendable
    // documentation/foundationmodels/languagemodelexecutor/model
    associatedtype Model: LanguageModel
    // documentation/foundationmodels/languagemodelexecutor/init(configuration:)
    init(configuration: Configuration) throws
    // documentation/foundationmodels/languagemodelexecutor/prewarm(model:transcript:)
    func prewarm(model: Model, transcript: Transcript)
    // documentation/foundationmodels/languagemodelexecutor/respond(to:model:streaminginto:)
    func respond(to request: LanguageModelExecutorGenerationRequest, model: Model, streamingInto channel: LanguageModelExecutorGenerationChannel) async throws
}

// No default of `prewarm` here, unlike the framework: so that a signature that differs is an error.

// documentation/foundationmodels/languagemodelcapabilities
@available(macOS 27, iOS 27, *)
public struct LanguageModelCapabilities: Sendable {
    // documentation/foundationmodels/languagemodelcapabilities/init(_:)
    public init(_ capabilities: [Capability]) { fatalError() }
    // documentation/foundationmodels/languagemodelcapabilities/capability
    public struct Capability: Sendable {}
}

// documentation/foundationmodels/languagemodelexecutorgenerationrequest
@available(macOS 27, iOS 27, *)
public struct LanguageModelExecutorGenerationRequest: Sendable {
    // documentation/foundationmodels/languagemodelexecutorgenerationrequest/transcript
    public var transcript: Transcript
    // documentation/foundationmodels/languagemodelexecutorgenerationrequest/generationoptions
    public var generationOptions: GenerationOptions
}

// documentation/foundationmodels/languagemodelexecutorgenerationchannel
@available(macOS 27, iOS 27, *)
public struct LanguageModelExecutorGenerationChannel: Sendable {
    // documentation/foundationmodels/languagemodelexecutorgenerationchannel/send(_:) (not read)
    public func send(_ event: Event) async { fatalError() }
    // documentation/foundationmodels/languagemodelexecutorgenerationchannel/event
    public struct Event: Sendable {
        // documentation/foundationmodels/languagemodelexecutorgenerationchannel/event/response(entryid:action:)
        public static func response(entryID: String? = nil, action: Response.Action) -> Event { fatalError() }
    }
    // documentation/foundationmodels/languagemodelexecutorgenerationchannel/response
    public struct Response: Sendable {
        // documentation/foundationmodels/languagemodelexecutorgenerationchannel/response/action-swift.struct (not read)
        public struct Action: Sendable {
            // documentation/foundationmodels/languagemodelexecutorgenerationchannel/response/action-swift.struct/appendtext(_:segmentid:tokencount:)
            public static func appendText(_ text: String, segmentID: String? = nil, tokenCount: Int) -> Action { fatalError() }
            // documentation/foundationmodels/languagemodelexecutorgenerationchannel/response/action-swift.struct/updateusage(input:output:metadata:)
            public static func updateUsage(input: Usage.Input, output: Usage.Output, metadata: [String: any ConvertibleToGeneratedContent] = [:]) -> Action { fatalError() }
        }
    }
    // documentation/foundationmodels/languagemodelexecutorgenerationchannel/usage
    public struct Usage: Sendable {
        // documentation/foundationmodels/languagemodelexecutorgenerationchannel/usage/input-swift.struct (not read)
        public struct Input: Sendable {
            // documentation/foundationmodels/languagemodelexecutorgenerationchannel (the example)
            public init(totalTokenCount: Int, cachedTokenCount: Int) { fatalError() }
        }
        // documentation/foundationmodels/languagemodelexecutorgenerationchannel/usage/output-swift.struct (not read)
        public struct Output: Sendable {
            // documentation/foundationmodels/languagemodelexecutorgenerationchannel (the example)
            public init(totalTokenCount: Int, reasoningTokenCount: Int) { fatalError() }
        }
    }
}

// documentation/foundationmodels/convertibletogeneratedcontent (not read)
public protocol ConvertibleToGeneratedContent {}

// documentation/foundationmodels/generationoptions
public struct GenerationOptions: Sendable {
    // documentation/foundationmodels/generationoptions/temperature (not read)
    public var temperature: Double?
    // documentation/foundationmodels/generationoptions/maximumresponsetokens (not read)
    public var maximumResponseTokens: Int?
    // documentation/foundationmodels/generationoptions/samplingmode-swift.property
    public var samplingMode: SamplingMode?
    // documentation/foundationmodels/generationoptions/samplingmode-swift.struct (not read)
    public struct SamplingMode: Sendable {
        // documentation/foundationmodels/generationoptions/samplingmode-swift.struct/kind-swift.property
        @available(macOS 27, iOS 27, *)
        public let kind: Kind
        // documentation/foundationmodels/generationoptions/samplingmode-swift.struct/kind-swift.enum (not read)
        @available(macOS 27, iOS 27, *)
        public enum Kind: Sendable, Equatable {
            // documentation/foundationmodels/generationoptions/samplingmode-swift.struct/greedy (not read)
            case greedy
            // documentation/foundationmodels/generationoptions/samplingmode-swift.struct/random(top:seed:) (not read)
            case randomTopK(_: Int, seed: UInt64?)
            // documentation/foundationmodels/generationoptions/samplingmode-swift.struct/random(probabilitythreshold:seed:) (not read)
            case randomProbabilityThreshold(_: Double, seed: UInt64?)
        }
    }
}

// documentation/foundationmodels/transcript (not read)
public struct Transcript: Sendable, RandomAccessCollection {
    // documentation/foundationmodels/transcript (not read)
    public var startIndex: Int { fatalError() }
    // documentation/foundationmodels/transcript (not read)
    public var endIndex: Int { fatalError() }
    // documentation/foundationmodels/transcript (not read)
    public subscript(index: Int) -> Entry { fatalError() }
    // documentation/foundationmodels/transcript/entry
    public enum Entry: Sendable {
        // documentation/foundationmodels/transcript/entry/instructions(_:)
        case instructions(Instructions)
        // documentation/foundationmodels/transcript/entry/prompt(_:)
        case prompt(Prompt)
        // documentation/foundationmodels/transcript/entry/response(_:)
        case response(Response)
        // documentation/foundationmodels/transcript/entry/tooloutput(_:)
        case toolOutput(ToolOutput)
    }
    // documentation/foundationmodels/transcript/segment
    public enum Segment: Sendable {
        // documentation/foundationmodels/transcript/segment/text(_:)
        case text(TextSegment)
        // documentation/foundationmodels/transcript/segment/attachment(_:)
        case attachment(AttachmentSegment)
    }
    // documentation/foundationmodels/transcript/textsegment
    public struct TextSegment: Sendable {
        // documentation/foundationmodels/transcript/textsegment/content (not read)
        public var content: String
    }
    // documentation/foundationmodels/transcript/attachmentsegment
    public struct AttachmentSegment: Sendable {}
    // documentation/foundationmodels/transcript/instructions (not read)
    public struct Instructions: Sendable {
        // documentation/foundationmodels/transcript/instructions/segments
        public var segments: [Segment]
    }
    // documentation/foundationmodels/transcript/prompt (not read)
    public struct Prompt: Sendable {
        // documentation/foundationmodels/transcript/prompt/segments (not read)
        public var segments: [Segment]
    }
    // documentation/foundationmodels/transcript/response (not read)
    public struct Response: Sendable {
        // documentation/foundationmodels/transcript/response/segments (not read)
        public var segments: [Segment]
    }
    // documentation/foundationmodels/transcript/tooloutput (not read)
    public struct ToolOutput: Sendable {}
}

// documentation/foundationmodels/prompt (not read)
public struct Prompt: Sendable {}

// documentation/foundationmodels/languagemodelerror
@available(macOS 27, iOS 27, *)
public enum LanguageModelError: LocalizedError {
    // documentation/foundationmodels/languagemodelerror/contextsizeexceeded(_:)
    case contextSizeExceeded(ContextSizeExceeded)
    // documentation/foundationmodels/languagemodelerror/unsupportedtranscriptcontent(_:)
    case unsupportedTranscriptContent(UnsupportedTranscriptContent)
    // documentation/foundationmodels/languagemodelerror/contextsizeexceeded
    public struct ContextSizeExceeded: Sendable {
        // documentation/foundationmodels/languagemodelerror/contextsizeexceeded/init(contextsize:tokencount:debugdescription:metadata:)
        public init(contextSize: Int, tokenCount: Int, debugDescription: String, metadata: [String: any Sendable] = [:]) { fatalError() }
    }
    // documentation/foundationmodels/languagemodelerror/unsupportedtranscriptcontent
    public struct UnsupportedTranscriptContent: Sendable {
        // documentation/foundationmodels/languagemodelerror/unsupportedtranscriptcontent/init(unsupportedcontent:debugdescription:metadata:) (not read)
        public init(unsupportedContent: [Transcript.Entry], debugDescription: String, metadata: [String: any Sendable] = [:]) { fatalError() }
    }
}
