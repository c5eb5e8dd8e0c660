/// A call of the layers: its function, its first slot, and the one after its last.
struct Call: Equatable {
    let function: String, first: Int, end: Int
}

/// How tokens are cut into calls, and of which functions, as the manifest alone says.
struct Calls {
    let context: Int, widths: [String: Int], tiers: [Int]
    /// K: how many tokens a call of `verify` takes; 1 without it.
    let block: Int
    /// A call of each of the layers' functions that some token's call can be of, by its tier's name.
    private(set) var possible: [String: Call] = [:]
    private let manifest: Manifest

    init(_ manifest: Manifest) {
        (self.manifest, context, widths, tiers) = (manifest, manifest.context, manifest.functions, manifest.tiers)
        block = widths["verify"] ?? 1
        for position in 0..<context {
            // The last slot is that of an answer's last token, which is never run.
            for tokens in [1, 2] where position + tokens < context {
                guard let call = cut(position: position, tokens: tokens).first, let slots = try? tier(call) else { continue }
                possible[manifest.tierName(call.function, slots)] = call
            }
        }
    }

    /// Cuts tokens from slot `position` on into calls, for each of which the cache has T slots.
    ///
    /// Where `verify` is the only function it takes them all, block by block. guesses: the number of
    /// guesses after a single token; its call takes what it has room for.
    func cut(position: Int, tokens: Int, guesses: Int = 0) -> [Call] {
        let end = position + tokens
        var calls: [Call] = [], position = position
        while position < end {
            let call: Call
            if let width = widths["prefill"], end - position > 1, position + width <= context {
                call = Call(function: "prefill", first: position, end: min(position + width, end))
            } else {
                call = step(position, tokens: end - position + guesses)
            }
            calls.append(call)
            position = call.end
        }
        return calls
    }

    /// The call for the token of slot `position`, and as many after it as the call takes.
    ///
    /// `verify` takes the block of K slots that the token is in, and runs the block's earlier tokens
    /// again: so a token has the same column of the same graph, and the same result to the bit,
    /// guessed or not. `decode` takes the slots at the context's end that are no whole block.
    func step(_ position: Int, tokens: Int) -> Call {
        let first = position - position % block
        if block == 1 || first + block > context {
            return Call(function: "decode", first: position, end: position + 1)
        }
        return Call(function: "verify", first: first, end: min(first + block, position + tokens))
    }

    /// The smallest tier that has room for a call, by its slots.
    func tier(_ call: Call) throws -> Int {
        let end = call.first + (widths[call.function] ?? 1)
        guard let slots = tiers.first(where: { end <= $0 }) else {
            throw AneBookError.promptTooLong("no cache has room for slot \(end)")
        }
        return slots
    }

    /// The function of the head for a call: its result is that of one column, or of all where guesses
    /// are checked.
    func head(_ function: String) -> String { function == "verify" ? function : "decode" }

    /// Of a package's functions, those that can be called.
    func functions(_ part: Manifest.Part) -> Set<String> {
        let names = part.part == .head ? possible.values.map { head($0.function) } : Array(possible.keys)
        // Without a cache, the tiers share a function.
        return Set(names.map { part.functions[$0] == nil ? manifest.names[$0] ?? $0 : $0 })
    }
}
