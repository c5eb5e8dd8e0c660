import Foundation

/// Where what is made of packages is kept: a folder each, named after what it is made of.
struct CompiledFolder {
    let url: URL

    /// The kept folder of a package, or what `make` makes, moved to its place.
    ///
    /// `make` gives a folder that may be taken. Where nothing can be kept, that folder is the answer.
    func compiled(_ package: URL, make: () throws -> URL) throws -> URL {
        let files = FileManager.default, place = url.appendingPathComponent(name(package), isDirectory: true)
        if files.fileExists(atPath: place.path) { return place }
        let new = try make()
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

    /// A name that changes with the system, and any path, size or date of the package's files.
    ///
    /// The path of the package itself is left out: that of an app changes with each of its updates.
    private func name(_ package: URL) -> String {
        let files = FileManager.default
        var lines = [ProcessInfo.processInfo.operatingSystemVersionString]
        for path in (files.enumerator(atPath: package.path)?.compactMap { $0 as? String } ?? []).sorted() {
            let facts = try? files.attributesOfItem(atPath: package.appendingPathComponent(path).path)
            guard facts?[.type] as? FileAttributeType == .typeRegular else { continue }
            let date = (facts?[.modificationDate] as? Date)?.timeIntervalSince1970 ?? 0
            lines.append("\(path) \((facts?[.size] as? NSNumber)?.intValue ?? 0) \(date)")
        }
        // FNV-1a: http://www.isthe.com/chongo/tech/comp/fnv/
        let hash = lines.joined(separator: "\n").utf8.reduce(0xcbf2_9ce4_8422_2325 as UInt64) {
            ($0 ^ UInt64($1)) &* 0x100_0000_01b3
        }
        let stem = package.deletingPathExtension().lastPathComponent
        return "\(stem)-\(String(hash, radix: 16)).mlmodelc"
    }
}
