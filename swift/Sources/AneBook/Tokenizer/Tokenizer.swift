import Foundation

/// Turns text into the ids of a model's tokens and back, exactly as the model's own tokenizer does.
///
/// It is read from the file tokenizer.bin of a bundle. A value is cheap to copy, for copies share
/// the tables, and may be used by any number of tasks at once.
public struct Tokenizer: Sendable {
    let tables: TokenizerTables

    /// Opens a tokenizer.bin, which is mapped rather than read.
    ///
    /// Throws `AneBookError.invalidBundle` for a file that is not there or is damaged.
    public init(contentsOf url: URL) throws(AneBookError) {
        let data: Data
        do {
            data = try Data(contentsOf: url, options: .mappedIfSafe)
        } catch {
            throw .invalidBundle("cannot read \(url.path): \(error.localizedDescription)")
        }
        try self.init(bytes: data)
    }

    /// Opens the bytes of a tokenizer.bin.
    public init(bytes: Data) throws(AneBookError) {
        tables = try TokenizerTables(PackedFile(bytes))
    }

    /// The ids of a text's tokens; with those the model expects around it if `addSpecialTokens`.
    ///
    /// Throws `AneBookError.invalidBundle` where the file's patterns take too long to split it.
    public func encode(_ text: String, addSpecialTokens: Bool) throws(AneBookError) -> [Int32] {
        let encoder = try encoder(text, places: nil)
        return addSpecialTokens ? tables.before + encoder.ids + tables.after : encoder.ids
    }

    /// What has encoded a text, for its results; places: [] to have those of its tokens, too.
    private func encoder(_ text: String, places: [Range<Int>]?) throws(AneBookError) -> TextEncoder {
        var text = text
        let encoder = text.withUTF8 { bytes in
            tables.file.data.withUnsafeBytes { raw in
                var encoder = TextEncoder(tables, raw)
                encoder.places = places
                encoder.encode(bytes)
                return encoder
            }
        }
        if let refusal = encoder.refusal { throw refusal }
        return encoder
    }

    /// The text of tokens. Special tokens and ids that are none give no text.
    public func decode(_ ids: some Sequence<Int32>) -> String {
        var decoder = TokenDecoder(tables)
        for id in ids { decoder.append(id) }
        return decoder.text()
    }

    /// A token of a text, and which of its Unicode scalars it covers, even in part.
    public struct Located: Equatable, Sendable {
        public let id: Int32
        public let scalars: Range<Int>
    }

    /// A text's tokens with their places, counted in Unicode scalars.
    ///
    /// Throws `AneBookError.invalidInput` where the tokenizer changes the text before it splits it,
    /// for then no token has a place in the text as it was; a byte-level one does not. Else as
    /// `encode` does.
    public func locate(_ text: String) throws(AneBookError) -> [Located] {
        guard tables.hasPlaces else {
            throw .invalidInput("this tokenizer changes a text before it splits it")
        }
        let encoder = try encoder(text, places: [])
        // For each byte the scalar that it belongs to: of a token's last byte and of its first.
        var scalars: [Int] = [], count = -1
        for byte in text.utf8 {
            count += byte & 0xC0 == 0x80 ? 0 : 1
            scalars.append(count)
        }
        return zip(encoder.ids, encoder.places ?? []).map { id, place in
            Located(
                id: id,
                scalars: place.isEmpty
                    ? 0..<0 : scalars[place.lowerBound]..<scalars[place.upperBound - 1] + 1)
        }
    }
}

/// All that a tokenizer.bin says, checked.
final class TokenizerTables: Sendable {
    enum Model: UInt32 { case bytes, characters, words }
    enum Decoding: UInt32 { case bytes, fallback, words }

    let file: PackedFile
    let model: Model
    let decoding: Decoding
    let unknown: Int32?
    let fusesUnknown, fallsBack, wordsBeginAtMarks, trimsPlaces: Bool
    let longestWord, strippedSpaces: Int
    let spaces, prepends: UInt32
    let table: TokenTable
    let shownTexts: TextList
    let prefix: [UInt8]
    let merges: Merges
    /// The token of each byte, or of its name if characters fall back to bytes; -1 for none.
    let byteIds: [Int32]
    let normalizer: CharacterNormalizer?
    let added, addedNormalized: AddedTokens
    let splitter: WordSplitter
    let spaceKinds: UInt64
    let before, after: [Int32]

    /// Whether a token's place in the text can be said.
    var hasPlaces: Bool { model == .bytes && normalizer == nil && !trimsPlaces }

    init(_ file: PackedFile) throws(AneBookError) {
        let head = try file.words("head")
        guard head.count == 13, let model = Model(rawValue: head[0]),
            let decoding = Decoding(rawValue: head[5]), head[7] <= 2, head[8] <= 3
        else { throw damaged("head") }
        (self.file, self.model, self.decoding) = (file, model, decoding)
        table = try TokenTable(file)
        let tokens = table.texts.count
        unknown = head[1] == .max ? nil : Int32(truncatingIfNeeded: head[1])
        (fusesUnknown, fallsBack) = (head[2] != 0, head[3] != 0)
        (longestWord, strippedSpaces) = (Int(head[4]), Int(head[6]))
        (spaces, prepends) = (head[7], head[8])
        (wordsBeginAtMarks, trimsPlaces) = (head[9] != 0, head[10] != 0)
        shownTexts = try file.texts("sho")
        prefix = file.bytes("pref")
        merges = try Merges(file, tokens: tokens)
        splitter = try WordSplitter(file)
        let kinds = try file.words("spac")
        before = try file.words("befo").map { Int32(truncatingIfNeeded: $0) }
        after = try file.words("afte").map { Int32(truncatingIfNeeded: $0) }
        let ids = before + after + (unknown.map { [$0] } ?? [])
        guard ids.allSatisfy({ $0 >= 0 && Int($0) < tokens }), kinds.count == 2,
            decoding == .bytes || shownTexts.count == tokens
        else { throw damaged("an id or a count") }
        spaceKinds = UInt64(kinds[0]) | UInt64(kinds[1]) << 32
        normalizer = head[11] == 0 ? nil : try CharacterNormalizer(file, composes: head[12] != 0)
        byteIds = Self.byteIds(file, table, named: fallsBack)
        guard !fallsBack || byteIds.allSatisfy({ $0 >= 0 }) else { throw damaged("byte tokens") }

        let contents = try file.texts("add"), rows = try file.words("addi")
        guard rows.count == 2 * contents.count,
            (0..<contents.count).allSatisfy({ rows[2 * $0] < tokens })
        else { throw damaged("addi") }
        var plain: [([UInt8], AddedTokens.Added)] = [], changed = plain
        for i in 0..<contents.count {
            let content = file.data.withUnsafeBytes { [UInt8]($0[contents.range(i)]) }
            let text = String(decoding: content, as: UTF8.self), flags = rows[2 * i + 1]
            guard Array(text.utf8) == content else { throw damaged("addb") }
            let token = AddedTokens.Added(
                id: Int32(rows[2 * i]), takesSpaceBefore: flags & 1 != 0,
                takesSpaceBehind: flags & 2 != 0)
            if flags & 4 == 0 {
                plain.append((content, token))
            } else {
                changed.append((Self.normalized(content, normalizer, head), token))
            }
        }
        (added, addedNormalized) = (AddedTokens(plain), AddedTokens(changed))
    }

    private static func byteIds(_ file: PackedFile, _ table: TokenTable, named: Bool) -> [Int32] {
        file.data.withUnsafeBytes { raw in
            (0...255).map { byte in
                let digits = String(byte, radix: 16, uppercase: true)
                let name = Array("<0x\(byte < 16 ? "0" : "")\(digits)>".utf8)
                let key = named ? name : [UInt8(byte)]
                return table.id(of: key, TokenTable.inVocabulary, raw).map { Int32($0) } ?? -1
            }
        }
    }

    private static func normalized(
        _ text: [UInt8], _ normalizer: CharacterNormalizer?, _ head: [UInt32]
    ) -> [UInt8] {
        text.withUnsafeBufferPointer {
            normalizedText($0, normalizer, marksSpaces: head[7] == 1, prepends: head[8] == 1)
        }
    }

    func isSpace(_ scalar: UInt32) -> Bool { spaceKinds >> UInt64(splitter.kinds[scalar]) & 1 != 0 }
}

/// U+2581, which stands for a space in SentencePiece's tokens.
let mark: [UInt8] = [0xE2, 0x96, 0x81]

/// A text as the tokenizer's normaliser has it.
func normalizedText(
    _ text: UnsafeBufferPointer<UInt8>, _ normalizer: CharacterNormalizer?, marksSpaces: Bool,
    prepends: Bool
) -> [UInt8] {
    var out: [UInt8] = []
    out.reserveCapacity(text.count + text.count / 4)
    if prepends, !text.isEmpty { out += mark }
    if let normalizer {
        normalizer.normalize(text, into: &out)
    } else if marksSpaces {
        for byte in text {
            if byte == 0x20 { out += mark } else { out.append(byte) }
        }
    } else {
        out.append(contentsOf: text)
    }
    return out
}
