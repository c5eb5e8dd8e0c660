"""Claims experts-graph, experts-int8: experts in one graph and apart, for one token and for more.

A mixture of experts side by side, its gates given: below and beyond 96 MB, in fp16 and in int8 with
a scale for the bank and for each channel; with fixed shapes of 1 and of 4 tokens, which nobody
timed (claim experts-verify: 4.3 times by a range of shapes); and a single expert, which is all that
a call reads where experts are apart. That int8 kills the quiet experts of a bank needs no Mac:
tests/conversion/test_expert_banks.py.

Question: Does the engine take all experts of a layer in one graph, and how fast is one alone?
"""

from pathlib import Path

from _settle import Case, all_found, conv, ct, graph, main, mb, milliseconds, silent_coremltools
from coremltools.optimize import coreml as optimize

WIDE = (2048, 2048)  # channels and width of ZAYA1's experts
SMALL = (640, 640)  # of Privacy Filter's


def write(experts: int, tokens: int, sizes: tuple[int, int] = SMALL, layers: int = 1, scale=""):
    """layers of so many experts side by side, each a tensor of gates times what they say."""
    channels, width = sizes

    def build(x, gates):
        parts = mb.reshape(x=gates, shape=(1, experts, 1, tokens))
        for _ in range(layers):
            both = conv(x, 2 * experts * width)  # two would have equal weights, stored once
            gate, up = mb.split(x=both, num_splits=2, axis=1)
            said = mb.mul(x=mb.silu(x=gate), y=up)
            each = mb.reshape(x=said, shape=(1, experts, width, tokens))
            each = mb.mul(x=each, y=parts)
            whole = mb.reshape(x=each, shape=(1, experts * width, 1, tokens))
            x = mb.add(x=x, y=conv(whole, channels))
        return mb.identity(x=x, name="y")

    def make(path: Path):
        graph(path, [(1, channels, 1, tokens), (1, experts, 1, tokens)], build)
        if scale:
            config = optimize.OpLinearQuantizerConfig(
                mode="linear_symmetric", dtype="int8", granularity=scale, weight_threshold=1
            )
            with silent_coremltools():
                model = ct.models.MLModel(str(path), skip_model_load=True)
                whole = optimize.OptimizationConfig(global_config=config)
                optimize.linear_quantize_weights(model, whole).save(str(path))

    return make


def decide(results):
    one, four = (milliseconds(results, f"ZAYA's 8 experts, {n}") for n in ("1 token", "4 tokens"))
    return f"four tokens took {four / one:.2f} times one in fixed shapes; {all_found(results)}"


#: 8 experts of ZAYA1 are 201 MB, and their product is 16,384 deep, which the engine takes.
CASES = [
    *(Case(f"one small expert, {n} tokens", write(1, n)) for n in (1, 8, 64)),
    Case("32 small experts, 79 MB", write(32, 64), large=True),
    Case("48 small experts, 118 MB", write(24, 64, layers=2), large=True),
    Case("ZAYA's 8 experts, 1 token", write(8, 1, WIDE), large=True),
    Case("ZAYA's 8 experts, 4 tokens", write(8, 4, WIDE), large=True),
    Case("bank of 16, int8, one scale", write(16, 64, scale="per_tensor"), large=True),
    Case("bank of 16, int8, a scale a channel", write(16, 64, scale="per_channel"), large=True),
]

if __name__ == "__main__":
    main("experts", "experts-graph, experts-int8", CASES, decide)
