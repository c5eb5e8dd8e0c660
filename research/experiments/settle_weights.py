"""Claims scale-per-block, palette-slow, palette-taken, integers-on-cpu: forms of weights.

The same eight 1x1 convolutions of 1,024 channels over 256 columns, with weights in half precision
and in each form: where they run, whether they are right, how fast. The claims contradict each other
by chip, system and route (Core ML, Core AI); one chip and one system at a time settles them.

Question: Which stored forms of weights does the engine take, and how fast are they?
"""

from pathlib import Path

from _settle import Case, conv, ct, found, graph, main, mb, milliseconds, silent_coremltools
from coremltools.optimize import coreml as optimize

CHANNELS, COLUMNS, LAYERS = 1024, 256, 8


def linear(dtype: str, granularity: str, **more):
    return optimize.linear_quantize_weights, optimize.OpLinearQuantizerConfig(
        mode="linear_symmetric", dtype=dtype, granularity=granularity, **more
    )


def palette(bits: int, **more):
    own = {"mode": "uniform", "nbits": bits} | more  # the form matters here, not the loss
    return optimize.palettize_weights, optimize.OpPalettizerConfig(**own)


GROUPED = {"granularity": "per_grouped_channel"}
FORMS = {
    "fp16": None,
    "int8, scale per channel": linear("int8", "per_channel"),
    "int4, scale per channel": linear("int4", "per_channel"),
    "int4, blocks of 32": linear("int4", "per_block", block_size=32),
    "8-bit palette": palette(8),
    "6-bit palette": palette(6),
    "4-bit palette": palette(4),
    "4-bit palettes, groups of 16": palette(4, group_size=16, **GROUPED),
    "4-bit palette per channel": palette(4, group_size=1, **GROUPED),
}


def write(form):
    def make(path: Path):
        def build(x):
            for _ in range(LAYERS):
                x = mb.relu(x=conv(x, CHANNELS))
            return mb.identity(x=x, name="y")

        graph(path, [(1, CHANNELS, 1, COLUMNS)], build)
        if form:
            compress, config = form
            with silent_coremltools():
                model = ct.models.MLModel(str(path), skip_model_load=True)
                whole = optimize.OptimizationConfig(global_config=config)
                compress(model, whole).save(str(path))

    return make


def decide(results):
    plain = milliseconds(results, "fp16")
    speeds = (f"{found(results, n)}, {plain / milliseconds(results, n):.2f} x" for n in FORMS)
    return f"speed as a multiple of half precision's, {plain:.3g} ms: {'; '.join(speeds)}"


#: Nine forms of 16 MB take a minute to make: a dry run makes two.
DRY = ("int4, blocks of 32", "4-bit palette")
CASES = [Case(name, write(form), large=name not in DRY) for name, form in FORMS.items()]

if __name__ == "__main__":
    main("weights", "scale-per-block, palette-slow, palette-taken, integers-on-cpu", CASES, decide)
