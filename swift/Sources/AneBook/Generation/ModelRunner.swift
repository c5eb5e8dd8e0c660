import Foundation

/// A bundle's programs, loaded, with their caches: tokens in, logits out.
///
/// Between packages nothing is copied: what one gives is the memory that the next one reads.
final class ModelRunner {
    let context: Int, vocabulary: Int
    /// K: how many tokens a call of `verify` takes; 1 without it.
    let block: Int
    /// How often the layers were called, by the slots of the tier.
    private(set) var tiers: [Int: Int] = [:]

    /// A call begins with the first token, or not before this one: windows and tails lack what a
    /// file left out.
    var floor = 0

    let manifest: Manifest, sorted: [Int], layers: [any Step]
    private let widths: [String: Int]
    private let inputs: HostInputs
    private let head: [any Step]
    private let values: Values
    private let givesTokens: Bool

    /// A call: its function, its first slot, and the one after its last.
    struct Call: Equatable {
        let function: String, first: Int, end: Int
    }

    /// Loads all programs; `progress` is told after each how many of how many are there.
    init(_ bundle: ModelBundle, _ programs: any Programs, progress: (Int, Int) -> Void = { _, _ in }) throws {
        manifest = bundle.manifest
        (context, vocabulary) = (manifest.context, manifest.embedding.shape[0])
        (widths, sorted) = (manifest.functions, manifest.tiers)
        block = widths["verify"] ?? 1
        givesTokens = manifest.givesTokens
        inputs = try HostInputs(bundle)
        let values = Values(inputs.tensors), all = manifest.packages.count { $0.part != .experts }
        var loaded = 0
        func steps(_ parts: [Manifest.Part]) throws -> [any Step] {
            try loadSteps(bundle, parts, programs, values) {
                loaded += 1
                progress(loaded, all)
            }
        }
        layers = try steps(manifest.layers)
        head = try steps(manifest.head)
        self.values = values
    }

    func clear() {
        floor = 0
        for step in layers { step.clear() }
    }

    /// Cuts tokens from slot `position` on into calls, for each of which the cache has T slots.
    ///
    /// Where `verify` is the only function it takes them all, block by block. guesses: the number of
    /// guesses after a single token; its call takes what it has room for.
    func calls(position: Int, tokens: Int, guesses: Int = 0) -> [Call] {
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

    /// Runs the tokens of a call through all layers, in the smallest tier that has room for it.
    ///
    /// `check` is called before each program, and may throw to end the call.
    func run(_ call: Call, _ ids: ArraySlice<Int32>, check: () throws -> Void) throws {
        let tokens = widths[call.function] ?? 1
        guard let slots = sorted.first(where: { call.first + tokens <= $0 }) else {
            throw AneBookError.promptTooLong("no cache has room for slot \(call.first + tokens)")
        }
        tiers[slots, default: 0] += 1
        let name = manifest.tierName(call.function, slots)
        inputs.set(name, ids, position: call.first, hidden: values.first(tokens, manifest))
        for step in layers {
            try check()
            try step.run(name, position: call.first, tokens: ids.count)
        }
    }

    /// Runs the head on one column of the last call, or on all of them; the logits are in `row`.
    func head(_ call: Call, column: Int?) throws {
        var function = call.function
        if let column, let tokens = widths[call.function], tokens > 1 {
            function = "decode"
            let from = values.last(tokens, manifest).halfs, to = values.last(1, manifest).halfs
            for channel in 0..<to.count { to[channel] = from[channel * tokens + column] }
        }
        for step in head { try step.run(function, position: 0, tokens: widths[function] ?? 1) }
    }

    /// The model's output after a column of the call that `head` ran on: parts of (V,), or a token.
    func output(_ function: String, column: Int) -> Output {
        let tokens = widths[function] ?? 1
        if givesTokens {
            return Output(parts: [], token: values["token", tokens]?.integers[column], column: column)
        }
        let parts = values.logits(tokens)
        return Output(parts: parts, token: nil, column: column)
    }
}

/// What the head gives after one token: logits in parts (1, V_i, 1, T), or the likeliest token.
package struct Output {
    let parts: [Tensor]
    let token: Int32?
    let column: Int

    package init(parts: [Tensor], token: Int32?, column: Int) {
        (self.parts, self.token, self.column) = (parts, token, column)
    }
}
