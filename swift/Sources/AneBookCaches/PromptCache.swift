import AneBook
import Foundation

/// What a session holds of n tokens, as `transformers` has it: keys rotated, without the root of
/// attention's scale that our tables carry (`ane_book/runtime/prompt_cache.py`).
///
/// Letters: K key/value heads, S slots, D head size; W columns of a tail.
struct PromptCache {
    var tokens: [Int32] = []
    var position = 0
    /// Of each layer that keeps something, in order: "keys" and "values" (1, K, rows, D), the rows
    /// those of the last tokens, or "tail" (1, W, channels).
    var layers: [[String: Tensor]] = []
    /// The model's name, and fingerprints of what its numbers depend on; empty where a file is silent.
    var madeOf: [String: String] = [:]
}

/// A layer of a bundle that keeps something, and how it differs from the layer of `transformers`.
struct KeptLayer {
    let number: Int
    /// Attention sees so many tokens alone, and has the rows of the last min(n, window).
    let window: Int?
    /// What keys of `transformers` are multiplied by here.
    fileprivate let keyScale: Float
    /// Of a key's numbers in `transformers` that are turned in pairs of neighbours, how many; else 0.
    fileprivate let neighbours: Int
    /// The extents of its arrays by name: K and D, or W and channels.
    fileprivate(set) var extents: [String: [Int]] = [:]

    fileprivate init(_ number: Int, _ manifest: Manifest) {
        let own = manifest.kept[number], rotary = own.rotary.flatMap { manifest.host.rotary[$0] }
        self.number = number
        window = own.mask.flatMap { manifest.host.masks[$0] ?? nil }
        keyScale = rotary.map { Float($0.attentionScale?.squareRoot() ?? pow(Double($0.headDim), -0.25)) } ?? 1
        neighbours = own.neighbours ?? false ? rotary?.rotaryDim ?? 0 : 0
    }

    /// The shapes of its arrays after n tokens.
    func shapes(_ n: Int) -> [String: [Int]] {
        extents.reduce(into: [:]) { shapes, own in
            let (name, extents) = own
            shapes[name] = name == "tail" ? [1] + extents : [1, extents[0], min(n, window ?? n), extents[1]]
        }
    }
}

extension Manifest {
    /// The layers that keep something, in order. Throws `invalidInput` where the manifest is silent.
    func keptLayers() throws -> [KeptLayer] {
        guard !kept.isEmpty else {
            throw AneBookError.invalidInput(
                "\(name): its manifest.json does not say what its layers keep; convert the model again")
        }
        var found: [Int: KeptLayer] = [:]
        for part in layers {
            guard let function = part.functions.values.first else { continue }
            for (store, spec) in function.states.merging(function.kept, uniquingKeysWith: { own, _ in own }) {
                for (number, array) in try entries(store, spec.shape[0], in: part.span) {
                    var layer = found[number] ?? KeptLayer(number, self)
                    let D = kept[number].rotary.flatMap { host.rotary[$0]?.headDim } ?? spec.shape[3]
                    layer.extents[array] = array == "tail" ? [spec.shape[3], spec.shape[1]]
                        : [spec.shape[1] * (layout == .rows ? spec.shape[3] : 1) / D, D]
                    found[number] = layer
                }
            }
        }
        return found.values.sorted { $0.number < $1.number }
    }

    /// The layers that the entries of a package's store are of, and what files call them.
    ///
    /// A package whose layers read the cache of a layer in another one has a copy, its first entry.
    /// Throws `invalidBundle` where packages and layers do not fit.
    func entries(_ store: String, _ count: Int, in span: Range<Int>) throws -> [(layer: Int, array: String)] {
        let ending = store.dropFirst(5)
        let names = store.hasPrefix("cache") ? ["keys\(ending)", "values\(ending)"] : [store]
        func keep(_ name: String, _ range: Range<Int>) -> [Int] {
            range.clamped(to: kept.indices).filter { kept[$0].stores.contains(name) }
        }
        let copied = names.reduce(0) { $0 + keep($1, span).count } < count
        let entries = names.flatMap { name in
            let array = Manifest.Layout.isTail(name) ? "tail" : String(name.prefix { $0 != "_" })
            let before = copied ? keep(name, 0..<span.lowerBound).suffix(1) : []
            return (before + keep(name, span)).map { (layer: $0, array: array) }
        }
        guard entries.count == count else {
            throw AneBookError.invalidBundle("manifest.json: \(store) is of \(count) layers, and \(entries.count) are "
                + "said to keep it; convert the model again")
        }
        return entries
    }

    /// What the numbers of a cache depend on; the names and texts are those of the Python library.
    var madeOf: [String: String] {
        var how = "quant \(recipe?.quant ?? "none"), silu \(recipe?.silu ?? "native")"
        for table in host.rotary.values where table.scaling.type == "longrope" {
            how += Double(context) <= table.scaling.original ?? 0 ? ", short factors" : ", long factors"
        }
        return ["model": name, "weights": source?.fingerprint ?? "", "recipe": how, "adapter": "none",
            "tokenizer": sha256?[tokenizer.file ?? "tokenizer.json"] ?? "", "precision": "float16"]
    }
}

extension ModelRunner {
    /// What the layers keep of the first n tokens.
    func kept(_ n: Int) throws -> [[String: Tensor]] {
        let layers = try manifest.keptLayers()
        let arrays = layers.map { $0.shapes(n).mapValues { Tensor(.half, $0) } }
        try exchange(layers, arrays, n, reading: true)
        return arrays
    }

    /// Replaces what the layers keep by what they kept of n tokens.
    func keep(_ arrays: [[String: Tensor]], _ n: Int) throws {
        let layers = try manifest.keptLayers()
        clear()
        try exchange(layers, arrays, n, reading: false)
        let whole = layers.allSatisfy { n <= $0.window ?? n && n <= $0.extents["tail"]?[0] ?? n }
        floor = whole ? 0 : n
    }

    private func exchange(_ layers: [KeptLayer], _ arrays: [[String: Tensor]], _ n: Int, reading: Bool) throws {
        try self.exchange(new: reading ? nil : manifest.tiers.first { n <= $0 }) { span, store, tensor in
            for (i, entry) in try manifest.entries(store, tensor.shape[0], in: span).enumerated() {
                guard let at = layers.firstIndex(where: { $0.number == entry.layer }),
                    let array = arrays[at][entry.array] else { continue }
                layers[at].copy(array, tensor, i, entry.array, n, manifest.layout, reading: reading)
            }
        }
    }
}

extension KeptLayer {
    /// Copies an array's rows to entry `i` of a store, as the store has them, or back.
    fileprivate func copy(_ array: Tensor, _ store: Tensor, _ i: Int, _ name: String, _ n: Int, _ layout: Manifest.Layout,
        reading: Bool) {
        let shape = array.shape, (rows, D) = (shape[shape.count - 2], shape[shape.count - 1])
        let isTail = name == "tail", byRows = layout == .rows && !isTail, S = store.shape[byRows ? 2 : 3]
        let (slot, column) = byRows ? (D, 1) : (1, S), start = i * (store.count / store.shape[0])
        let first = isTail ? n : n - rows, theirs = array.halfs, ours = store.halfs
        let scale = name == "keys" ? keyScale : 1, R = name == "keys" ? neighbours : 0
        // Where our numbers are in `transformers`: those of a pair are R / 2 apart here.
        let order = (0..<D).map { $0 >= R ? $0 : $0 < R / 2 ? 2 * $0 : 2 * $0 - R + 1 }
        for head in 0..<array.count / max(rows * D, 1) {
            for row in 0..<rows {
                let there = (head * rows + row) * D, here = start + head * S * D + (first + row) * slot
                for d in 0..<D {
                    let (there, here) = (there + order[d], here + d * column)
                    if reading { theirs[there] = Float16(Float(ours[here]) / scale) } else {
                        ours[here] = Float16(Float(theirs[there]) * scale)
                    }
                }
            }
        }
    }
}
