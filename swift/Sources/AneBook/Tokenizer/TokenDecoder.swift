/// Joins the bytes of tokens to text; whole at any moment, so that a stream can be one.
struct TokenDecoder {
    private let tables: TokenizerTables
    private var bytes: [UInt8] = []
    /// Bytes at the end that tokens stand for one by one: text only if all are valid together.
    private var run: [UInt8] = []
    /// How many bytes of the run are out as text, from the time before the last that came out.
    private var shown = 0
    private var isFirst = true
    private var strippable: Int

    init(_ tables: TokenizerTables) {
        self.tables = tables
        strippable = tables.strippedSpaces
    }

    mutating func append(_ id: Int32) {
        guard id >= 0, Int(id) < tables.table.flags.count else { return }
        let flags = tables.table.flags[Int(id)]
        guard flags & TokenTable.token != 0, flags & TokenTable.special == 0 else { return }
        let isByte = flags & TokenTable.byte != 0
        if !isByte { closeRun() }
        let list =
            tables.decoding == .bytes || (tables.decoding == .words && isFirst)
            ? tables.table.texts : tables.shownTexts
        isFirst = false
        tables.file.data.withUnsafeBytes { raw in
            let text = raw[list.range(Int(id))]
            if isByte { run.append(contentsOf: text) } else { add(text) }
        }
    }

    private mutating func add(_ text: some Collection<UInt8>) {
        if strippable > 0, !text.isEmpty {
            let spaces = text.prefix(strippable).prefix { $0 == 0x20 }.count
            strippable = spaces == text.count ? strippable - spaces : 0
            bytes.append(contentsOf: text.dropFirst(spaces))
        } else {
            bytes.append(contentsOf: text)
        }
    }

    private mutating func closeRun() {
        guard !run.isEmpty else { return }
        let text = shownRun
        run.removeAll(keepingCapacity: true)
        shown = 0
        add(text)
    }

    /// The text of the run without what is out. Of bytes that are not valid together each is
    /// U+FFFD, and as many characters as are out are left out of them.
    private var shownRun: [UInt8] {
        if String(validating: run, as: UTF8.self) != nil { return Array(run[shown...]) }
        let out = run[..<shown].lazy.filter { $0 & 0xC0 != 0x80 }.count
        return (out..<run.count).flatMap { _ in "\u{FFFD}".utf8 }
    }

    /// All text that is not out yet.
    mutating func text() -> String {
        closeRun()
        defer { bytes.removeAll() }
        return String(decoding: bytes, as: UTF8.self)
    }

    /// The text that is not out yet, unless its end may still change.
    mutating func settledText() -> String {
        let open = run.isEmpty ? [] : shownRun
        guard Self.isSettled(open.isEmpty ? bytes : open) else { return "" }
        run.removeFirst(shown)
        shown = run.count
        defer { bytes.removeAll(keepingCapacity: true) }
        return String(decoding: bytes + open, as: UTF8.self)
    }

    /// Whether bytes end with a character, and that is not U+FFFD.
    private static func isSettled(_ bytes: [UInt8]) -> Bool {
        guard let lead = bytes.suffix(4).lastIndex(where: { $0 & 0xC0 != 0x80 }),
            let last = String(validating: bytes[lead...], as: UTF8.self)
        else { return false }
        return last != "\u{FFFD}"
    }
}
