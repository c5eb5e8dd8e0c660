import Foundation
import Testing

@testable import AneBook

@Suite struct BundleTests {
    @Test(arguments: ["context", "packages", "tokenizer", "embedding", "files", "host", "format"])
    func aMissingFieldIsNamed(_ field: String) throws {
        let bundle = try SmallBundle { $0[field] = nil }
        let error = refusal { _ = try ModelBundle(bundle.folder) }
        #expect(error.contains(field))
    }

    @Test func aFileOfAnotherSizeIsNamed() throws {
        let bundle = try SmallBundle()
        try Data("{ }".utf8).write(to: bundle.folder.appendingPathComponent("head.mlpackage/Manifest.json"))
        let error = refusal { _ = try ModelBundle(bundle.folder) }
        #expect(error.contains("head.mlpackage/Manifest.json has 3 bytes; manifest.json says 2 bytes"))
    }

    /// What no exchange of one number makes, and would write beyond a cache, or end the process.
    @Test func aManifestMadeToHarmIsAnError() throws {
        func function(_ bundle: [String: Any], _ part: Int, _ change: (String, inout [String: Any]) -> Void) -> [Any] {
            var packages = bundle["packages"] as? [[String: Any]] ?? []
            var functions = packages[part]["functions"] as? [String: [String: Any]] ?? [:]
            for name in functions.keys { change(name, &functions[name, default: [:]]) }
            packages[part]["functions"] = functions
            return packages
        }
        func type(_ shape: [Int]) -> [String: Any] { ["dtype": "fp16", "shape": shape] }
        let small = try SmallBundle { manifest in  // a cache of fewer slots than its call has tokens
            var packages = function(manifest, 0) { name, own in
                let tokens = name == "decode" ? 1 : 4
                own["slots"] = 2
                own["inputs"] = ["hidden": type([1, 4, 1, tokens]), "keys": type([1, 1, 2, 2])]
            }
            packages.insert((manifest["packages"] as? [Any])?[0] ?? [:], at: 0)
            if var second = packages[1] as? [String: Any] {
                second["layers"] = [1, 2]
                packages[1] = second
            }
            manifest["packages"] = packages
        }
        #expect(refusal { _ = try ModelBundle(small.folder) }.contains("other functions"))
        let without = try SmallBundle { manifest in  // no cache in one function, and one in the other
            manifest["packages"] = function(manifest, 0) { name, own in if name == "decode" { own["slots"] = NSNull() } }
        }
        #expect(!refusal { _ = try ModelBundle(without.folder) }.isEmpty)
        let narrow = try SmallBundle { $0["host"] = ["embedding_scale": 1, "masks": ["mask": NSNull()], "rotary":
            ["rope": ["head_dim": 1, "rotary_dim": 2, "theta": 1e4, "scaling": [String: Any](), "max_position": 9]]] }
        #expect(refusal { _ = try ModelBundle(narrow.folder) }.contains("2 of 1 dimensions are rotated"))
        let good = try SmallBundle(), file = good.folder.appendingPathComponent("manifest.json")
        try FileManager.default.removeItem(at: file)
        #expect(mkfifo(file.path, 0o600) == 0)
        #expect(refusal { _ = try ModelBundle(good.folder) }.contains("no manifest.json"))
    }

    @Test func aBundleThatFailedParityIsRefusedUnlessForced() throws {
        let bundle = try SmallBundle()
        let evidence = #"{"levels": {"L1": {"status": "failed", "reason": "cosine 0.5"}}}"#
        try Data(evidence.utf8).write(to: bundle.folder.appendingPathComponent("evidence.json"))
        #expect(refusal { _ = try ModelBundle(bundle.folder) }.contains("failed L1 parity: cosine 0.5"))
        _ = try ModelBundle(bundle.folder, force: true)
    }

    /// A cache is told from a tail by its name.
    @Test func aManifestOfAnotherFormIsAnError() throws {
        for (form, other) in [(Manifest.Layout.rows, "apple"), (.apple, "rows")] {
            let own = try SmallBundle(form)
            #expect(refusal { _ = try ModelBundle(own.folder) }.isEmpty)
            let bundle = try SmallBundle(form) { $0["form"] = other }
            #expect(refusal { _ = try ModelBundle(bundle.folder) }.contains("does not fit"))
        }
        let unknown = try SmallBundle { $0["form"] = "columns" }
        #expect(refusal { _ = try ModelBundle(unknown.folder) }.contains("manifest.json: form: "))
        func keys(_ decode: [Int], _ prefill: [Int]) throws -> String {
            let bundle = try SmallBundle(.apple) { manifest in
                var packages = manifest["packages"] as? [[String: Any]] ?? []
                var functions = packages[0]["functions"] as? [String: [String: Any]] ?? [:]
                for (name, shape) in [("decode", decode), ("prefill", prefill)] {
                    var inputs = functions[name]?["inputs"] as? [String: Any] ?? [:]
                    inputs["keys"] = ["dtype": "fp16", "shape": shape]
                    functions[name]?["inputs"] = inputs
                }
                packages[0]["functions"] = functions
                manifest["packages"] = packages
            }
            return refusal { _ = try ModelBundle(bundle.folder) }
        }
        #expect(try keys([1, 2, 1, 16], [1, 2, 1, 16]).isEmpty)
        #expect(try keys([1, 2, 1, 3], [1, 2, 1, 3]).contains("does not fit"))
        #expect(try keys([1, 2, 1, 16], [1, 3, 1, 16]).contains("keep different caches"))
        #expect(try keys([1, 2, 2, 16], [1, 2, 2, 16]).contains("input keys, fp16 [1, 2, 2, 16], does not fit"))
        #expect(try keys([1, 2, 2, 3], [1, 2, 2, 3]).contains("does not fit"))
        #expect(try keys([2, 1, 16], [2, 1, 16]).contains("does not fit"))
    }

    /// Numbers, names and shapes anywhere in the manifest are exchanged for others, 500 times.
    @Test(arguments: [Manifest.Layout.rows, .apple])
    func aDamagedManifestIsAnError(_ form: Manifest.Layout) async throws {
        let good = try SmallBundle(form)
        let file = good.folder.appendingPathComponent("manifest.json")
        var random = PCG64(seed: 1), refused = 0
        func below(_ n: Int) -> Int { Int(random.uniform() * Double(n)) }
        func damaged(_ value: Any) -> Any {
            if var list = value as? [Any], !list.isEmpty, below(4) > 0 {
                let i = below(list.count)
                list[i] = damaged(list[i])
                return list
            }
            if var fields = value as? [String: Any], !fields.isEmpty, below(8) > 0 {
                let key = fields.keys.sorted()[below(fields.count)]
                fields[key] = below(10) == 0 ? nil : damaged(fields[key] ?? NSNull())
                return fields
            }
            let others: [Any] = [0, -1, 1, 2, 3, 4, 16, 17, 1 << 40, Int.max, 0.5, 1e300, "", "..", "/etc/passwd",
                "keys", "hidden", "fp32", "int32", "fp16", NSNull(), [Int](), [1, 4, 1, 1], [1, 1], ["a": 1], true]
            return others[below(others.count)]
        }
        for _ in 0..<500 {
            try JSONSerialization.data(withJSONObject: damaged(good.manifest), options: .fragmentsAllowed).write(to: file)
            do {
                let session = try Session(ModelBundle(good.folder), predictor: CountingPredictor())
                _ = try await session.respond(to: .tokens([1, 2, 3]))
            } catch is AneBookError { refused += 1 }
        }
        #expect(refused > 350)
        var bytes = Array(try JSONSerialization.data(withJSONObject: good.manifest))
        for _ in 0..<200 {
            let i = below(bytes.count), old = bytes[i]
            bytes[i] = UInt8(below(256))
            try Data(bytes).write(to: file)
            do { _ = try ModelBundle(good.folder) } catch is AneBookError {}
            bytes[i] = old
        }
    }
}

/// The sentence of the error that a call throws; empty where it throws none.
func refusal(_ call: () throws -> Void) -> String {
    do { try call() } catch { return "\(error)" }
    return ""
}
