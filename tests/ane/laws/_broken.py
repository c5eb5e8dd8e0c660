"""Small packages, each of which breaks one law, made by coremltools' MIL builder.

Where coremltools refuses to make what is wanted, its protobuf is edited. Every package is held in
memory as an MLModel; `save()` makes a folder of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import Function, Program, types
import numpy as np

HALF, INT = types.fp16, types.int32


@dataclass(frozen=True)
class Broken:
    """rule: the one that has to find it. make: the package. said: what the finding says.

    others: further rules that the same fault breaks.
    """

    rule: str
    make: Callable[[], ct.models.MLModel]
    said: str
    others: frozenset = frozenset()


BROKEN: list[Broken] = []


def breaks(rule: str, said: str, *inputs, others=(), **options):
    """Enter the package of a network into the list; inputs and options are those of `model`."""

    def enter(network):
        make = partial(model(*inputs, **options), network)
        BROKEN.append(Broken(rule, make, said, frozenset(others)))
        return network

    return enter


def model(*inputs, states=(), edit=None):
    """A function of a program as an MLModel. inputs, states: (shape, dtype)."""

    def convert(function):
        names = "xyz"[: len(inputs)]
        given = {
            name: mb.placeholder(shape=shape, dtype=dtype)
            for name, (shape, dtype) in zip(names, inputs, strict=True)
        } | {
            f"cache_{i}": mb.state_tensor_placeholder(shape=shape, dtype=dtype)
            for i, (shape, dtype) in enumerate(states)
        }
        program = Program()
        with Function(given, opset_version=ct.target.iOS18) as main:
            main.set_outputs([function(*main.inputs.values())])
            program.add_function("main", main)
        made = ct.convert(
            program,
            convert_to="mlprogram",
            pass_pipeline=ct.PassPipeline.EMPTY,
            minimum_deployment_target=ct.target.iOS18,
            skip_model_load=True,
        )
        if edit is None:
            return made
        spec = made.get_spec()
        edit(spec)
        return ct.models.MLModel(spec, weights_dir=made.weights_dir, skip_model_load=True)

    return convert


def weight(*shape):
    return (0.05 * np.random.default_rng(0).standard_normal(shape)).astype(np.float16)


def pointwise(x, outputs=64, inputs=64):
    """A 1x1 convolution."""
    return mb.conv(x=x, weight=weight(outputs, inputs, 1, 1))


def keep(*states):
    """Read and write states."""
    for state in states:
        mb.coreml_update_state(state=state, value=mb.relu(x=mb.read_state(input=state)))


X = ((1, 64, 1, 64), HALF)
SQUARE = ((1, 4, 64, 64), HALF)


def sound():
    """What no rule has a word against: 17 MB of 1x1 convolutions and a norm."""

    @model(((1, 2048, 1, 64), HALF))
    def made(x):
        for _ in range(2):
            x = mb.gelu(x=pointwise(x, 2048, 2048), mode="TANH_APPROXIMATION")
            x = mb.layer_norm(
                x=mb.concat(values=[x, mb.mul(x=x, y=np.float16(-1))], axis=1), axes=[1]
            )
            x = mb.slice_by_index(x=x, begin=[0, 0, 0, 0], end=[1, 2048, 1, 64])
        return x

    return made


# --- shapes


@breaks("layout-channels", "a linear with a weight of 64 x 64", ((64, 64), HALF))
def linear(x):
    return mb.linear(x=x, weight=weight(64, 64))


@breaks("layout-channels", "a matmul with a weight of 64 x 96", ((1, 64, 64), HALF))
def matmul(x):
    return mb.matmul(x=x, y=weight(64, 96))


@breaks(
    "last-axis-padding",
    "is fp16(1, 64, 128, 1), which takes 32 times its memory",
    ((1, 64, 128, 1), HALF),
)
def upright(x):
    return mb.reshape(x=x, shape=(1, 64, 1, 128))


@breaks("last-axis-padding", "the result is fp16(1, 64, 128, 1)", ((1, 64, 1, 128), HALF))
def upright_inside(x):
    x = pointwise(mb.reshape(x=x, shape=(1, 64, 128, 1)))
    return mb.reshape(x=x, shape=(1, 64, 1, 128))


@breaks("last-axis-short", "8 in 'x'", ((1, 64, 1, 8), HALF))
def short(x):
    return mb.reshape(x=pointwise(x), shape=(1, 8, 1, 64))


def six_axes(spec):
    """coremltools refuses six axes: five of a reshape are edited into six."""
    (block,) = spec.mlProgram.functions["main"].block_specializations.values()
    middle = next(o for o in block.operations if o.type == "relu").outputs[0].type.tensorType
    middle.rank = 6
    middle.dimensions.add().constant.size = 64
    for dimension, size in zip(middle.dimensions, (1, 2, 2, 4, 4, 64), strict=True):
        dimension.constant.size = size


@breaks("rank-most", "6 axes, 1 x 2 x 2 x 4 x 4 x 64", X, edit=six_axes)
def rank(x):
    return mb.reshape(x=mb.relu(x=mb.reshape(x=x, shape=(1, 4, 4, 4, 64))), shape=(1, 64, 1, 64))


@breaks("axis-most", "an axis of 65,600", ((1, 8, 1, 32), HALF))
def vocabulary(x):
    return pointwise(x, 65_600, 8)


@breaks("axis-habit", "an axis of 16,448", ((1, 8, 1, 32), HALF))
def half_a_vocabulary(x):
    return pointwise(x, 16_448, 8)


@breaks("matmul-depth", "sums of 40,000 terms", ((1, 4, 40_000), HALF), ((1, 40_000, 64), HALF))
def depth(x, y):
    return mb.matmul(x=x, y=y)


@breaks("matmul-depth", "sums of 40,000 terms", ((1, 40_000, 1, 32), HALF))
def deep_convolution(x):
    return pointwise(x, 4, 40_000)


def convolution(height, width):
    return lambda x: mb.conv(x=x, weight=weight(4, 4, height, width), pad_type="same")


breaks("conv-width", "a kernel of 3 x 16", SQUARE)(convolution(3, 16))
breaks("conv-width", "a kernel of 17 x 17", SQUARE)(convolution(17, 17))
breaks("conv-height", "a kernel of 32 x 1", SQUARE)(convolution(32, 1))
breaks("conv-square", "a kernel of 16 x 16", SQUARE)(convolution(16, 16))


@breaks("max-pool", "windows of 1 x 9", SQUARE)
def pool(x):
    return mb.max_pool(x=x, kernel_sizes=[1, 9], strides=[1, 1], pad_type="same")


# --- types and ops


@breaks("fp32-ops", "a conv in single precision", X)
def single(x):
    x = mb.conv(x=mb.cast(x=x, dtype="fp32"), weight=weight(64, 64, 1, 1).astype(np.float32))
    return mb.cast(x=x, dtype="fp16")


@breaks("int32-ops", "add of int32", ((1, 64), INT))
def integers(x):
    return mb.add(x=x, y=np.int32(1))


@breaks("int32-ops", "cast of int32", ((1, 64), INT))
def from_integers(x):
    return mb.relu(x=mb.cast(x=x, dtype="fp16"))


for name, arguments in {
    "cumsum": {"axis": -1}, "tan": {}, "asin": {}, "reduce_prod": {"axes": [1], "keep_dims": True},
    "sinh": {}, "band_part": {"lower": 1, "upper": 1},
    "sliding_windows": {"axis": 1, "size": 2},
}.items():  # fmt: skip
    breaks("ops-refused", name, X)(
        lambda x, name=name, arguments=arguments: getattr(mb, name)(x=x, **arguments)
    )


@breaks("ops-refused", "lstm", ((32, 1, 64), HALF), ((1, 64), HALF))
def recurrent(x, h):
    return mb.lstm(
        x=x, initial_h=h, initial_c=h, weight_ih=weight(256, 64), weight_hh=weight(256, 64),
        output_sequence=True,
    )[0]  # fmt: skip


@breaks("gather-computed", "a gather by given indices", ((1, 64), INT))
def embedding(x):
    return mb.gather(x=weight(257, 64), indices=x, axis=0, validate_indices=False)


@breaks("gather-computed", "a gather by computed indices", ((1, 64), INT))
def gather_computed(x):
    indices = mb.select(
        cond=mb.greater_equal(x=x, y=np.int32(0)), a=x, b=mb.add(x=x, y=np.int32(257))
    )
    return mb.gather(x=weight(257, 64), indices=indices, axis=0, validate_indices=False)


@breaks("slice-dynamic", "a slice_by_size from a computed position", ((64, 64), HALF), ((2,), INT))
def slice_dynamic(x, at):
    return mb.slice_by_size(x=x, begin=at, size=[32, 64])


@breaks("argmax-integer", "reduce_argmax to int32", ((1, 64, 1, 64), HALF))
def argmax(x):
    return mb.reduce_argmax(x=x, axis=1, keep_dims=True)


@breaks("topk", "topk with k = 40", X)
def topk(x):
    return mb.topk(x=x, k=40, axis=1)[0]


@breaks("activations", "silu", X)
def silu(x):
    return mb.silu(x=x)


@breaks("softplus-large", "softplus", X)
def softplus(x):
    return mb.softplus(x=x)


@breaks("fused-attention", "scaled_dot_product_attention", *[SQUARE] * 3)
def attention(q, k, v):
    return mb.scaled_dot_product_attention(query=q, key=k, value=v)


@breaks("partitions", "3 stretches on the engine, cut by cumsum", X, others=("ops-refused",))
def partitions(x):
    for _ in range(2):
        x = mb.cumsum(x=pointwise(x), axis=1)
    return pointwise(x)


# --- weights


def compressed(make):
    """A 1x1 convolution whose weight `make` makes."""

    def network(x, *states):
        keep(*states)
        return mb.conv(x=x, weight=make())

    return network


def scaled(*shape, data=None):
    return mb.constexpr_blockwise_shift_scale(
        data=np.ones((64, 64, 1, 1), np.int8) if data is None else data,
        scale=np.full(shape, 0.01, np.float16),
    )


def palette(bits, groups=1, vector=1):
    indices = np.zeros(
        (64 // vector, 64, 1, 1), types.nptype_from_builtin(types.string_to_builtin(f"uint{bits}"))
    )
    lut = weight(groups, 1, 1, 1, 2**bits, vector)
    axis = {"vector_axis": 0} if vector > 1 else {}
    return mb.constexpr_lut_to_dense(indices=indices, lut=lut, **axis)


for rule, said, make in (
    ("scale-per-block", "int8, scales 64 x 2 x 1 x 1", lambda: scaled(64, 2, 1, 1)),
    ("scale-per-block", "int8, scales 1 x 64 x 1 x 1", lambda: scaled(1, 64, 1, 1)),
    ("palette-slow", "palettes of 16, 64 x 64 x 1 x 1", lambda: palette(4, 4)),
    ("palette-vector", "palettes of 2 numbers an entry", lambda: palette(6, 1, 2)),
    ("palette-scale", "a scale upon palettes", lambda: scaled(64, 1, 1, 1, data=palette(6))),
):
    breaks(rule, said, X)(compressed(make))
breaks("palette-state", "4-bit palettes beside 1 state", X, states=[X], others=["palette-slow"])(
    compressed(lambda: palette(4))
)


@breaks("non-finite", "holds infinity or NaN", SQUARE)
def infinite_mask(x):
    mask = np.triu(np.full((64, 64), -np.inf, np.float16), 1)
    return mb.softmax(x=mb.add(x=x, y=mask), axis=-1)


@breaks(
    "non-finite", "holds 3.4e+38, which half precision makes infinite", SQUARE, others=("fp32-ops",)
)
def least_single(x):
    mask = np.full((1, 1, 64, 64), np.finfo(np.float32).min)
    x = mb.add(x=mb.cast(x=x, dtype="fp32"), y=mask)
    return mb.softmax(x=mb.cast(x=x, dtype="fp16"), axis=-1)


@breaks("non-finite", "holds infinity or NaN", X)
def scale_nan(x):
    scale = np.full((64, 1, 1, 1), 0.01, np.float16)
    scale[3] = np.nan
    data = np.ones((64, 64, 1, 1), np.int8)
    return mb.conv(x=x, weight=mb.constexpr_blockwise_shift_scale(data=data, scale=scale))


# --- states and flexible shapes


ROW = ((1, 1, 1, 64), HALF)
STATE = ((1, 4, 32, 64), HALF)


def write(value, row):
    return mb.slice_update(
        x=value, update=row, begin=[0] * 4, end=[1, 1, 1, 0], end_mask=[False] * 3 + [True]
    )


def write_reshaped(value, row):
    flat = mb.reshape(x=value, shape=(1, 1, 128, 64))
    return mb.reshape(x=write(flat, row), shape=(1, 4, 32, 64))


def stateful(x, *states, update=write):
    """States that a call writes a row of."""
    for state in states:
        value = mb.read_state(input=state)
        row = mb.slice_by_index(x=x, begin=[0] * 4, end=[1, 1, 1, value.shape[-1]])
        mb.coreml_update_state(state=state, value=update(value, row))
    return mb.relu(x=x)


def single_states(spec):
    """coremltools declares states in half precision only: their type is edited."""
    for given in spec.mlProgram.functions["main"].inputs:
        if given.type.HasField("stateType"):
            given.type.stateType.wrappedType.tensorType.dataType = 11


def kept(x, *states):
    keep(*states)
    return mb.relu(x=x)


breaks("state-width", "is fp16(1, 4, 32, 24)", ROW, states=[((1, 4, 32, 24), HALF)])(stateful)
breaks("state-count", "3 states", ROW, states=[STATE] * 3)(stateful)
breaks("state-dtype", "is fp32(1, 4, 32, 64)", X, states=[STATE], edit=single_states)(kept)
breaks("state-view", "a reshape on the way to state", ROW, states=[STATE])(
    partial(stateful, update=write_reshaped)
)


def flexible(change):
    """An edit that gives `x` a flexible shape in the description, and in its type."""

    def edit(spec):
        function = spec.mlProgram.functions["main"]
        (given,) = [each for each in function.inputs if each.name == "x"]
        given.type.tensorType.dimensions[3].unknown.SetInParent()
        (described,) = [each for each in spec.description.input if each.name == "x"]
        change(described.type.multiArrayType)

    return edit


def ranged(low, high):
    def change(array):
        for least, most in ((1, 1), (64, 64), (1, 1), (low, high)):
            array.shapeRange.sizeRanges.add(lowerBound=least, upperBound=most)

    return flexible(change)


def enumerated(count):
    def change(array):
        for size in range(32, 32 + count):
            array.enumeratedShapes.shapes.add(shape=[1, 64, 1, size])

    return flexible(change)


for rule, said, edit, states, *others in (
    ("flexible-cpu", "a range of sizes of 'x'", ranged(32, 64), []),
    ("flexible-cpu", "4 shapes", enumerated(4), []),
    ("range-unbounded", "a size of input 'x' may be any", ranged(32, -1), []),
    ("enumerated-most", "130 shapes", enumerated(130), [], "flexible-cpu"),
    ("state-enumerated", "4 shapes beside states", enumerated(4), [STATE]),
    ("state-flexible", "a range of sizes of 'x'", ranged(32, 64), [STATE]),
):
    breaks(rule, said, X, states=states, edit=edit, others=others)(kept)


@breaks(
    "short-query",
    "1 position a call",
    ((1, 64, 1, 1), HALF),
    states=[STATE],
    others=("last-axis-short",),
)
def one_position(x, state):
    keep(state)
    return mb.reshape(x=pointwise(x), shape=(1, 1, 1, 64))


# --- numbers


@breaks("norm-eps", "an RMSNorm of x / max|x|", X)
def norm_eps(x):
    """What coremltools 9.0 makes of torch's rms_norm."""
    largest = mb.reduce_max(x=mb.abs(x=x), axes=[1], keep_dims=True)
    squares = mb.square(x=mb.real_div(x=x, y=largest))
    mean = mb.reduce_mean(x=squares, axes=[1], keep_dims=True)
    rms = mb.sqrt(x=mb.add(x=mean, y=np.float16(1e-5)))
    return mb.real_div(x=x, y=mb.mul(x=rms, y=largest))


@breaks("norm-squares", "a norm that squares its input as it comes", X)
def norm_squares(x):
    mean = mb.reduce_mean(x=mb.mul(x=x, y=x), axes=[1], keep_dims=True)
    return mb.mul(x=x, y=mb.rsqrt(x=mb.add(x=mean, y=np.float16(1e-5)), epsilon=1e-12))
