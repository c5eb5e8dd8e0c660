/// `manifest.json`: what a bundle is for, its programs as they are, and what the host does.
///
/// How a host runs a bundle by it is in `research/manifest.md`, the meaning of each field in the
/// Python class `ane_book.bundle.Manifest` and `research/manifest.schema.json`. Letters: C hidden
/// size, T tokens of a call, S slots of the cache, n layers of a package, K key/value heads, D head
/// size, V vocabulary; R channels and W columns of a tail.
public struct Manifest: Codable, Sendable {
    /// The one format of a bundle that this version takes; a manifest of another is refused.
    public static let format = "ane-book bundle 6"

    public enum Task: String, Codable, Sendable {
        case textGeneration = "text-generation"
        case embedding
        case tokenClassification = "token-classification"
    }

    public let format: String
    public let name: String
    public let task: Task
    public let packages: [Part]
    public let embedding: TableEntry
    /// What a token gives to all layers, rows (L * P,); nil: nothing.
    public let perLayer: TableEntry?
    public let context: Int
    public let host: Host
    /// What each layer keeps; nil: an earlier version converted the bundle.
    let keeping: [Layer]?
    /// Where tokens are in caches, masks and tables; nil: by rows.
    public let form: Layout?
    /// Slots for a LoRA adapter, which are not filled here; nil: the layers have none.
    public let adapters: Adapters?
    public let vectors: Vectors?
    public let tags: Tags?
    public let tokenizer: TokenizerEntry
    public let files: [String: Int]
    /// For the record: the model, its weights, how it was converted, and its files.
    package let model: Model?, source: Source?, recipe: Recipe?, sha256: [String: String]?
    /// sha256 of all fields, and so of every file of the bundle, whose sha256 are among them.
    public let seal: String?

    enum CodingKeys: String, CodingKey {
        case format, name, task, packages, embedding, context, host, form, adapters, vectors, tags, tokenizer
        case files, seal, model, source, recipe, sha256
        case perLayer = "per_layer", keeping = "layers"
    }

    package struct Model: Codable, Sendable { package let architecture: String? }
    package struct Source: Codable, Sendable { package let fingerprint: String }
    package struct Recipe: Codable, Sendable { package let quant: String?, silu: String? }

    package var kept: [Layer] { keeping ?? [] }

    package var layout: Layout { form ?? .rows }

    /// L.
    var layerCount: Int { max(layers.last?.layers?.last ?? 1, 1) }

    /// P, of what every layer has of its own; nil without any.
    var perLayerSize: Int? { perLayer.map { $0.shape[1] / layerCount } }

    /// Of every package: name -> T, the tokens that a call takes.
    public var functions: [String: Int] {
        let own = packages.first?.functions.filter { $1.slots == nil || $1.slots == context }
        return own?.mapValues(\.tokens) ?? [:]
    }

    /// Slots S of every tier, ascending; the last is the context. Empty without a cache.
    public var tiers: [Int] {
        Set(packages.first?.functions.values.compactMap(\.slots) ?? []).sorted()
    }

    /// The functions of all tiers: name -> name in packages without a cache.
    public var names: [String: String] {
        var names: [String: String] = [:]
        for slots in tiers.isEmpty ? [context] : tiers {
            for name in functions.keys { names[tierName(name, slots)] = name }
        }
        return names
    }

    /// What a function over a cache of so many slots is called.
    public func tierName(_ function: String, _ slots: Int) -> String {
        slots == context ? function : "\(function)_s\(slots)"
    }

    /// The most tokens of a prompt that a call takes.
    public var readingWidth: Int { functions["prefill"] ?? functions["verify"] ?? 1 }

    public var layers: [Part] { packages.filter { $0.part != .head } }
    public var head: [Part] { packages.filter { $0.part == .head } }

    /// Whether the head gives the likeliest token instead of logits.
    public var givesTokens: Bool {
        head.contains { $0.functions.values.contains { $0.outputs["token"] != nil } }
    }
}

extension Manifest {
    /// Slots for a LoRA adapter; of its fields, only the rank is read.
    public struct Adapters: Codable, Sendable {
        public let rank: Int
    }

    /// A package, and its part in the whole.
    public struct Part: Codable, Sendable {
        public enum Kind: String, Codable, Sendable { case layers, experts, head }

        public let package: String
        public let part: Kind
        public let functions: [String: FunctionSpec]
        public let layers: [Int]?
        public let expert: Int?

        /// Its layers, by number.
        package var span: Range<Int> {
            guard let layers, layers.count == 2, layers[0] <= layers[1] else { return 0..<0 }
            return layers[0]..<layers[1]
        }

        /// The name of one of the part's functions in its package: `decode_3` for expert number 3.
        func called(_ function: String) -> String {
            expert.map { "\(function)_\($0)" } ?? function
        }
    }

    /// What a layer keeps from call to call, by name, and how it makes it.
    package struct Layer: Codable, Sendable {
        package let stores: [String]
        package let rotary: String?, mask: String?
        /// `transformers` has the rotated numbers 2i and 2i + 1 of its keys as a pair.
        package let neighbours: Bool?
    }

    /// A function of a package, as the package declares it.
    public struct FunctionSpec: Codable, Sendable, Equatable {
        /// T.
        public let tokens: Int
        /// S, of the cache that it attends to; nil: it attends to none.
        public let slots: Int?
        public let inputs: [String: TensorSpec]
        public let states: [String: TensorSpec]
        public let outputs: [String: TensorSpec]

        /// Of the inputs, those that the host keeps from call to call: caches and tails.
        package var kept: [String: TensorSpec] { inputs.filter { outputs["new_\($0.key)"] != nil } }
    }

    /// A tensor that goes in or out of a function, or stays as its state.
    public struct TensorSpec: Codable, Sendable, Hashable {
        public let dtype: ElementType
        public let shape: [Int]
    }

    /// A table of rows in half precision: its file, and [rows, C].
    public struct TableEntry: Codable, Sendable {
        public let file: String
        public let shape: [Int]
    }

    /// What the host computes for the programs.
    public struct Host: Codable, Sendable {
        public let embeddingScale: Float
        /// Rotary tables by name; the inputs are `NAME_cos` and `NAME_sin`.
        public let rotary: [String: Rotary]
        /// Masks by name, each with how many tokens a token sees; nil: all before it.
        public let masks: [String: Int?]

        enum CodingKeys: String, CodingKey {
            case embeddingScale = "embedding_scale"
            case rotary, masks
        }
    }

    /// How the host makes vectors of texts.
    public struct Vectors: Codable, Sendable {
        public enum Pooling: String, Codable, Sendable { case mean, cls, last }

        public let positions: TableEntry?
        public let pooling: Pooling
        /// What these say is done by Python alone: see `Manifest.check`.
        let causal: Bool?, defaultPrompt: String?, dimensions: Int?

        enum CodingKeys: String, CodingKey {
            case defaultPrompt = "default_prompt"
            case positions, pooling, causal, dimensions
        }
    }

    /// How tokens are labelled.
    public struct Tags: Codable, Sendable {
        public let labels: [String]
        /// Tokens that a token sees on each side, in every layer.
        public let window: Int
    }

    /// What turns text into token ids and back.
    public struct TokenizerEntry: Codable, Sendable {
        /// The tokenizer in the form of `swift_tables.packed`; nil: it has none, or `refused` says why.
        public let packed: String?
        /// The tokenizer as its library has it, which is not read here.
        package let file: String?
        /// The chat template in pieces; nil: the model has none, or `refused` says why.
        public let segments: ChatSegments?
        public let refused: [String: String]?
        public let endTokens: [Int32]

        enum CodingKeys: String, CodingKey {
            case packed, file, segments, refused
            case endTokens = "eos_token_ids"
        }
    }
}
