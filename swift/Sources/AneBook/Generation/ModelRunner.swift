import Foundation

/// A bundle's programs, loaded, with their caches: tokens in, logits out.
///
/// Between packages nothing is copied: what one gives is the memory that the next one reads.
package final class ModelRunner {
    let calls: Calls, vocabulary: Int
    /// What is still to be done before a call, a function each.
    private(set) var loads: [Load] = []

    /// A call begins with the first token, or not before this one: windows and tails lack what a
    /// file left out.
    package var floor = 0

    package let manifest: Manifest
    private let layers: [any Step]
    private let inputs: HostInputs
    private let head: [any Step]
    private let values: Values
    private let givesTokens: Bool

    /// Loads nothing yet of the functions that can be called; the others are left alone.
    init(_ bundle: ModelBundle, _ programs: any Programs) throws {
        manifest = bundle.manifest
        (calls, vocabulary) = (Calls(manifest), manifest.embedding.shape[0])
        givesTokens = manifest.givesTokens
        inputs = try HostInputs(bundle)
        let values = Values(inputs.tensors)
        layers = try loadSteps(bundle, manifest.layers, programs, values, calls.functions, &loads)
        head = try loadSteps(bundle, manifest.head, programs, values, calls.functions, &loads)
        self.values = values
    }

    /// dropStates: also what programs keep themselves. It is hidden by the masks until it is
    /// overwritten, unless it may be no number.
    package func clear(dropStates: Bool = true) {
        floor = 0
        for step in layers { step.clear(dropStates: dropStates) }
    }

    /// Hands `use` what the packages of the layers keep: their layers, a store's name and its numbers.
    ///
    /// new: the slots of a tier that is begun anew, and keeps what `use` puts there.
    package func exchange(new slots: Int?, _ use: (Range<Int>, String, Tensor) throws -> Void) throws {
        for case let shard as Shard in layers { try shard.exchange(new: slots) { try use(shard.layers, $0, $1) } }
    }

    /// Runs every function that can be called once, on tokens that it leaves in the caches.
    ///
    /// `check` is called before each program, and may throw.
    func warm(check: () throws -> Void) throws {
        for call in calls.possible.values.sorted(by: { ($0.first, $0.function) < ($1.first, $1.function) }) {
            try run(call, Array(repeating: 0, count: call.end - call.first)[...], check: check)
            try head(call, column: call.function == "verify" ? nil : 0)
        }
    }

    /// Runs the tokens of a call through all layers, in the smallest tier that has room for it.
    ///
    /// `check` is called before each program, and may throw to end the call.
    func run(_ call: Call, _ ids: ArraySlice<Int32>, check: () throws -> Void) throws {
        let tokens = calls.widths[call.function] ?? 1, slots = try calls.tier(call)
        let name = manifest.tierName(call.function, slots)
        inputs.set(name, ids, position: call.first, hidden: values.first(tokens, manifest))
        for step in layers {
            try check()
            try step.run(name, position: call.first, tokens: ids.count)
        }
    }

    /// Runs the head on one column of the last call, or on all of them; the logits are in `row`.
    func head(_ call: Call, column: Int?) throws {
        let function = calls.head(call.function)
        if let column, let tokens = calls.widths[call.function], tokens > 1 {
            let from = values.last(tokens, manifest).halfs, to = values.last(1, manifest).halfs
            for channel in 0..<to.count { to[channel] = from[channel * tokens + column] }
        }
        for step in head { try step.run(function, position: 0, tokens: calls.widths[function] ?? 1) }
    }

    /// The model's output after a column of the call that `head` ran on: parts of (V,), or a token.
    func output(_ function: String, column: Int) -> Output {
        let tokens = calls.widths[function] ?? 1
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
