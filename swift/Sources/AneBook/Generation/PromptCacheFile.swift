import Foundation

/// Which of mlx's programs go on from a file: mlx-lm in Python, or mlx-swift-lm.
public enum CacheForm: String, Sendable {
    case mlx
    case mlxSwift = "mlx-swift"
}

/// A `PromptCache` as a file; `ane_book/runtime/prompt_cache_file.py` says what lies where.
///
/// Array j of layer i is called "i.j". In the form mlx an integer is an array; in mlx-swift it is a
/// text, and so in the files of mlx-lm up to 0.31, which are read and have fewer of them.
extension PromptCache {
    /// Families that mlx computes as `transformers` does and has classes for, and how it stretches
    /// their contexts.
    private static let stretched = ["linear", "llama3", "yarn"]
    private static let families = ["llama": stretched, "mistral": stretched, "qwen2": stretched, "qwen3": stretched,
        "smollm3": stretched, "olmo2": stretched, "granite": stretched, "phi3": ["linear", "longrope"],
        "gemma3_text": ["linear"], "qwen3_moe": [], "lfm2": [], "lfm2_moe": []]

    /// Texts that say what the cache is of, among the user's.
    private struct Ours: Codable {
        var tokens: [Int32], made_of: [String: String]
    }

    /// Throws `invalidInput` for a model whose cache mlx does not go on from as we do.
    static func check(_ manifest: Manifest) throws {
        let family = manifest.model?.architecture ?? "these", windows = manifest.host.masks.values.contains { $0 != nil }
        var why = families[family] == nil ? "mlx-lm has no cache of what \(family) models keep" : nil
        if family == "mistral", windows { why = "mlx-lm has no window in Mistral models, and this one has" }
        for scaling in manifest.host.rotary.values.map(\.scaling) where why == nil {
            let kind = scaling.type ?? "default"
            if kind != "default", !(families[family] ?? []).contains(kind) {
                why = "mlx-lm does not rotate \(family) models by \(kind) scaling"
            } else if kind == "yarn", scaling.attentionFactor != nil || scaling.truncate != nil {
                why = "mlx-lm does not read all of this YaRN: ['attention_factor', 'truncate']"
            } else if kind == "longrope", Double(manifest.context) <= scaling.original ?? 0 {
                why = "mlx-lm has LongRoPE's long factors for every context, and this one, of \(manifest.context) tokens, "
                    + "the short ones; convert with a longer --context"
            }
        }
        if let why { throw AneBookError.invalidInput(why) }
    }

    func write(_ url: URL, _ form: CacheForm, _ manifest: Manifest) throws {
        let user = form == .mlx ? "0" : "1", classes = form == .mlx ? "1" : "2"
        let ours = try JSONEncoder().encode(Ours(tokens: tokens, made_of: madeOf))
        var texts = ["\(user).ane_book": String(decoding: ours, as: UTF8.self), "\(user).model": manifest.name,
            "\(user).tokenizer_config": "{}"]
        var arrays: [(name: String, tensor: Tensor)] = [], others = 0
        func other(_ name: String, _ number: Int?) {
            others += 1
            (texts["2.\(others).0"], texts["2.\(others).1"]) = (name, number == nil ? "none" : "scalar")
            let tensor = number == nil ? Tensor(.half, [0]) : Tensor(.integer, [])
            if let number { tensor.integers[0] = Int32(number) }
            arrays.append((name, tensor))
        }
        if form == .mlx { texts["2.0"] = "" }  // which mlx's lists have where they may be empty
        for (i, (own, layer)) in zip(layers, try manifest.keptLayers()).enumerated() {
            let said: [String]
            if let tail = own["tail"] {
                arrays.append((form == .mlx ? "\(i).0.0" : "\(i).0", tail))
                texts["\(classes).\(i)"] = form == .mlx ? "ArraysCache" : "MambaCache"
                if form == .mlx { for j in 1...2 { other("\(i).\(j)", nil) } }
                said = ["2", "0"]  // of two arrays there is the first one
            } else {
                arrays += ["keys", "values"].enumerated().compactMap { j, name in own[name].map { ("\(i).\(j)", $0) } }
                texts["\(classes).\(i)"] = layer.window == nil ? "KVCache" : "RotatingKVCache"
                let ring = layer.window.map { [0, $0, min(position, $0)] } ?? []
                if form == .mlx { for (j, number) in ([position] + ring).enumerated() { other("\(i).\(j + 2)", number) } }
                said = layer.window == nil ? [""] : [0, ring[1], 256, position, ring[2]].map(String.init)
            }
            if form == .mlxSwift { for (j, text) in said.enumerated() { texts["0.\(i).\(j)"] = text } }
        }
        try Safetensors.write(url, texts: texts, arrays: arrays)
    }
}

extension PromptCache {
    /// Reads a file of either form. Throws `invalidInput` where it is damaged, or is nothing that a
    /// session of this bundle can go on from; before that no memory is taken for arrays.
    ///
    /// tokens: what it is the cache of, for a file that does not say.
    init(_ url: URL, _ manifest: Manifest, tokens given: [Int32]? = nil) throws {
        let kept = try manifest.keptLayers(), file = try Safetensors(url)
        func refused(_ what: String) -> AneBookError { .invalidInput("\(url.path): \(what)") }
        let stored: [StoredLayer], isNew = file.texts["2.0"] == "", user = isNew ? "0" : "1"
        do { stored = try StoredLayer.all(file, isNew) } catch let wrong as StoredLayer.Wrong { throw refused(wrong.what) }
        let ours = try file.texts["\(user).ane_book"].map { text in
            guard let ours = try? decode(Ours.self, from: Data(text.utf8)) else { throw refused("its ane_book is damaged") }
            return ours
        }
        madeOf = ours?.made_of ?? [:]
        if ours == nil { try PromptCache.check(manifest) }
        for name in ["weights", "tokenizer", "recipe", "adapter", "precision"] where ours != nil {
            let (there, here) = (madeOf[name] ?? "nothing", manifest.madeOf[name] ?? "")
            guard there == here else {
                throw refused("the cache is of another \(name): \(there.prefix(80)), and here it is "
                    + "\(here.prefix(80)); read the prompt again")
            }
        }
        guard stored.count == kept.count else {
            throw refused("a cache of \(stored.count) layers, and here \(kept.count) keep one")
        }
        tokens = ours?.tokens ?? given ?? []
        let n = stored.compactMap(\.numbers.first).first ?? tokens.count, vocabulary = manifest.embedding.shape[0]
        position = n
        guard 1...manifest.context ~= n else {
            throw refused("a cache of \(n) tokens, and the context has room for \(manifest.context)")
        }
        guard !tokens.isEmpty else { throw refused("it does not say its \(n) tokens; give them to loadCache") }
        guard tokens.count == n, tokens == given ?? tokens else {
            throw refused("\(tokens.count) tokens are named, and the cache is of \(n), or of others than are given")
        }
        if let wrong = tokens.first(where: { !(0..<vocabulary ~= Int($0)) }) {
            throw refused("token id \(wrong) is outside the vocabulary of \(vocabulary)")
        }
        let rows = try zip(stored, kept).map { own, layer in
            guard let rows = own.rows(layer, n) else {
                throw refused("layer \(layer.number) has a \(own.kind) of \(own.arrays.map { $0.shape }), "
                    + "which after \(n) tokens does not fit: \(layer.shapes(n))")
            }
            return rows
        }
        for (own, (layer, rows)) in zip(stored, zip(kept, rows)) {
            var arrays: [String: Tensor] = [:]
            for (name, place) in zip(own.arrays.count == 1 ? ["tail"] : ["keys", "values"], own.arrays) {
                guard let array = file.halfs(place) else {
                    throw refused("layer \(layer.number): \(name) are not finite in float16")
                }
                arrays[name] = array.rows(rows)
            }
            layers.append(arrays)
        }
    }

    /// A layer as a file has it; numbers: of a `KVCache` the tokens, of a ring its keep, size and end too.
    private struct StoredLayer {
        let kind: String, arrays: [Safetensors.Place], numbers: [Int]

        struct Wrong: Error { let what: String }

        /// All layers of a file that has nothing else.
        static func all(_ file: Safetensors, _ isNew: Bool) throws -> [StoredLayer] {
            guard file.texts["2.0"] != nil else { throw Wrong(what: "no prompt cache of mlx") }
            var used = 0
            func place(_ name: String) throws -> Safetensors.Place {
                guard let place = file.arrays[name] else { throw Wrong(what: "its array \(name) is missing") }
                used += 1
                return place
            }
            func number(_ name: String) throws -> Int {
                _ = try place(name)
                guard let number = file.number(name) else { throw Wrong(what: "\(name) is no whole number") }
                return number
            }
            var stored: [StoredLayer] = []
            while let kind = file.texts["\(isNew ? 1 : 2).\(stored.count)"] {
                let i = stored.count, numbers: [Int], arrays: [Safetensors.Place]
                let said = sequence(first: 0) { $0 + 1 }.lazy.map { file.texts["0.\(i).\($0)"] }.prefix { $0 != nil }
                switch kind {
                case "KVCache", "KVCacheSimple":
                    arrays = try [place("\(i).0"), place("\(i).1")]
                    numbers = isNew ? [try number("\(i).2")] : arrays[0].shape.dropFirst(2).prefix(1).map { $0 }
                case "RotatingKVCache":
                    arrays = try [place("\(i).0"), place("\(i).1")]
                    let all = isNew ? try (2...5).map { try number("\(i).\($0)") } : said.compactMap { $0.flatMap { Int($0) } }
                    // Those of mlx-lm up to 0.31, and of mlx-swift-lm, which has a step and a reason besides.
                    let order = isNew ? [0, 1, 2, 3] : all.count == 4 ? [2, 0, 1, 3] : [3, 0, 1, 4]
                    guard 4...5 ~= all.count else { throw Wrong(what: "layer \(i) is a ring without numbers") }
                    numbers = order.map { all[$0] }
                case "ArraysCache", "MambaCache":
                    arrays = [try place(isNew ? "\(i).0.0" : "\(i).0")]
                    if isNew { for j in 1...2 where try place("\(i).\(j)").bytes.count > 0 {
                        throw Wrong(what: "layer \(i) is of several texts") } }
                    numbers = []
                default: throw Wrong(what: "layer \(i) is a \(kind.prefix(40)), which is not read here")
                }
                stored.append(StoredLayer(kind: kind, arrays: arrays, numbers: numbers))
            }
            guard used == file.arrays.count else { throw Wrong(what: "it has arrays of no layer") }
            return stored
        }

        /// Which rows of its arrays a layer keeps of n tokens, in order; none of a tail. nil: they are not
        /// there, or the arrays have other shapes.
        func rows(_ layer: KeptLayer, _ n: Int) -> [Int]? {
            let shapes = layer.shapes(n)
            if let tail = shapes["tail"] { return arrays.map(\.shape) == [tail] ? [] : nil }
            guard arrays.count == 2, numbers.first == n, let needed = shapes["keys"]?[2], arrays[0].shape.count == 4
            else { return nil }
            let total = arrays[0].shape[2]
            for (name, array) in zip(["keys", "values"], arrays) {
                guard var shape = shapes[name] else { return nil }
                shape[2] = total
                if array.shape != shape { return nil }
            }
            var order = Array(0..<total), keep = 0
            if numbers.count == 1 { order = Array(order.prefix(n)) } else {
                let end = numbers[3]
                keep = numbers[1]
                guard 0...total ~= end, 0...end ~= keep else { return nil }
                // A ring that has turned: what is kept for good, the oldest, and the newest.
                if end < total { order = Array(0..<(end < n ? keep : end)) + (end < n ? Array(end..<total) + Array(keep..<end) : []) }
            }
            return order.count == n || (needed...n ~= order.count - keep) ? order.suffix(needed) : nil
        }
    }
}

extension Tensor {
    /// These rows of an array (1, K, rows, D).
    fileprivate func rows(_ rows: [Int]) -> Tensor {
        if rows.isEmpty || rows.elementsEqual(0..<shape[2]) { return self }
        let picked = Tensor(type, [1, shape[1], rows.count, shape[3]])
        for head in 0..<shape[1] {
            for (to, from) in rows.enumerated() {
                for d in 0..<shape[3] { picked.halfs[(head * rows.count + to) * shape[3] + d] = halfs[(head * shape[2] + from) * shape[3] + d] }
            }
        }
        return picked
    }
}
