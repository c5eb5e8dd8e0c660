import Foundation

/// A folder that `ane-book convert` wrote: programs, tables and tokenizer of one model.
///
/// Opening reads the manifest, checks it against its contract and the size of every file, and maps
/// the tables. Nothing large is read. A file whose bytes changed at the same size is not noticed
/// here; `verify` compares hashes.
public struct ModelBundle: Sendable {
    public let url: URL
    public let manifest: Manifest
    package let embedding: Table
    let perLayer: Table?
    package let positions: Table?

    private static let largestManifest = 1 << 24

    /// Throws `AneBookError.invalidBundle`, one sentence for the first thing that is wrong.
    ///
    /// force: opens a bundle, too, that failed parity with its model by its evidence.json.
    public init(_ url: URL, force: Bool = false) throws {
        self.url = url
        let file = url.appendingPathComponent("manifest.json")
        guard let size = Self.size(of: file), size <= Self.largestManifest, let data = try? Data(contentsOf: file) else {
            throw AneBookError.invalidBundle(
                "\(url.path): no manifest.json, so not a bundle; give a folder that `ane-book convert` wrote")
        }
        do {
            manifest = try decode(Manifest.self, from: data)
        } catch {
            throw AneBookError.invalidBundle("\(file.path): \(Self.told(error)); convert the model again")
        }
        try manifest.check()
        try Self.checkFiles(manifest, in: url)
        if !force { try Self.checkEvidence(url) }
        func table(_ entry: Manifest.TableEntry) throws -> Table {
            try Table(url.appendingPathComponent(entry.file), rows: entry.shape[0], columns: entry.shape[1])
        }
        embedding = try table(manifest.embedding)
        perLayer = try manifest.perLayer.map { try table($0) }
        positions = try (manifest.vectors?.positions).map { try table($0) }
    }

    /// Where a package lies: compiled (`.mlmodelc`) beside it if it is, else as it was written.
    ///
    /// Core ML compiles a package at its first load, which an app spares its users by shipping
    /// what `xcrun coremlcompiler` makes of it.
    public func program(_ part: Manifest.Part) -> URL {
        Self.compiled(part, in: url) ?? url.appendingPathComponent(part.package)
    }

    private static func compiled(_ part: Manifest.Part, in url: URL) -> URL? {
        let compiled = url.appendingPathComponent(part.package).deletingPathExtension()
            .appendingPathExtension("mlmodelc")
        return FileManager.default.fileExists(atPath: compiled.path) ? compiled : nil
    }

    /// The tokenizer. Throws `invalidBundle` where it is damaged, or of no kind that is known here.
    public func tokenizer() throws -> Tokenizer {
        guard let packed = manifest.tokenizer.packed else {
            let why = manifest.tokenizer.refused?["packed"] ?? "run `swift-tables BUNDLE`, of swift/tables"
            throw AneBookError.invalidBundle("\(url.path) has no tokenizer.bin: \(why)")
        }
        return try Tokenizer(contentsOf: url.appendingPathComponent(packed))
    }

    /// Refuses a bundle that does not give what the model gives; evidence.json may be absent.
    private static func checkEvidence(_ url: URL) throws {
        struct Evidence: Decodable {
            struct Level: Decodable { let status: String, reason: String? }
            let levels: [String: Level]
        }
        let file = url.appendingPathComponent("evidence.json")
        guard size(of: file) ?? .max <= largestManifest, let data = try? Data(contentsOf: file) else { return }
        guard let parity = (try? decode(Evidence.self, from: data))?.levels["L1"], parity.status == "failed"
        else { return }
        throw AneBookError.invalidBundle("\(url.path): failed L1 parity: \(parity.reason ?? "no reason"); "
            + "convert the model again")
    }

    /// Every file is a regular one below the folder, with the bytes that the manifest says.
    ///
    /// Of a package whose compiled form is there, the package itself may be absent; and so may what
    /// only checks elsewhere read, such as golden.npz.
    private static func checkFiles(_ manifest: Manifest, in url: URL) throws {
        let packages = Set(manifest.packages.map(\.package))
        let replaced = Set(manifest.packages.filter { compiled($0, in: url) != nil }.map(\.package))
        var used = [manifest.embedding.file] + manifest.packages.map { "\($0.package)/Manifest.json" }
        used += [manifest.tokenizer.packed, manifest.perLayer?.file, manifest.vectors?.positions?.file]
            .compactMap { $0 }
        if let name = used.first(where: { manifest.files[$0] == nil }) {
            throw AneBookError.invalidBundle("manifest.json: \(name) is used, but not among the files")
        }
        for (name, bytes) in manifest.files {
            let parts = name.split(separator: "/", omittingEmptySubsequences: false)
            guard name.utf8.count <= 255, !name.contains(where: { $0 == "\\" || $0 == ":" || $0 == "\0" }),
                !parts.contains(where: { ["", ".", ".."].contains($0) })
            else {
                throw AneBookError.invalidBundle("manifest.json: \(name.prefix(80)) is no path below the folder")
            }
            let first = String(parts[0])
            if replaced.contains(first) { continue }
            let size = size(of: url.appendingPathComponent(name))
            // What only checks elsewhere read, such as golden.npz, an app need not ship.
            if size == nil, !used.contains(name), !packages.contains(first) { continue }
            guard size == bytes else {
                let state = size.map { "has \($0) bytes" } ?? "is missing, or no regular file"
                throw AneBookError.invalidBundle("\(url.path)/\(name) \(state); manifest.json says \(bytes) bytes; "
                    + "copy or download the bundle again")
            }
        }
    }

    package static func size(of file: URL) -> Int? {
        let attributes = try? FileManager.default.attributesOfItem(atPath: file.path)
        guard attributes?[.type] as? FileAttributeType == .typeRegular else { return nil }
        return (attributes?[.size] as? NSNumber)?.intValue
    }

    /// The place in a JSON file that could not be decoded, and why.
    private static func told(_ error: any Error) -> String {
        let context: DecodingError.Context
        switch error as? DecodingError {
        case .typeMismatch(_, let own), .valueNotFound(_, let own), .dataCorrupted(let own): context = own
        case .keyNotFound(let key, let own):
            let path = (own.codingPath + [key]).map(\.stringValue).joined(separator: ".")
            return "\(path) is missing"
        default: return error.reason
        }
        let path = context.codingPath.map(\.stringValue).joined(separator: ".")
        return "\(path.isEmpty ? "the file" : path): \(context.debugDescription)"
    }
}
