"""Small packages, each of which breaks one law, made by coremltools' MIL builder.

Where coremltools refuses to make what is wanted, its protobuf is edited. Every package is held in
memory as an MLModel; `save()` makes a folder of it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import Function, Program, types
import numpy as np

HALF, FULL, INT = types.fp16, types.fp32, types.int32


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


def breaks(rule: str, said: str, *others: str):
    """Enter the package that a function makes into the list."""

    def enter(make):
        BROKEN.append(Broken(rule, make, said, frozenset(others)))
        return make

    return enter


def model(*inputs, states=(), edit=None, opset=ct.target.iOS18):
    """A function of a program as an MLModel. inputs: (shape, dtype); states: shape or that."""

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
        with Function(given, opset_version=opset) as main:
            main.set_outputs([function(*main.inputs.values())])
            program.add_function("main", main)
        made = ct.convert(
            program,
            convert_to="mlprogram",
            pass_pipeline=ct.PassPipeline.EMPTY,
            minimum_deployment_target=opset,
            skip_model_load=True,
        )
        if edit is None:
            return made
        spec = made.get_spec()
        edit(spec)
        return ct.models.MLModel(spec, weights_dir=made.weights_dir, skip_model_load=True)

    return convert


def weight(*shape, scale=0.05):
    return (scale * np.random.default_rng(0).standard_normal(shape)).astype(np.float16)


def pointwise(x, outputs=64, inputs=64):
    """A 1x1 convolution."""
    return mb.conv(x=x, weight=weight(outputs, inputs, 1, 1))


def keep(*states):
    """Read and write states."""
    for state in states:
        mb.coreml_update_state(state=state, value=mb.relu(x=mb.read_state(input=state)))


X = ((1, 64, 1, 64), HALF)


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


@breaks("layout-channels", "a linear with a weight of 64 x 64")
def linear():
    @model(((64, 64), HALF))
    def made(x):
        return mb.linear(x=x, weight=weight(64, 64))

    return made


@breaks("layout-channels", "a matmul with a weight of 64 x 96")
def matmul():
    @model(((1, 64, 64), HALF))
    def made(x):
        return mb.matmul(x=x, y=weight(64, 96))

    return made


@breaks("last-axis-padding", "is fp16(1, 64, 128, 1), which takes 32 times its memory")
def upright():
    @model(((1, 64, 128, 1), HALF))
    def made(x):
        return mb.reshape(x=x, shape=(1, 64, 1, 128))

    return made


@breaks("last-axis-padding", "the result is fp16(1, 64, 128, 1)")
def upright_inside():
    @model(((1, 64, 1, 128), HALF))
    def made(x):
        x = pointwise(mb.reshape(x=x, shape=(1, 64, 128, 1)))
        return mb.reshape(x=x, shape=(1, 64, 1, 128))

    return made


@breaks("last-axis-short", "8 in 'x'")
def short():
    @model(((1, 64, 1, 8), HALF))
    def made(x):
        return mb.reshape(x=pointwise(x), shape=(1, 8, 1, 64))

    return made


@breaks("rank-most", "6 axes, 1 x 2 x 2 x 4 x 4 x 64")
def rank():
    """coremltools refuses six axes: five of a reshape are edited into six."""

    def edit(spec):
        (block,) = spec.mlProgram.functions["main"].block_specializations.values()
        middle = next(o for o in block.operations if o.type == "relu").outputs[0].type.tensorType
        middle.rank = 6
        middle.dimensions.add().constant.size = 64
        for dimension, size in zip(middle.dimensions, (1, 2, 2, 4, 4, 64), strict=True):
            dimension.constant.size = size

    @model(X, edit=edit)
    def made(x):
        return mb.reshape(
            x=mb.relu(x=mb.reshape(x=x, shape=(1, 4, 4, 4, 64))), shape=(1, 64, 1, 64)
        )

    return made


@breaks("axis-most", "an axis of 65,600")
def vocabulary():
    @model(((1, 8, 1, 32), HALF))
    def made(x):
        return pointwise(x, 65_600, 8)

    return made


@breaks("axis-habit", "an axis of 16,448")
def half_a_vocabulary():
    @model(((1, 8, 1, 32), HALF))
    def made(x):
        return pointwise(x, 16_448, 8)

    return made


@breaks("matmul-depth", "sums of 40,000 terms")
def depth():
    @model(((1, 4, 40_000), HALF), ((1, 40_000, 64), HALF))
    def made(x, y):
        return mb.matmul(x=x, y=y)

    return made


@breaks("matmul-depth", "sums of 40,000 terms")
def deep_convolution():
    @model(((1, 40_000, 1, 32), HALF))
    def made(x):
        return pointwise(x, 4, 40_000)

    return made


def convolution(height, width):
    @model(((1, 4, 64, 64), HALF))
    def made(x):
        return mb.conv(x=x, weight=weight(4, 4, height, width), pad_type="same")

    return made


breaks("conv-width", "a kernel of 3 x 16")(lambda: convolution(3, 16))
breaks("conv-width", "a kernel of 17 x 17")(lambda: convolution(17, 17))
breaks("conv-height", "a kernel of 32 x 1")(lambda: convolution(32, 1))
breaks("conv-square", "a kernel of 16 x 16")(lambda: convolution(16, 16))


@breaks("max-pool", "windows of 1 x 9")
def pool():
    @model(((1, 4, 64, 64), HALF))
    def made(x):
        return mb.max_pool(x=x, kernel_sizes=[1, 9], strides=[1, 1], pad_type="same")

    return made


# --- types and ops


@breaks("fp32-ops", "a conv in single precision")
def single():
    @model(X)
    def made(x):
        x = mb.conv(x=mb.cast(x=x, dtype="fp32"), weight=weight(64, 64, 1, 1).astype(np.float32))
        return mb.cast(x=x, dtype="fp16")

    return made


@breaks("int32-ops", "add of int32")
def integers():
    @model(((1, 64), INT))
    def made(x):
        return mb.add(x=x, y=np.int32(1))

    return made


@breaks("int32-ops", "cast of int32")
def from_integers():
    @model(((1, 64), INT))
    def made(x):
        return mb.relu(x=mb.cast(x=x, dtype="fp16"))

    return made


def refused(name, **arguments):
    @model(X)
    def made(x):
        return getattr(mb, name)(x=x, **arguments)

    return made


for name, arguments in {
    "cumsum": {"axis": -1}, "tan": {}, "asin": {}, "reduce_prod": {"axes": [1], "keep_dims": True},
    "sinh": {}, "band_part": {"lower": 1, "upper": 1},
    "sliding_windows": {"axis": 1, "size": 2},
}.items():  # fmt: skip
    breaks("ops-refused", name)(lambda name=name, arguments=arguments: refused(name, **arguments))


@breaks("ops-refused", "lstm")
def recurrent():
    @model(((32, 1, 64), HALF), ((1, 64), HALF))
    def made(x, h):
        return mb.lstm(
            x=x, initial_h=h, initial_c=h, weight_ih=weight(256, 64), weight_hh=weight(256, 64),
            output_sequence=True,
        )[0]  # fmt: skip

    return made


@breaks("gather-computed", "a gather by given indices")
def embedding():
    @model(((1, 64), INT))
    def made(x):
        return mb.gather(x=weight(257, 64), indices=x, axis=0, validate_indices=False)

    return made


@breaks("gather-computed", "a gather by computed indices")
def gather_computed():
    @model(((1, 64), INT))
    def made(x):
        indices = mb.select(
            cond=mb.greater_equal(x=x, y=np.int32(0)), a=x, b=mb.add(x=x, y=np.int32(257))
        )
        return mb.gather(x=weight(257, 64), indices=indices, axis=0, validate_indices=False)

    return made


@breaks("slice-dynamic", "a slice_by_size from a computed position")
def slice_dynamic():
    @model(((64, 64), HALF), ((2,), INT))
    def made(x, at):
        return mb.slice_by_size(x=x, begin=at, size=[32, 64])

    return made


@breaks("argmax-integer", "reduce_argmax to int32")
def argmax():
    @model(((1, 64, 1, 64), HALF))
    def made(x):
        return mb.reduce_argmax(x=x, axis=1, keep_dims=True)

    return made


@breaks("topk", "topk with k = 40")
def topk():
    @model(X)
    def made(x):
        return mb.topk(x=x, k=40, axis=1)[0]

    return made


@breaks("activations", "silu")
def silu():
    @model(X)
    def made(x):
        return mb.silu(x=x)

    return made


@breaks("softplus-large", "softplus")
def softplus():
    @model(X)
    def made(x):
        return mb.softplus(x=x)

    return made


@breaks("fused-attention", "scaled_dot_product_attention")
def attention():
    @model(*[((1, 4, 64, 64), HALF)] * 3)
    def made(q, k, v):
        return mb.scaled_dot_product_attention(query=q, key=k, value=v)

    return made


@breaks("partitions", "3 stretches on the engine, cut by cumsum", "ops-refused")
def partitions():
    @model(X)
    def made(x):
        for _ in range(2):
            x = mb.cumsum(x=pointwise(x), axis=1)
        return pointwise(x)

    return made


# --- weights


def compressed(make, states=()):
    """A 1x1 convolution whose weight `make` makes."""

    @model(X, states=states)
    def made(x, *states):
        keep(*states)
        return mb.conv(x=x, weight=make())

    return made


def scaled(*shape, dtype=np.int8, data=None):
    return mb.constexpr_blockwise_shift_scale(
        data=np.ones((64, 64, 1, 1), dtype) if data is None else data,
        scale=np.full(shape, 0.01, np.float16),
    )


def palette(bits, groups=1, vector=1):
    indices = np.zeros(
        (64 // vector, 64, 1, 1), types.nptype_from_builtin(types.string_to_builtin(f"uint{bits}"))
    )
    lut = weight(groups, 1, 1, 1, 2**bits, vector)
    axis = {"vector_axis": 0} if vector > 1 else {}
    return mb.constexpr_lut_to_dense(indices=indices, lut=lut, **axis)


breaks("scale-per-block", "int8, scales 64 x 2 x 1 x 1")(
    lambda: compressed(lambda: scaled(64, 2, 1, 1))
)
breaks("scale-per-block", "int8, scales 1 x 64 x 1 x 1")(
    lambda: compressed(lambda: scaled(1, 64, 1, 1))
)
breaks("palette-slow", "palettes of 16, 64 x 64 x 1 x 1")(lambda: compressed(lambda: palette(4, 4)))
breaks("palette-vector", "palettes of 2 numbers an entry")(
    lambda: compressed(lambda: palette(6, 1, 2))
)
breaks("palette-scale", "a scale upon palettes")(
    lambda: compressed(lambda: scaled(64, 1, 1, 1, data=palette(6)))
)
breaks("palette-state", "4-bit palettes beside 1 state", "palette-slow")(
    lambda: compressed(lambda: palette(4), [((1, 64, 1, 64), HALF)])
)


@breaks("non-finite", "holds infinity or NaN")
def infinite_mask():
    @model(((1, 4, 64, 64), HALF))
    def made(x):
        mask = np.triu(np.full((64, 64), -np.inf, np.float16), 1)
        return mb.softmax(x=mb.add(x=x, y=mask), axis=-1)

    return made


@breaks("non-finite", "holds 3.4e+38, which half precision makes infinite", "fp32-ops")
def least_single():
    @model(((1, 4, 64, 64), HALF))
    def made(x):
        mask = np.full((1, 1, 64, 64), np.finfo(np.float32).min)
        x = mb.add(x=mb.cast(x=x, dtype="fp32"), y=mask)
        return mb.softmax(x=mb.cast(x=x, dtype="fp16"), axis=-1)

    return made


@breaks("non-finite", "holds infinity or NaN")
def scale_nan():
    def nan():
        scale = np.full((64, 1, 1, 1), 0.01, np.float16)
        scale[3] = np.nan
        return mb.constexpr_blockwise_shift_scale(
            data=np.ones((64, 64, 1, 1), np.int8), scale=scale
        )

    return compressed(nan)


# --- states and flexible shapes


def stateful(*states, update=None):
    """States that a call writes a row of."""

    def write(value, row):
        return mb.slice_update(
            x=value, update=row, begin=[0] * 4, end=[1, 1, 1, 0], end_mask=[False] * 3 + [True]
        )

    @model(((1, 1, 1, 64), HALF), states=states)
    def made(x, *states):
        for state in states:
            value = mb.read_state(input=state)
            width = value.shape[-1]
            row = mb.slice_by_index(x=x, begin=[0] * 4, end=[1, 1, 1, width])
            mb.coreml_update_state(state=state, value=(update or write)(value, row))
        return mb.relu(x=x)

    return made


breaks("state-width", "is fp16(1, 4, 32, 24)")(lambda: stateful(((1, 4, 32, 24), HALF)))
breaks("state-count", "3 states")(lambda: stateful(*[((1, 4, 32, 64), HALF)] * 3))


@breaks("state-dtype", "is fp32(1, 4, 32, 64)")
def state_single():
    """coremltools declares states in half precision only: the type of one is edited."""

    def edit(spec):
        def widen(type_):
            type_.dataType = 11

        function = spec.mlProgram.functions["main"]
        for given in function.inputs:
            if given.type.HasField("stateType"):
                widen(given.type.stateType.wrappedType.tensorType)

    @model(X, states=[((1, 4, 32, 64), HALF)], edit=edit)
    def made(x, state):
        keep(state)
        return mb.relu(x=x)

    return made


@breaks("state-view", "a reshape on the way to state")
def state_reshaped():
    def update(value, row):
        flat = mb.reshape(x=value, shape=(1, 1, 128, 64))
        new = mb.slice_update(
            x=flat, update=row, begin=[0] * 4, end=[1, 1, 1, 0], end_mask=[False] * 3 + [True]
        )
        return mb.reshape(x=new, shape=(1, 4, 32, 64))

    return stateful(((1, 4, 32, 64), HALF), update=update)


def flexible(change, states=()):
    """A function whose input is given a flexible shape in the description, and in its type."""

    def edit(spec):
        function = spec.mlProgram.functions["main"]
        (given,) = [each for each in function.inputs if each.name == "x"]
        given.type.tensorType.dimensions[3].unknown.SetInParent()
        (described,) = [each for each in spec.description.input if each.name == "x"]
        change(described.type.multiArrayType)

    @model(X, states=states, edit=edit)
    def made(x, *states):
        keep(*states)
        return mb.relu(x=x)

    return made


def ranged(low, high):
    def change(array):
        for least, most in ((1, 1), (64, 64), (1, 1), (low, high)):
            array.shapeRange.sizeRanges.add(lowerBound=least, upperBound=most)

    return change


def enumerated(count):
    def change(array):
        for size in range(32, 32 + count):
            array.enumeratedShapes.shapes.add(shape=[1, 64, 1, size])

    return change


STATE = [((1, 4, 32, 64), HALF)]
breaks("flexible-cpu", "a range of sizes of 'x'")(lambda: flexible(ranged(32, 64)))
breaks("flexible-cpu", "4 shapes")(lambda: flexible(enumerated(4)))
breaks("range-unbounded", "a size of input 'x' may be any")(lambda: flexible(ranged(32, -1)))
breaks("enumerated-most", "130 shapes", "flexible-cpu")(lambda: flexible(enumerated(130)))
breaks("state-enumerated", "4 shapes beside states")(lambda: flexible(enumerated(4), STATE))
breaks("state-flexible", "a range of sizes of 'x'")(lambda: flexible(ranged(32, 64), STATE))


@breaks("short-query", "1 position a call", "last-axis-short")
def one_position():
    @model(((1, 64, 1, 1), HALF), states=STATE)
    def made(x, state):
        keep(state)
        return mb.reshape(x=pointwise(x), shape=(1, 1, 1, 64))

    return made


# --- numbers


@breaks("norm-eps", "an RMSNorm of x / max|x|")
def norm_eps():
    """What coremltools 9.0 makes of torch's rms_norm."""

    @model(X)
    def made(x):
        largest = mb.reduce_max(x=mb.abs(x=x), axes=[1], keep_dims=True)
        squares = mb.square(x=mb.real_div(x=x, y=largest))
        mean = mb.reduce_mean(x=squares, axes=[1], keep_dims=True)
        rms = mb.sqrt(x=mb.add(x=mean, y=np.float16(1e-5)))
        return mb.real_div(x=x, y=mb.mul(x=rms, y=largest))

    return made


@breaks("norm-squares", "a norm that squares its input as it comes")
def norm_squares():
    @model(X)
    def made(x):
        mean = mb.reduce_mean(x=mb.mul(x=x, y=x), axes=[1], keep_dims=True)
        return mb.mul(x=x, y=mb.rsqrt(x=mb.add(x=mean, y=np.float16(1e-5)), epsilon=1e-12))

    return made
