/// Encodes one text. `raw` is the tokenizer's file.
struct TextEncoder {
    private let tables: TokenizerTables
    private let table: TokenTable
    private let raw: UnsafeRawBufferPointer
    private var merger: Merger
    private var characters = Characters()
    var ids: [Int32] = []
    /// For each id the bytes of the text that it covers, if somebody wants to know.
    var places: [Range<Int>]?
    /// Why the text could not be encoded, if it could not.
    private(set) var refusal: AneBookError?

    init(_ tables: TokenizerTables, _ raw: UnsafeRawBufferPointer) {
        (self.tables, self.raw) = (tables, raw)
        (table, merger) = (tables.table, Merger(tables.merges))
    }

    mutating func encode(_ text: UnsafeBufferPointer<UInt8>) {
        tables.added.split(text, isSpace: tables.isSpace) { range, token in
            if let token {
                append(token, range)
            } else {
                encodePart(UnsafeBufferPointer(rebasing: text[range]), at: range.lowerBound)
            }
        }
    }

    private mutating func append(_ id: Int32, _ place: Range<Int>) {
        ids.append(id)
        places?.append(place)
    }

    /// Encode what lies between added tokens.
    private mutating func encodePart(_ text: UnsafeBufferPointer<UInt8>, at start: Int) {
        let prepends = tables.prepends == 1
        guard tables.normalizer != nil || tables.spaces == 1 || prepends else {
            return encodeNormalized(text, at: start)
        }
        let changed = normalizedText(
            text, tables.normalizer, marksSpaces: tables.spaces == 1, prepends: prepends)
        changed.withUnsafeBufferPointer { encodeNormalized($0, at: start) }
    }

    private mutating func encodeNormalized(_ text: UnsafeBufferPointer<UInt8>, at start: Int) {
        tables.addedNormalized.split(text, isSpace: tables.isSpace) { range, token in
            let place = start + range.lowerBound..<start + range.upperBound
            if let token {
                append(token, place)
                return
            }
            let part = UnsafeBufferPointer(rebasing: text[range])
            guard tables.spaces == 2 else { return encodeWords(part, at: place.lowerBound) }
            var marked = normalizedText(part, nil, marksSpaces: true, prepends: false)
            let prepends = tables.prepends == 2 || (tables.prepends == 3 && place.lowerBound == 0)
            if prepends, !marked.starts(with: mark) { marked = mark + marked }
            marked.withUnsafeBufferPointer { encodeWords($0, at: 0) }
        }
    }

    private mutating func encodeWords(_ text: UnsafeBufferPointer<UInt8>, at start: Int) {
        if tables.wordsBeginAtMarks {
            var from = 0, place = 0
            while place < text.count {
                let isMark = text[place] == mark[0] && text[place...].starts(with: mark)
                if isMark, place > from, !text[from..<place].suffix(3).elementsEqual(mark) {
                    encodeWord(UnsafeBufferPointer(rebasing: text[from..<place]), at: start)
                    from = place
                }
                place += isMark ? 3 : 1
            }
            return encodeWord(UnsafeBufferPointer(rebasing: text[from...]), at: start)
        }
        var characters = Characters()
        swap(&characters, &self.characters)  // lent, for the closure changes `self`
        do throws(AneBookError) {
            try tables.splitter.forEachWord(in: text, &characters) { word in
                encodeWord(
                    UnsafeBufferPointer(rebasing: text[word]), at: start + word.lowerBound)
            }
        } catch { refusal = error }
        swap(&characters, &self.characters)
    }

    private mutating func encodeWord(_ word: UnsafeBufferPointer<UInt8>, at start: Int) {
        guard !word.isEmpty else { return }
        if tables.model == .words { return encodePieces(word) }
        if let id = table.id(of: UnsafeRawBufferPointer(word), TokenTable.wholeWord, raw) {
            return append(Int32(id), start..<start + word.count)
        }
        merger.tokens.removeAll(keepingCapacity: true)
        if tables.model == .bytes { addBytes(word) } else { addCharacters(word) }
        merger.merge()
        var place = start
        for id in merger.tokens {
            ids.append(Int32(id))
            if places != nil {
                let end = min(place + table.texts.range(Int(id)).count, start + word.count)
                places?.append(place..<end)
                place = end
            }
        }
    }

    private mutating func addBytes(_ word: UnsafeBufferPointer<UInt8>) {
        var isUnknown = false
        for byte in word { isUnknown = add(tables.byteIds[Int(byte)], isUnknown) }
    }

    private mutating func addCharacters(_ word: UnsafeBufferPointer<UInt8>) {
        var place = 0, isUnknown = false
        while place < word.count {
            let end = place + scalar(word, place).length
            let key = UnsafeRawBufferPointer(rebasing: UnsafeRawBufferPointer(word)[place..<end])
            if let id = table.id(of: key, TokenTable.inVocabulary, raw) {
                isUnknown = add(Int32(id), isUnknown)
            } else if tables.fallsBack {
                for byte in word[place..<end] {
                    isUnknown = add(tables.byteIds[Int(byte)], isUnknown)
                }
            } else {
                isUnknown = add(-1, isUnknown)
            }
            place = end
        }
    }

    /// Add the token of a character, -1 for none; whether the last one is now an unknown one.
    private mutating func add(_ id: Int32, _ isUnknown: Bool) -> Bool {
        if id >= 0 {
            merger.tokens.append(UInt32(id))
            return false
        }
        guard let unknown = tables.unknown else { return false }
        if !(isUnknown && tables.fusesUnknown) { merger.tokens.append(UInt32(unknown)) }
        return true
    }

    /// WordPiece: the longest token that the word begins with, then the longest of what is left.
    private mutating func encodePieces(_ word: UnsafeBufferPointer<UInt8>) {
        let characters = word.lazy.filter { $0 & 0xC0 != 0x80 }.count
        let first = ids.count
        var start = 0, key = [UInt8](word)
        while start < word.count {
            guard characters <= tables.longestWord,
                let (id, length) = longestPiece(key, behind: start == 0 ? 0 : tables.prefix.count)
            else {
                ids.removeLast(ids.count - first)
                if let unknown = tables.unknown { ids.append(unknown) }
                return
            }
            ids.append(Int32(id))
            start += length - (start == 0 ? 0 : tables.prefix.count)
            key = tables.prefix + word[min(start, word.count)...]
        }
    }

    /// The longest token that a key begins with, which is longer than the prefix, and its length.
    private func longestPiece(_ key: [UInt8], behind prefix: Int) -> (Int, Int)? {
        var end = key.count
        return key.withUnsafeBytes { key in
            while end > prefix {
                let isWhole = end == key.count || key[end] & 0xC0 != 0x80
                if isWhole,
                    let id = table.id(
                        of: UnsafeRawBufferPointer(rebasing: key[..<end]), TokenTable.inVocabulary,
                        raw)
                {
                    return (id, end)
                }
                end -= 1
            }
            return nil
        }
    }
}
