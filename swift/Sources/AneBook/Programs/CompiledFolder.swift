import Foundation

/// Where what is made of packages is kept: a folder each, named after what it is made of.
struct CompiledFolder {
    let url: URL

    /// What `load` makes of a package's kept folder; one that cannot be loaded is made again, once.
    func load<Loaded>(
        _ function: FunctionReference, make: () throws -> URL, load: (URL) throws -> Loaded
    ) throws -> Loaded {
        var isNew = false
        let kept = try compiled(function) {
            isNew = true
            return try make()
        }
        do { return try load(kept) } catch where !isNew {
            try? FileManager.default.removeItem(at: kept)
            return try load(compiled(function, make: make))
        }
    }

    /// The kept folder of a package, or what `make` makes, moved to its place.
    ///
    /// `make` gives a folder that may be taken. Where nothing can be kept, that folder is the answer.
    private func compiled(_ function: FunctionReference, make: () throws -> URL) throws -> URL {
        let files = FileManager.default, (stem, name) = names(function)
        let place = url.appendingPathComponent(name, isDirectory: true)
        if files.fileExists(atPath: place.path) { return place }
        let new = try make()
        // Those of the same package before the system, the app or the conversion was renewed.
        for old in (try? files.contentsOfDirectory(atPath: url.path)) ?? []
        where old.hasPrefix("\(stem)-") && old != place.lastPathComponent {
            try? files.removeItem(at: url.appendingPathComponent(old))
        }
        // A temporary folder may be on another volume, and a move from there a copy in parts. So it
        // goes beside its place first, and then into it by a rename, which is whole or not at all.
        let beside = url.appendingPathComponent("\(UUID().uuidString).mlmodelc", isDirectory: true)
        do {
            try files.createDirectory(at: url, withIntermediateDirectories: true)
            try files.moveItem(at: new, to: beside)
        } catch {
            return new  // a full disk, or a folder that may only be read
        }
        do {
            try files.moveItem(at: beside, to: place)
            return place
        } catch {  // another process was faster
            guard files.fileExists(atPath: place.path) else { return beside }
            try? files.removeItem(at: beside)
            return place
        }
    }

    /// The kept folders of no package of these bundles.
    func others(_ bundles: [ModelBundle]) -> [URL] {
        let own = Set(bundles.flatMap { bundle in
            bundle.manifest.packages.compactMap { part in
                part.functions.first.map { names(FunctionReference(bundle, part, $1, name: $0)).name }
            }
        })
        let kept = (try? FileManager.default.contentsOfDirectory(atPath: url.path)) ?? []
        return kept.filter { $0.hasSuffix(".mlmodelc") && !own.contains($0) }.sorted().map { url.appendingPathComponent($0) }
    }

    /// A stem that stays what it is when a bundle's folder is renewed, and a name that changes with
    /// the system, the bundle's seal, and any path or size of the package's files; without a seal,
    /// which names their bytes, with their dates too.
    ///
    /// The folder's path is in neither: that of an app changes with each of its updates.
    private func names(_ function: FunctionReference) -> (stem: String, name: String) {
        let files = FileManager.default, package = function.package
        var lines = [ProcessInfo.processInfo.operatingSystemVersionString, function.seal]
        for path in (files.enumerator(atPath: package.path)?.compactMap { $0 as? String } ?? []).sorted() {
            let facts = try? files.attributesOfItem(atPath: package.appendingPathComponent(path).path)
            guard facts?[.type] as? FileAttributeType == .typeRegular else { continue }
            let date = function.seal.isEmpty ? facts?[.modificationDate] as? Date : nil
            lines.append("\(path) \((facts?[.size] as? NSNumber)?.intValue ?? 0) \(date?.timeIntervalSince1970 ?? 0)")
        }
        func hash(_ text: String) -> Substring { text.sha256.prefix(16) }
        let stem = "\(package.deletingPathExtension().lastPathComponent)-\(hash(function.folder))"
        return (stem, "\(stem)-\(hash(lines.joined(separator: "\n"))).mlmodelc")
    }
}
