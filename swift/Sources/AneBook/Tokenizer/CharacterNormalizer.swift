/// Changes characters as NFC or BERT's normaliser does, by the tables of tokenizer.bin.
struct CharacterNormalizer: Sendable {
    private let first, second: CharacterTable<UInt16>
    private let marks: CharacterTable<UInt8>
    private let texts: [[UInt32]]
    private let composed: [UInt64: UInt32]
    private let composes: Bool

    /// A text of the tables has no more scalars.
    private static let longest = 32

    init(_ file: PackedFile, composes: Bool) throws(AneBookError) {
        let list = try file.texts("cha")
        let texts = file.data.withUnsafeBytes { raw in
            (0..<list.count).map {
                String(decoding: raw[list.range($0)], as: UTF8.self).unicodeScalars.map(\.value)
            }
        }
        guard texts.allSatisfy({ $0.count <= Self.longest }) else { throw damaged("cha") }
        let rows = try file.words("comp")
        guard rows.count % 3 == 0, rows.allSatisfy({ Unicode.Scalar($0) != nil }) else {
            throw damaged("comp")
        }
        var composed: [UInt64: UInt32] = [:]
        for i in stride(from: 0, to: rows.count, by: 3) {
            composed[UInt64(rows[i]) << 32 | UInt64(rows[i + 1])] = rows[i + 2]
        }
        first = try CharacterTable(file, "fir", below: texts.count + 2)
        second = try CharacterTable(file, "sec", below: texts.count + 2)
        marks = try CharacterTable(file, "mar", below: 256)
        (self.texts, self.composed, self.composes) = (texts, composed, composes)
    }

    /// Append the normalised text. Only characters that may change together are looked at so.
    func normalize(_ text: UnsafeBufferPointer<UInt8>, into out: inout [UInt8]) {
        var run: [UInt32] = [], start = 0, place = 0, isPlain = composes
        func finish() {
            if isPlain {
                out.append(contentsOf: text[start..<place])
            } else {
                write(&run, into: &out)
            }
            (start, isPlain) = (place, composes)
        }
        while place < text.count {
            let (value, length) = scalar(text, place)
            if marks[value] & 128 == 0 {
                finish()
                run.removeAll(keepingCapacity: true)
            } else {
                isPlain = false
            }
            Self.append(value, first[value], texts, to: &run)
            place += length
        }
        finish()
    }

    private static func append(
        _ value: UInt32, _ change: UInt16, _ texts: [[UInt32]], to run: inout [UInt32]
    ) {
        switch change {
        case 0: run.append(value)
        case 1: run += [0x20, value, 0x20]
        default: run += texts[Int(change) - 2]
        }
    }

    /// Put the marks of a run in order, compose, and write what the second table makes of it.
    private func write(_ run: inout [UInt32], into out: inout [UInt8]) {
        if run.count > 1 {
            order(&run)
            if composes { compose(&run) }
        }
        for value in run {
            let change = second[value]
            if change == 0 {
                appendUTF8(value, to: &out)
            } else {
                var changed: [UInt32] = []
                Self.append(value, change, texts, to: &changed)
                for one in changed { appendUTF8(one, to: &out) }
            }
        }
    }

    private func rank(_ value: UInt32) -> UInt8 { marks[value] & 127 }

    /// Sort each series of marks by their classes; those of one class stay as they come.
    private func order(_ run: inout [UInt32]) {
        var start = 0
        while start < run.count {
            var end = start
            while end < run.count, rank(run[end]) != 0 { end += 1 }
            if end - start > 1 {
                let sorted = run[start..<end].enumerated().sorted {
                    (rank($0.element), $0.offset) < (rank($1.element), $1.offset)
                }
                run.replaceSubrange(start..<end, with: sorted.map(\.element))
            }
            start = end + 1
        }
    }

    private func compose(_ run: inout [UInt32]) {
        var kept: [UInt32] = [], starter: Int?, last: UInt8 = 0
        for value in run {
            let rank = rank(value)
            if let at = starter, kept.count == at + 1 || (last != 0 && last < rank),
                let whole = composed[UInt64(kept[at]) << 32 | UInt64(value)]
            {
                kept[at] = whole
                continue
            }
            if rank == 0 { starter = kept.count }
            last = rank
            kept.append(value)
        }
        run = kept
    }
}

func appendUTF8(_ value: UInt32, to out: inout [UInt8]) {
    if value < 0x80 {
        out.append(UInt8(value))
    } else {
        let scalar = Unicode.Scalar(value) ?? "\u{FFFD}"
        out.append(contentsOf: UTF8.encode(scalar) ?? UTF8.encodedReplacementCharacter)
    }
}
