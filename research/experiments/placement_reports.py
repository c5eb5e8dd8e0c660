"""Rebuild graphs whose placement others reported, predict it, and hold the two side by side.

    python research/experiments/placement_reports.py     # prints the table, and writes the file

The reports stand in `research/measurements/placement_reports.json`: `reported` is ANE, CPU or
split, `ops` are those on the ANE, `assumed` is what the report leaves open. None was used in
fitting. Each graph is made with coremltools' builder. Weights are all alike: nobody reads them, and
a weight file is filled up to the size of its report. A report is judged by the figures of its chip
(`figures`), one of a chip that is not stated by those of any. `off` names ops that were reported
off the ANE: one of them predicted there for sure is a miss. `roofline` and `weights` are what the
roofline alone and the rule of 2 MB of weights say. `before` is what was said of a report
until whole programs, generations and tried ranges were rules.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
import json
import os
from pathlib import Path
import tempfile

from ane_book_pages.segmenter.held_out import LEAST
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import Function, Program, types
from mlprogram.ane.placement import Placement, place
from mlprogram.ane.placement.estimator import Estimator, chips
from mlprogram.ane.placement.placed import place_ops
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "research/measurements/placement_reports.json"

Network = Callable  # of inputs and states, in their order


# --- parts of graphs ------------------------------------------------------------------------------


def weight(*shape: int) -> np.ndarray:
    return np.broadcast_to(np.float16(0.01), shape)


def project(x, channels: int):
    """A projection as a 1x1 convolution: (1, C, 1, T) -> (1, channels, 1, T)."""
    return mb.conv(x=x, weight=weight(channels, x.shape[1], 1, 1))


def rms_norm(x):
    """In the form that most converters write: square, mean, rsqrt, two products."""
    squares = mb.reduce_mean(x=mb.mul(x=x, y=x), axes=[1], keep_dims=True)
    scale = mb.rsqrt(x=mb.add(x=squares, y=np.float16(1e-5)))
    return mb.mul(x=mb.mul(x=x, y=scale), y=weight(1, x.shape[1], 1, 1))


def attention(q, k, v, heads: int):
    """(1, heads * d, 1, T) over keys and values (1, heads * d, 1, S)."""
    (_, channels, _, positions), slots = q.shape, k.shape[3]
    split = [1, heads, channels // heads]
    q, k, v = (
        mb.reshape(x=x, shape=[*split, n]) for x, n in ((q, positions), (k, slots), (v, slots))
    )
    scores = mb.softmax(x=mb.matmul(x=q, y=k, transpose_x=True), axis=3)
    out = mb.matmul(x=v, y=scores, transpose_y=True)
    return mb.reshape(x=out, shape=[1, channels, 1, positions])


def cached(new, cache, positions: int):
    """The new rows written into a cache at slot 0, and the whole of it."""
    old = mb.read_state(input=cache)
    end = [*old.shape[:3], positions]
    written = mb.slice_update(x=old, update=new, begin=[0, 0, 0, 0], end=end)
    return mb.coreml_update_state(state=cache, value=written)


def decoder_layer(x, heads: int, inner: int, caches=()):
    """Norm, attention with a cache where there is one, norm, gated product."""
    y, channels = rms_norm(x), x.shape[1]
    q, k, v = (project(y, channels) for _ in range(3))
    if caches:
        k, v = (cached(new, cache, x.shape[3]) for new, cache in zip((k, v), caches, strict=True))
    x = mb.add(x=x, y=project(attention(q, k, v, heads), channels))
    y = rms_norm(x)
    gated = mb.mul(x=mb.silu(x=project(y, inner)), y=project(y, inner))
    return mb.add(x=x, y=project(gated, channels))


def encoder(layers: int, heads: int) -> Network:
    """Layer norm, attention, layer norm, two products with gelu between."""

    def network(x):
        channels = x.shape[1]
        for _ in range(layers):
            y = mb.layer_norm(x=x, axes=[1])
            q, k, v = (project(y, channels) for _ in range(3))
            x = mb.add(x=x, y=project(attention(q, k, v, heads), channels))
            y = mb.gelu(x=project(mb.layer_norm(x=x, axes=[1]), 4 * channels))
            x = mb.add(x=x, y=project(y, channels))
        return x

    return network


def decoder(layers: int, heads: int, inner: int) -> Network:
    """So many decoder layers; after x come two caches for each of them."""

    def network(x, *caches):
        for layer in range(layers):
            x = decoder_layer(x, heads, inner, caches[2 * layer : 2 * layer + 2])
        return x

    return network


def chain(*channels: int) -> Network:
    """1x1 convolutions with relu after each."""

    def network(x):
        for width in channels:
            x = mb.relu(x=project(x, width))
        return x

    return network


def around(op: Callable) -> Network:
    """An op between four 3x3 convolutions of 256 channels on either side."""

    def convolutions(x):
        for _ in range(4):
            w = weight(x.shape[1], x.shape[1], 3, 3)
            x = mb.relu(x=mb.conv(x=x, weight=w, pad_type="same"))
        return x

    return lambda x: convolutions(op(convolutions(x)))


def head(vocabulary: int, top: int = 0) -> Network:
    """A vocabulary's scores; with the largest of them, where `top` is given."""

    def network(x):
        scores = project(rms_norm(x), vocabulary)
        if not top:
            return scores
        values, indices = mb.topk(x=scores, k=top, axis=1)
        return values, mb.cast(x=indices, dtype="fp16")

    return network


def mixed(old, new, kept: float):
    return mb.add(x=mb.mul(x=old, y=np.float16(kept)), y=mb.mul(x=new, y=np.float16(1 - kept)))


def adam_step(x, w1, w2, m1, m2, v1, v2):
    """Forward and backward of a network of two layers, and a step of Adam for both weights."""
    hidden = mb.relu(x=mb.matmul(x=x, y=w1))  # (256, 1024) -> (256, 2048)
    error = mb.sub(x=mb.matmul(x=hidden, y=w2), y=x)
    g2 = mb.matmul(x=hidden, y=error, transpose_x=True)
    back = mb.mul(x=mb.matmul(x=error, y=w2, transpose_y=True), y=hidden)
    g1 = mb.matmul(x=x, y=back, transpose_x=True)
    results = []
    for w, g, m, v in ((w1, g1, m1, v1), (w2, g2, m2, v2)):
        m = mb.add(x=mb.mul(x=m, y=np.float16(0.9)), y=mb.mul(x=g, y=np.float16(0.1)))
        v = mb.add(
            x=mb.mul(x=v, y=np.float16(0.99)), y=mb.mul(x=mb.mul(x=g, y=g), y=np.float16(0.01))
        )
        step = mb.real_div(x=m, y=mb.add(x=mb.sqrt(x=v), y=np.float16(1e-3)))
        results += [mb.sub(x=w, y=mb.mul(x=step, y=np.float16(1e-3))), m, v]
    return tuple(results)


def experts(downs: int) -> Network:
    """128 experts of 640 channels: both up projections as one, the down projections as `downs`."""

    def network(x):
        gate, up = mb.split(x=project(x, 2 * 128 * 640), num_splits=2, axis=1)
        inner = mb.mul(x=mb.mul(x=gate, y=mb.sigmoid(x=gate)), y=up)
        parts = [inner] if downs == 1 else mb.split(x=inner, num_splits=downs, axis=1)
        result = project(parts[0], 640)
        for part in parts[1:]:
            result = mb.add(x=result, y=project(part, 640))
        return result

    return network


def square(x):
    """One 3x3 convolution of as many channels as there are."""
    w = weight(x.shape[1], x.shape[1], 3, 3)
    return mb.conv(x=x, weight=w, pad_type="same")


def linear(channels: int) -> Network:
    return lambda x: mb.linear(x=x, weight=weight(channels, x.shape[-1]))


def short_convolutions(x, *histories):
    """LFM2's layers without attention: a gated depthwise convolution, norm, gated product."""
    channels = x.shape[1]
    for layer, history in enumerate(histories):
        gate, new, out = mb.split(x=project(rms_norm(x), 3 * channels), num_splits=3, axis=1)
        window = mb.concat(values=[history, mb.mul(x=gate, y=new)], axis=3)
        mixed_in = mb.conv(
            x=window, weight=weight(channels, 1, 1, 3), groups=channels, name=f"depthwise_{layer}"
        )
        x = mb.add(x=x, y=project(mb.mul(x=mixed_in, y=out), channels))
        y = rms_norm(x)
        gated = mb.mul(x=mb.silu(x=project(y, 4608)), y=project(y, 4608))
        x = mb.add(x=x, y=project(gated, channels))
    return x


def fused_attentions(x):
    """Two layers of convolutions, each with an attention as one op."""
    for _ in range(2):
        q, k, v = (mb.reshape(x=project(x, 1024), shape=[1, 16, 64, 128]) for _ in range(3))
        q, k, v = (mb.transpose(x=each, perm=[0, 1, 3, 2]) for each in (q, k, v))
        y = mb.scaled_dot_product_attention(query=q, key=k, value=v)
        y = mb.reshape(x=mb.transpose(x=y, perm=[0, 1, 3, 2]), shape=[1, 1024, 1, 128])
        x = mb.add(x=x, y=project(mb.relu(x=project(y, 4096)), 1024))
    return x


# --- the graphs, by the names of their reports ----------------------------------------------------

MAPS = (1, 256, 64, 64)


def row(channels: int, positions: int = 1) -> tuple[int, ...]:
    return (1, channels, 1, positions)


def caches(layers: int, channels: int, slots: int) -> list[tuple[int, ...]]:
    """Keys and values of each layer."""
    return [row(channels, slots)] * 2 * layers


def narrow(x):
    return mb.slice_by_index(x=x, begin=[0, 0, 0, 0], end=[1, 256, 64, 4])


#: Network, shapes of its inputs, and of its caches where it has some.
GRAPHS: dict[str, tuple] = {
    "coreml-fp16-2": (chain(512, 512), [(1, 512, 1, 4096)]),
    "MicroGPT, 16 channels": (decoder(1, 4, 64), [row(16)], caches(1, 16, 16)),
    "MicroGPT, 512 channels": (decoder(6, 8, 2048), [row(512)], caches(6, 512, 64)),
    "encoder, tiny": (encoder(2, 4), [row(128, 64)]),
    "encoder, realistic": (encoder(6, 6), [row(384, 64)]),
    "products, 1 layer": (chain(2048), [row(4096)]),
    "products, 2 layers": (chain(2048, 4096), [row(4096)]),
    "products, 4 layers": (chain(2048, 4096, 2048, 4096), [row(4096)]),
    "product of 4 x 4": (lambda x, y: mb.matmul(x=x, y=y), [(4, 4), (4, 4)]),
    "a step of Adam": (adam_step, [(256, 1024), *[(1024, 2048), (2048, 1024)] * 3]),
    "verifier, 64 channels": (decoder(1, 4, 128), [row(64, 4)], caches(1, 64, 256)),
    "verifier, 1,024 channels": (decoder(1, 16, 2048), [row(1024, 4)], caches(1, 1024, 256)),
    "verifier, 3,072 channels": (decoder(1, 24, 8192), [row(3072, 4)], caches(1, 3072, 512)),
    "ZAYA, query to output": (lambda x: project(project(x, 1024), 2048), [row(2048)]),
    "Phi-4-mini head, quarter": (head(50016), [row(3072)]),
    "the same with topk": (head(50016, 8), [row(3072)]),
    "Phi-4-mini head, third": (head(66688), [row(3072)]),
    "Privacy Filter, down as one": (experts(1), [row(640, 64)]),
    "Privacy Filter, down as four": (experts(4), [row(640, 64)]),
    "slice between convolutions": (around(narrow), [MAPS]),
    "topk between convolutions": (around(lambda x: mb.topk(x=x, k=4, axis=3)[0]), [MAPS]),
    "relu between convolutions": (around(lambda x: mb.relu(x=x)), [MAPS]),
    "convolution, 128 channels": (square, [(1, 128, 32, 32)]),
    "convolution, 256 channels": (square, [(1, 256, 32, 32)]),
    "product, 4,096 deep": (chain(17408), [row(4096)]),
    "product, 5,120 deep": (chain(17408), [row(5120)]),
    "product, 17,408 deep": (chain(5120), [row(17408)]),
    "LFM2, short convolutions": (short_convolutions, [row(1024), row(1024, 2), row(1024, 2)]),
    "96 products, 1.61 GB": (chain(*[2048] * 4), [row(2048, 64)]),
    "Bonsai, 1.94 GB": (chain(*[2048] * 4), [row(2048, 64)]),
    "Phi-4-mini, 20 layers": (chain(*[2048] * 4), [row(2048, 64)]),
    "128 products, 2.15 GB": (chain(*[2048] * 4), [row(2048, 64)]),
    "Phi-4-mini, 24 layers": (chain(*[2048] * 4), [row(2048, 64)]),
    "Qwen3.5-2B, 3.77 GB": (chain(*[2048] * 4), [row(2048, 64)]),
    "two fused attentions": (fused_attentions, [row(1024, 128)]),
    "width of 32,000": (chain(64, 64, 64, 64), [row(64, 32000)]),
    "GPT-2 head": (linear(50257), [(1, 1, 768)]),
    "state, 270 wide": (decoder(1, 16, 2048), [row(1024, 4)], caches(1, 1024, 270)),
}

#: Bytes of weight files that are filled up, because their size is what was reported on.
FILES = {
    "96 products, 1.61 GB": 1_610_000_000,
    "Bonsai, 1.94 GB": 1_940_000_000,
    "Phi-4-mini, 20 layers": 2_015_800_000,
    "128 products, 2.15 GB": 2_150_000_000,
    "Phi-4-mini, 24 layers": 2_300_000_000,
    "Qwen3.5-2B, 3.77 GB": 3_770_000_000,
}


# --- prediction -----------------------------------------------------------------------------------


def write_package(
    path: Path,
    network: Network,
    shapes: Sequence[tuple[int, ...]],
    states: Sequence[tuple[int, ...]] = (),
) -> Path:
    """Write a network of fp16 inputs and states as a package, its ops as they were built."""
    made = {f"x{i}": mb.placeholder(shape, types.fp16) for i, shape in enumerate(shapes)}
    made |= {
        f"cache{i}": mb.state_tensor_placeholder(shape, types.fp16)
        for i, shape in enumerate(states)
    }
    with Function(made, opset_version=ct.target.macOS15) as function:
        results = network(*function.inputs.values())
        function.set_outputs([*results] if isinstance(results, tuple) else [results])
    program = Program()
    program.add_function("main", function)
    model = ct.convert(
        program,
        convert_to="mlprogram",
        minimum_deployment_target=ct.target.macOS15,
        pass_pipeline=ct.PassPipeline.EMPTY,
        skip_model_load=True,
    )
    model.save(str(path))
    return path


def figures(chip: str) -> str:
    """The name of a reported chip, such as "M4 Max", among those with figures."""
    name = chip.lower().replace(" ", "-")
    return name if name in chips() else "any"


def predict(report: dict) -> tuple[Placement, Placement, int]:
    """Build the graph of a report, write it, and place it as any other package.

    Returned with it: the placement by the roofline alone, and the bytes of weights.
    """
    name = report["name"]
    with tempfile.TemporaryDirectory() as folder:
        path = write_package(Path(folder, "graph.mlpackage"), *GRAPHS[name])
        if name in FILES:  # a hole that takes no room on the disk
            os.truncate(path / "Data/com.apple.CoreML/weights/weight.bin", FILES[name])
        placement = place(path, figures(report["chip"]))
    ops, file = [each.op for each in placement.placed], FILES.get(name, 0)
    bare = replace(Estimator.of(placement.chip), trees={}, own={}, widening={})
    weights = file or sum(op.weight_bytes for op in ops)
    return placement, place_ops(ops, bare, weight_file=file), weights


def device(placement: Placement) -> str:
    """ "ANE", "CPU", "split" or "depends", as reports are worded: of all arithmetic."""
    words = {
        "ANE" if each.work > 0.9 else "split" if each.work > 0.1 else "CPU"
        for each in (placement.best, placement.worst)
    }
    return words.pop() if len(words) == 1 else "depends"


def outcome(report: dict) -> dict:
    """A report with what is predicted of its graph."""
    placement, bare, weights = predict(report)
    found = device(placement)
    same = "hit" if found == report["reported"] else "depends" if found == "depends" else "miss"
    off = [on for each, on in zip(placement.placed, placement.devices, strict=True)
           if report.get("off") and each.op.name.startswith(report["off"])]  # fmt: skip
    if "ANE" in off:
        same = "miss"
    return {key: report[key] for key in FACTS if key in report} | {
        "figures": placement.chip,
        "predicted": found,
        "outcome": same,
        "roofline": device(bare),
        "weights": "ANE" if weights >= LEAST else "CPU",
        "ops_on_ane": [sum(each.on_ane) for each in (placement.worst, placement.best)],
        "ops_in_all": len(placement.placed),
        "milliseconds": [each.route.cost for each in (placement.best, placement.worst)],
        "open": placement.open,
    }


FACTS = ("name", "source", "chip", "reported", "ops", "assumed", "off", "before")


def table(reports: list[dict]) -> str:
    """The reports as Markdown."""
    lines = ["| graph | chip | reported | predicted | |", "|---|---|---|---|---|"]
    lines += [
        f"| {r['name']} | {r['chip']} | {r['reported']} ({r['ops']}) | {r['predicted']} | "
        f"{r['outcome']} |"
        for r in reports
    ]
    return "\n".join(lines)


def main() -> None:
    reports = [outcome(report) for report in json.loads(REPORTS.read_text())["reports"]]
    REPORTS.write_text(json.dumps({"reports": reports}, indent=1) + "\n")
    print(table(reports))


if __name__ == "__main__":
    main()
