"""Other numbers than described: faults of Core ML, of its compiler and of Core AI."""

from collections.abc import Container, Iterator
from math import ceil

from mlprogram.analysis.touched import touches
from mlprogram.ane.faults.patterns.known import among, each, number, numbers, shape_of
from mlprogram.ane.laws.graph import VIEWS, ProgramGraph, Seen
from mlprogram.package.function import Operation
import numpy as np

EXACT = 1 << 24  # up to it each integer is a number of single precision
INTEGER_OPS = (
    "abs", "add", "sub", "mul", "floor_div", "mod", "maximum", "minimum", "select",
)  # fmt: skip
BATCH = 10  # from which on the GPU's attention is wrong
ATTENTION = "scaled_dot_product_attention"
BLOCKWISE = "constexpr_blockwise_shift_scale"


def mod_sign(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "mod"):
        if touches("mod-sign", operation, graph.facts) and not _wraps(graph, operation):
            yield Seen("a mod of numbers that may be negative", operation)


def _wraps(graph: ProgramGraph, operation: Operation) -> bool:
    """Whether it is a mod of mod(mod(x, n) + n, n), which is right by either sign."""
    size = numbers(graph, operation, "y")

    def is_a(kind: str, other: Operation | None) -> bool:
        return other is not None and other.type == kind and numbers(graph, other, "y") == size

    def readers(other: Operation) -> list[Operation]:
        return graph.readers.get(other.outputs[0][0], [])

    if min(size, default=0) <= 0:
        return False
    added = graph.maker(graph.item(operation, "x"))
    if added is not None and is_a("add", added) and is_a("mod", graph.maker(added.inputs["x"][0])):
        return True
    adds = readers(operation)
    outer = [is_a("mod", one) for add in adds for one in readers(add)]
    return all(is_a("add", add) for add in adds) and bool(outer) and all(outer)


def integers_beyond(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in among(graph, INTEGER_OPS):
        if operation.outputs[0][1].dtype != "int32":
            continue
        constants = [graph.constant(graph.item(operation, key)) for key in "xyab"]
        large = [lost for constant in constants if constant and (lost := _lost(constant.array()))]
        if large:
            yield Seen(f"{operation.type} of int32 with {large[0]:,}", operation)


def _lost(array: np.ndarray) -> int:
    """An integer that single precision does not hold; 0 if there is none."""
    if array.dtype.kind not in "iu":
        return 0
    wide = array.astype(np.int64).reshape(-1)
    lost = wide[(np.abs(wide) > EXACT) & (wide.astype(np.float32).astype(np.int64) != wide)]
    return int(lost[0]) if lost.size else 0


def range_small_step(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "range_1d"):
        start, end, step = (number(graph, operation, key) for key in ("start", "end", "step"))
        if start is None or end is None or step is None:
            continue
        fine = operation.outputs[0][1].dtype == "fp32"
        if fine and abs(step) < 4 * np.spacing(np.float32(max(abs(start), abs(end)))):
            yield Seen(f"a range_1d to {end:g} by {step:g}", operation)


def log_sum_exp(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "reduce_log_sum_exp"):
        shifted = graph.maker(graph.item(operation, "x"))
        largest = shifted and shifted.type == "sub" and graph.maker(graph.item(shifted, "y"))
        if not largest or largest.type != "reduce_max":
            yield Seen("reduce_log_sum_exp of values that nothing bounds", operation)


def gather_negative(graph: ProgramGraph) -> Iterator[Seen]:
    since17 = ("gather", "gather_along_axis", "gather_nd") if graph.facts.opset >= 7 else ()
    for operation in among(graph, since17):
        indices = graph.constant(graph.item(operation, "indices"))
        if indices is not None and (lowest := indices.array().min(initial=0)) < 0:
            yield Seen(f"a {operation.type} at {lowest}", operation)


def slice_last_backwards(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "slice_by_index"):
        ends = [numbers(graph, operation, key) for key in ("begin", "end", "stride")]
        if (-1, -2, -1) in zip(*ends, strict=False):
            yield Seen("a slice from -1 to -2 by -1", operation)


# --- convolutions, pooling, resizing


def conv_weight_computed(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "conv"):
        if not graph.fixed(graph.item(operation, "weight")):
            yield Seen("a conv with a weight that is computed or given", operation)


def conv_transpose_uneven(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "conv_transpose"):
        pads = numbers(graph, operation, "pad")
        if graph.value(operation, "pad_type") == "custom" and pads[::2] != pads[1::2]:
            yield Seen(f"a conv_transpose padded by {pads}", operation)


def avg_pool_seven(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "avg_pool"):
        form = [numbers(graph, operation, key) for key in ("kernel_sizes", "strides", "pad")]
        counted = not graph.value(operation, "exclude_padding_from_average", False)
        if counted and form == [[7, 7], [4, 4], [3] * 4]:
            yield Seen("an avg_pool of 7 x 7, by 4, padded by 3", operation)


def pool_same_lower(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "avg_pool", "max_pool", "l2_pool"):
        lower = graph.value(operation, "pad_type") == "same_lower"
        if lower and len(shape_of(graph, operation, "x")) == 3:
            yield Seen(f"{operation.type} of one axis, padded as same_lower", operation)


def max_pool_padding(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "max_pool"):
        x, kernel = shape_of(graph, operation, "x")[2:], numbers(graph, operation, "kernel_sizes")
        strides = numbers(graph, operation, "strides") or [1] * len(kernel)
        pads = numbers(graph, operation, "pad") or [0] * 2 * len(kernel)
        axes = zip(x, kernel, strides, pads[::2], pads[1::2], strict=False)
        alone = [
            ceil((n + before + after - size) / by) * by >= n + before
            for n, size, by, before, after in axes
            if n and by
        ]
        if graph.value(operation, "ceil_mode", False) and any(alone):
            yield Seen("a max_pool whose last window has padding alone", operation)


def upsample_fraction(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "upsample_nearest_neighbor"):
        for key in ("scale_factor_height", "scale_factor_width"):
            factor = number(graph, operation, key) or 1
            if factor != round(factor):
                yield Seen(f"an upsample_nearest_neighbor by {factor:g}", operation)
                break


def resample_reflection(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "resample"):
        modes = [graph.value(operation, f"{kind}_mode") for kind in ("sampling", "padding")]
        aligned = graph.value(operation, "align_corners", True)
        if modes == ["bilinear", "reflection"] and not aligned:
            yield Seen("a bilinear resample that reflects, corners not aligned", operation)


def crop_resize_gpu(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "crop_resize"):
        if graph.facts.opset < 7:
            yield Seen(f"a crop_resize of {graph.function.opset}", operation)


def nms_half(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "non_maximum_suppression"):
        boxes = graph.type(graph.item(operation, "boxes"))
        if boxes is not None and boxes.dtype == "fp16":
            yield Seen(f"non_maximum_suppression of {boxes}", operation)


# --- attention and states


def attention_batch(graph: ProgramGraph) -> Iterator[Seen]:
    """Scores, a bias added, softmax, values, a projection: what the GPU makes one kernel of."""
    for operation in each(graph, "softmax"):
        batch, added = (
            operation.outputs[0][1].shape[0] or 0,
            graph.maker(graph.item(operation, "x")),
        )
        axes = len(shape_of(graph, operation, "x"))  # batch, heads, queries, keys
        if axes != 4 or batch < BATCH or added is None or added.type != "add":
            continue
        scores = [maker for key in "xy" if (maker := graph.maker(graph.item(added, key)))]
        values = _read_by(graph, operation, ("matmul",))
        projected = values and _read_by(graph, values, ("linear", "matmul", "conv"), VIEWS)
        if projected and any(maker.type == "matmul" for maker in scores):
            yield Seen(f"attention with a bias, of a batch of {batch}", operation)


def _read_by(
    graph: ProgramGraph, operation: Operation, wanted: Container[str], past: Container[str] = ()
) -> Operation | None:
    """The first op of `wanted` that reads a result, past those of `past`."""
    for reader in graph.readers.get(operation.outputs[0][0], ()):
        if reader.type in wanted:
            return reader
        if reader.type in past and (found := _read_by(graph, reader, wanted, past)):
            return found
    return None


def attention_mask_ignored(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, ATTENTION):
        if graph.item(operation, "attn_mask") is not None:
            yield Seen(f"a {ATTENTION} with a mask", operation)


def state_slice_update(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "write_state"):
        maker = graph.maker(graph.item(operation, "data"))
        if maker is not None and maker.type == "slice_update":
            yield Seen("a state is written by slice_update", maker)


# --- weights, and what follows a product


def int4_scale_each(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in graph.compressed():
        data, scale = (graph.type(graph.item(operation, key)) for key in ("data", "scale"))
        if operation.type != BLOCKWISE or data is None or scale is None:
            continue
        each_one = scale.shape[1:] == data.shape[1:] and set(data.shape[1:]) - {1}
        if data.dtype in ("int4", "uint4") and each_one:
            yield Seen(f"{data} with a scale for each", operation)


def palette_quantised(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in graph.compressed():
        lut = graph.maker(graph.item(operation, "lut"))
        one = shape_of(graph, operation, "lut")[-1:] == (1,)
        if lut is not None and lut.type == BLOCKWISE and one:
            yield Seen("a palette whose entries are integers with a scale", operation)


def lstm_sparse_integers(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "lstm"):
        for key in ("weight_ih", "weight_hh", "weight_ih_back", "weight_hh_back"):
            sparse = graph.maker(graph.item(operation, key))
            inner = graph.maker(graph.item(sparse, "nonzero_data")) if sparse else None
            if inner is not None and inner.type == "constexpr_sparse_blockwise_shift_scale":
                yield Seen(f"an lstm whose {key} is sparse and quantised", operation)
                break


def hardswish_matrix(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in each(graph, "sigmoid_hard"):
        product = graph.maker(graph.item(operation, "x"))
        if product is None or product.type not in ("linear", "matmul"):
            continue
        type_ = operation.outputs[0][1]
        if (type_.dtype, len(type_.shape)) == ("fp16", 2) and _read_by(graph, operation, ("mul",)):
            yield Seen(f"a {product.type} of two axes into hardswish", operation)
