import AneBook
import Foundation

/// A `PromptCache` as a file; `ane_book/runtime/prompt_cache_file.py` says what lies where.
///
/// Array j of layer i is called "i.j". In the form mlx an integer is an array; in mlx-swift it is a
/// text, and so in the files of mlx-lm up to 0.31, which are read and have fewer of them.
extension PromptCache {
    /// Families that mlx computes as `transformers` does and has classes for, and how it stretches
    /// their contexts.
    private static let stretched = ["linear", "llama3", "yarn"]
    private static let families = ["llama": stretched, "mistral": stretched, "ministral3": stretched, "qwen2": stretched,
        "qwen3": stretched, "qwen3_moe": [], "phi3": ["linear", "longrope"], "hunyuan_v1_dense": ["dynamic"], "glm4": [],
        "gemma3_text": ["linear"], "gemma4_text": ["proportional"], "gemma4": ["proportional"], "smollm3": stretched,
        "olmo2": stretched, "olmo3": stretched, "exaone4": stretched, "granite": stretched, "lfm2": [], "lfm2_moe": []]

    /// Texts that say what the cache is of, among the user's.
    private struct Ours: Codable {
        var tokens: [Int32], made_of: [String: String]
    }

    /// Throws `invalidInput` for a model whose cache mlx does not go on from as we do.
    static func check(_ manifest: Manifest) throws {
        let family = manifest.model?.architecture ?? "these", windows = manifest.host.masks.values.contains { $0 != nil }
        var why = families[family] == nil ? "mlx-lm has no cache of what \(family) models keep" : nil
        if family == "mistral", windows { why = "mlx-lm has no window in Mistral models, and this one has" }
        for table in manifest.host.rotary.values where why == nil {
            let scaling = table.scaling, kind = scaling.type ?? "default"
            if kind != "default", !(families[family] ?? []).contains(kind) {
                why = "mlx-lm does not rotate \(family) models by \(kind) scaling"
            } else if kind == "yarn", try !table.isSameInMLX() {
                why = "mlx-lm leaves out attention_factor and truncate of YaRN"
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
        let stored = try StoredLayer.all(file), vocabulary = manifest.embedding.shape[0]
        let ours = try (file.texts["0.ane_book"] ?? file.texts["1.ane_book"]).map { text in
            do { return try decode(Ours.self, from: Data(text.utf8)) } catch { throw file.refused("its ane_book is damaged") }
        }
        madeOf = ours?.made_of ?? [:]
        if ours == nil { try PromptCache.check(manifest) }
        for name in ["weights", "tokenizer", "recipe", "adapter", "precision"] where ours != nil {
            let (there, here) = (madeOf[name] ?? "nothing", manifest.madeOf[name] ?? "")
            guard there == here else {
                throw file.refused("the cache is of another \(name): \(there.prefix(80)), and here it is \(here.prefix(80))")
            }
        }
        guard stored.count == kept.count else {
            throw file.refused("a cache of \(stored.count) layers, and here \(kept.count) keep one")
        }
        tokens = ours?.tokens ?? given ?? []
        let n = stored.compactMap(\.tokens).first ?? tokens.count
        position = n
        guard 1...manifest.context ~= n else {
            throw file.refused("a cache of \(n) tokens, and the context has room for \(manifest.context)")
        }
        guard !tokens.isEmpty else { throw file.refused("it does not say its \(n) tokens", "give them to loadCache") }
        guard tokens.count == n, tokens == given ?? tokens else {
            throw file.refused("\(tokens.count) tokens are named, and the cache is of \(n), or of others than are given")
        }
        if let wrong = tokens.first(where: { !(0..<vocabulary ~= Int($0)) }) {
            throw file.refused("token id \(wrong) is outside the vocabulary of \(vocabulary)")
        }
        let rows = try zip(stored, kept).map { own, layer in
            guard let rows = own.rows(layer.shapes(n), n) else {
                throw file.refused("layer \(layer.number) has a \(own.kind) of \(own.arrays.map(\.shape)), "
                    + "which after \(n) tokens does not fit: \(layer.shapes(n))")
            }
            return rows
        }
        for (i, own) in stored.enumerated() {
            let names = own.arrays.count == 1 ? ["tail"] : ["keys", "values"]
            layers.append(Dictionary(uniqueKeysWithValues: try zip(names, own.arrays).map { name, place in
                guard let array = file.halfs(place) else {
                    throw file.refused("layer \(kept[i].number): \(name) are not finite in float16")
                }
                return (name, array.rows(rows[i]))
            }))
        }
    }

    /// A layer as a file has it. Of `tokens` it has rows: `keep` that stay, the newest up to `end`, and
    /// behind them, where there were more tokens, older ones.
    private struct StoredLayer {
        let kind: String, arrays: [Safetensors.Place]
        var tokens: Int?, keep = 0, end = 0

        /// All layers of a file that has nothing else.
        static func all(_ file: Safetensors) throws -> [StoredLayer] {
            guard let first = file.texts["2.0"] else { throw file.refused("no prompt cache of mlx") }
            var stored: [StoredLayer] = [], left = Set(file.arrays.keys)
            while let kind = file.texts["\(first.isEmpty ? 1 : 2).\(stored.count)"] {
                stored.append(try StoredLayer(file, stored.count, kind, isNew: first.isEmpty, &left))
            }
            if let other = left.min() { throw file.refused("its array \(other.prefix(40)) is of no layer") }
            return stored
        }

        private init(_ file: Safetensors, _ i: Int, _ kind: String, isNew: Bool, _ left: inout Set<String>) throws {
            func place(_ name: String) throws -> Safetensors.Place {
                guard let place = file.arrays[name] else { throw file.refused("its array \(name) is missing") }
                left.remove(name)
                return place
            }
            func number(_ j: Int) throws -> Int {
                let name = "\(i).\(j)"
                guard let number = file.number(try place(name)) else { throw file.refused("\(name) is no whole number") }
                return number
            }
            let isRing = kind == "RotatingKVCache"
            self.kind = kind
            switch kind {
            case "KVCache", "KVCacheSimple", "RotatingKVCache":
                arrays = try [place("\(i).0"), place("\(i).1")]
                // In the older form of a ring: keep, its size, in Swift a step, tokens, and the end.
                let told = (0..<5).compactMap { file.texts["0.\(i).\($0)"].flatMap { Int($0) } }
                if isNew {
                    let numbers = try (2...(isRing ? 5 : 2)).map(number)
                    (tokens, keep, end) = (numbers[0], isRing ? numbers[1] : 0, numbers[isRing ? 3 : 0])
                } else if isRing {
                    guard told.count > 3 else { throw file.refused("layer \(i) is a ring without numbers") }
                    (keep, tokens, end) = (told[0], told[told.count - 2], told[told.count - 1])
                } else {
                    end = arrays[0].shape.dropFirst(2).first ?? 0
                    tokens = end
                }
            case "ArraysCache", "MambaCache":
                arrays = [try place(isNew ? "\(i).0.0" : "\(i).0")]
                for j in 1...2 where isNew {
                    guard try place("\(i).\(j)").bytes.isEmpty else { throw file.refused("layer \(i) is of several texts") }
                }
            default: throw file.refused("layer \(i) is a \(kind.prefix(40)), which is not read here")
            }
        }

        /// Which rows a layer keeps of n tokens whose arrays have these shapes, in order; none of a tail.
        /// nil: they are not there, or the arrays have other shapes.
        func rows(_ shapes: [String: [Int]], _ n: Int) -> [Int]? {
            if let tail = shapes["tail"] { return arrays.map(\.shape) == [tail] ? [] : nil }
            guard let keys = shapes["keys"], let values = shapes["values"], tokens == n, arrays.count == 2,
                let total = arrays[0].shape.dropFirst(2).first, 0...total ~= end, 0...end ~= keep,
                arrays[0].shape == [1, keys[1], total, keys[3]], arrays[1].shape == [1, values[1], total, values[3]]
            else { return nil }
            let order = end < n ? [0..<keep, end..<total, keep..<end].flatMap(Array.init) : Array(0..<end)
            return order.count == n || (keys[2]...n ~= order.count - keep) ? order.suffix(keys[2]) : nil
        }
    }
}

extension Tensor {
    /// These rows of an array (1, K, rows, D), or all.
    fileprivate func rows(_ rows: [Int]) -> Tensor {
        if rows.isEmpty || rows.elementsEqual(0..<shape[2]) { return self }
        let picked = Tensor(type, [1, shape[1], rows.count, shape[3]])
        for head in 0..<shape[1] {
            for (to, from) in rows.enumerated() {
                let row = halfs[((head * shape[2] + from) * shape[3])...].prefix(shape[3])
                for (d, value) in row.enumerated() { picked.halfs[(head * rows.count + to) * shape[3] + d] = value }
            }
        }
        return picked
    }
}
