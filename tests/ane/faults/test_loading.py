"""Each fault that Core ML refuses or dies of is found where it is planted, and in no near miss."""

from copy import deepcopy
from functools import partial

from _pairs import HALF, INT, INT8, SINGLE, Case, Cases, Form, ops
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import get_new_symbol
from coremltools.converters.mil.mil.types.type_mapping import string_to_nptype
import mlprogram
from mlprogram.ane import faults
from mlprogram.package.reader import Package
from mlprogram.package.weight_file import NUMPY
import numpy as np
import pytest

cases = Cases()
ROWS = ((3, 4), SINGLE)
FLEXIBLE = ((get_new_symbol(), 4), SINGLE)
STATE = (((3, 4), HALF),)
UINT4 = string_to_nptype("uint4")
BOOL = 1  # of MIL.proto's DataType


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


# --- the function and its features


def rename_function(spec):
    functions = spec.mlProgram.functions
    functions["other"].CopyFrom(functions.pop("main"))


@cases("function-not-main", ROWS, edit=rename_function)
def function_not_main(planted, x):
    return mb.relu(x=x)


@cases("functions-flexible", FLEXIBLE, functions=2, near={"functions": 1})
def functions_flexible(planted, x):
    return mb.reduce_sum(x=x, axes=[0])


def enumerate_both(spec):
    for feature in spec.description.input:
        for size in (3, 5):
            feature.type.multiArrayType.enumeratedShapes.shapes.add(shape=[size, 4])


BOTH = FLEXIBLE, ((get_new_symbol(), 4), SINGLE)


@cases("enumerated-together", *BOTH, edit=enumerate_both)
def enumerated_together(planted, x, y):
    return mb.add(x=mb.reduce_sum(x=x, axes=[0]), y=mb.reduce_sum(x=y, axes=[0]))


def range_from(lowest):
    def edit(spec):
        ranges = spec.description.input[0].type.multiArrayType.shapeRange.sizeRanges
        for low, high in ((lowest, 100), (4, 4)):
            ranges.add(lowerBound=low, upperBound=high)

    return edit


@cases(
    "range-beside-fixed", FLEXIBLE, ROWS, states=STATE, edit=range_from(1), near={"inputs": BOTH}
)
def range_beside_fixed(planted, x, y, state):
    mb.coreml_update_state(state=state, value=mb.read_state(input=state))
    return mb.add(x=mb.reduce_sum(x=x, axes=[0]), y=y)


@cases("slice-of-none", FLEXIBLE, edit=range_from(0))
def slice_of_none(planted, x):
    return mb.slice_by_index(x=x, begin=[0, 0], end=[0, 1], end_mask=[True, False])


def rename_input(spec):
    function = spec.mlProgram.functions["main"]
    spec.description.input[0].name = function.inputs[0].name = "x.1"
    ops(spec)[-1].inputs["x"].arguments[0].name = "x.1"


@cases("name-invalid", ROWS, edit=rename_input)
def name_invalid(planted, x):
    return mb.relu(x=x)


def drop_axes(spec):
    kind = spec.mlProgram.functions["main"].inputs[0].type.tensorType
    kind.rank = 0
    del kind.dimensions[:]
    del spec.description.input[0].type.multiArrayType.shape[:]


@cases("scalar-input", ((1,), SINGLE), edit=drop_axes)
def scalar_input(planted, x):
    return mb.add(x=x, y=np.float32([1]))


@cases("int8-features", ((3,), INT8), target=ct.target.iOS26, near={"inputs": (((3,), INT),)})
def int8_features(planted, x):
    return mb.cast(x=x, dtype="fp32")


@cases("state-constant", ROWS, states=STATE)
def state_constant(planted, x, state):
    old = mb.read_state(input=state)
    new = np.zeros((3, 4), np.float16) if planted else mb.mul(x=old, y=np.float16(0))
    mb.coreml_update_state(state=state, value=new)
    return mb.relu(x=x)


@cases("state-returned", ((3, 4), HALF), states=STATE)
def state_returned(planted, x, state):
    new = mb.add(x=mb.read_state(input=state), y=x)
    read = mb.coreml_update_state(state=state, value=new)
    return new if planted else read


@cases("empty-tensor", ROWS)
def empty_tensor(planted, x):
    return mb.concat(values=[x, ones(0 if planted else 1, 4)], axis=0)


# --- ops


@cases("matmul-vector", ((4,), SINGLE), near={"inputs": (((1, 4), SINGLE),)})
def matmul_vector(planted, x):
    return mb.matmul(x=x, y=ones(4, 3))


@cases("matmul-integer", ((2, 4), INT), near={"inputs": (((2, 4), SINGLE),)})
def matmul_integer(planted, x):
    return mb.matmul(x=x, y=ones(4, 3, dtype=np.int32 if planted else np.float32))


def without_validation(spec):
    del next(op for op in ops(spec) if op.type == "gather").inputs["validate_indices"]


@cases("gather-unvalidated", ROWS, edit=without_validation)
def gather_unvalidated(planted, x):
    return mb.gather(x=x, indices=np.int32([0]), axis=0, validate_indices=False)


def gather_bools(spec):
    """The builder refuses it: what is gathered, and what comes of it, is said to be bool."""
    cast, gather = (op for op in ops(spec) if op.type in ("less", "gather"))
    gather.inputs["x"].arguments[0].name = cast.outputs[0].name
    gather.outputs[0].type.tensorType.dataType = BOOL


@cases("gather-bool", ROWS, edit=gather_bools)
def gather_bool(planted, x):
    mask = mb.cast(x=mb.less(x=x, y=np.float32(0)), dtype="int32")
    gathered = mb.gather(x=mask, indices=np.int32([0]), axis=0, validate_indices=False)
    return mb.cast(x=gathered, dtype="fp32")


@cases("select-broadcast", ROWS, functions=2, near={"functions": 1})
def select_broadcast(planted, x):
    return mb.select(cond=mb.greater(x=x, y=np.float32(0)), a=x, b=ones(1, 4))


@cases("pad-computed", ROWS, ((4,), INT), near={"inputs": (((3,), SINGLE), ((2,), INT))})
def pad_computed(planted, x, y):
    return mb.pad(x=x, pad=y, mode="constant", constant_val=np.float32(0))


@cases("resize-zero", ((1, 3, 4, 4), SINGLE))
def resize_zero(planted, x):
    shape = np.int32([3, 0 if planted else 4, 8])
    return mb.resize(
        x=x, shape=shape, resized_dims=np.uint32(3), interpolation_mode="LINEAR",
        sampling_mode="DEFAULT",
    )  # fmt: skip


@cases("squeeze-wide", ((2, 1, 4), SINGLE))
def squeeze_wide(planted, x):
    return mb.squeeze(x=x, axes=[0] if planted else [1])


def named_bounds(spec):
    """The bounds of a reshape_like come from a const op, as those of other ops do."""
    found = ops(spec)
    (reshape,) = (op for op in found if op.type == "reshape_like")
    (const,) = (op for op in found if op.outputs[0].name == "zero")
    bound = reshape.inputs["begins"].arguments[0]
    const.outputs[0].type.CopyFrom(bound.value.type)
    const.attributes["val"].CopyFrom(bound.value)
    bound.name = const.outputs[0].name


@cases(
    "literal-named", ((4, 6), SINGLE), ((6, 4), SINGLE), target=ct.target.iOS16, edit=named_bounds
)
def literal_named(planted, x, y):
    mb.const(val=np.int32(0), name="zero")
    return mb.reshape_like(x=x, ref_tensors=(y,), begins=[0], ends=[2], end_masks=[False])


@cases("mean-flexible", FLEXIBLE, target=ct.target.iOS15, near={"target": ct.target.iOS16})
def mean_flexible(planted, x):
    return mb.reduce_mean(x=x, axes=[0])


VOLUME, OTHER = ((2, 3, 4, get_new_symbol()), SINGLE), ((2, 5, 4, 6), SINGLE)


@cases(
    "einsum-flexible",
    ((2, get_new_symbol(), 4, 5), SINGLE),
    OTHER,
    near={"inputs": (((2, 3, 4, 5), SINGLE), OTHER)},
)
def einsum_flexible(planted, x, y):
    return mb.einsum(values=(x, y), equation="abcd,adce->abce")


@cases(
    "instance-norm-volume", ((1, 4, 3, 3, 3), SINGLE), near={"inputs": (((1, 4, 3, 9), SINGLE),)}
)
def instance_norm_volume(planted, x):
    return mb.instance_norm(x=x)


# --- attention


@cases(
    "attention-mask-flexible", ((1, 2, 4, 8), HALF), ((1, 1, 4, get_new_symbol()), HALF),
    others=["attention-mask-ignored"],
)  # fmt: skip
def attention_mask_flexible(planted, x, y):
    if not planted:
        y = mb.slice_by_size(x=y, begin=[0, 0, 0, 0], size=[1, 1, 4, 4])
    return mb.scaled_dot_product_attention(query=x, key=x, value=x, attn_mask=y)


@cases("attention-large-heads", ((1, 1, 1, 512), HALF), near={"inputs": (((1, 1, 1, 256), HALF),)})
def attention_large_heads(planted, x):
    for _ in range(2):
        x = mb.scaled_dot_product_attention(query=x, key=x, value=x)
    return x


@cases("attention-cpu", ((1, 1, 2, 64), HALF), ((1, 1, 128, 64), HALF))
def attention_cpu(planted, x, y):
    if not planted:
        y = mb.slice_by_size(x=y, begin=[0, 0, 0, 0], size=[1, 1, 64, 64])
    return mb.scaled_dot_product_attention(query=mb.mul(x=x, y=np.float16(2)), key=y, value=y)


# --- weights, and the engine's compiler


@cases("constexpr-returned", ROWS)
def constexpr_returned(planted, x):
    weight = mb.constexpr_blockwise_shift_scale(data=ones(3, 4, dtype=np.int8), scale=ones(3, 1))
    return weight if planted else mb.add(x=x, y=weight)


@cases("constexpr-vector", ROWS)
def constexpr_vector(planted, x):
    shape = (4,) if planted else (1, 4)
    data, scale = ones(*shape, dtype=np.int8), ones(*(1 for _ in shape))
    return mb.add(x=x, y=mb.constexpr_blockwise_shift_scale(data=data, scale=scale))


def vectors(planted, x):
    lut = ones(*((1, 1) if planted else (2, 1)), 16, 4, dtype=np.int8)
    lut = mb.constexpr_blockwise_shift_scale(data=lut, scale=ones(*lut.shape[:2], 1, 1))
    weight = mb.constexpr_lut_to_dense(
        indices=ones(2, 4, dtype=UINT4), lut=lut, vector_axis=0
    )  # fmt: skip
    return mb.add(x=x, y=weight)


cases("palette-quantised-vector", ((8, 4), SINGLE))(vectors)


def chained(count, spec):
    """One convolution after the other; the builder takes seconds for them."""
    (conv,) = (op for op in ops(spec) if op.type == "conv")
    first, last = conv.inputs["x"].arguments[0].name, conv.outputs[0].name
    convs = [deepcopy(conv) for _ in range(count)]
    for number, one in enumerate(convs):
        one.inputs["x"].arguments[0].name = f"y{number}" if number else first
        one.outputs[0].name = last if number == count - 1 else f"y{number + 1}"
    ops(spec).remove(conv)
    ops(spec).extend(convs)


@cases(
    "conv-chain", ((1, 1, 1, 1), SINGLE), edit=partial(chained, 387),
    near={"edit": partial(chained, 386)},
)  # fmt: skip
def conv_chain(planted, x):
    return mb.conv(x=x, weight=ones(1, 1, 1, 1))


@cases("affine-between-reshapes", ((2, 1024), HALF))
def affine_between_reshapes(planted, x):
    scale = np.arange(1024, dtype=np.float16).reshape(1, 1024, 1, 1)
    x = mb.reshape(x=x, shape=[2, 1024, 1, 1])
    x = mb.mul(x=x, y=scale if planted else ones(1, 1024, 1, 1, dtype=np.float16))
    return mb.reshape(x=x, shape=[2, 1024])


@pytest.mark.filterwarnings("ignore:Some dimensions in the input shape")
@pytest.mark.parametrize("case", cases, ids=lambda case: case.fault)
class TestLoading:
    def test_a_planted_fault_is_found_and_nothing_else(self, case):
        assert case.seen(planted=True) == {case.fault}

    def test_a_near_miss_has_none(self, case):
        assert case.seen(planted=False) == set()


REFUSED = [case for case in cases if faults.load()[case.fault].refuses]


@pytest.mark.filterwarnings("ignore:Some dimensions in the input shape")
@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.fault)
def test_what_core_ml_refuses_runs_here(case, tmp_path):
    path = tmp_path / "m.mlpackage"
    case.made(planted=True).save(str(path))
    (function, *_) = Package(path).functions.values()
    given = {
        name: np.ones([size or 2 for size in type_.shape], NUMPY[type_.dtype])
        for name, type_ in function.inputs.items()
    }
    program = mlprogram.open(path)
    state = {"state": program.make_state()} if function.states else {}
    assert program.predict(given, **state)


#: keys, size of a head -> whether the CPU survived it, kasper0406/gemma-coreml-chat radars/3.
TRIED = {
    (512, 8): True, (8, 512): True, (64, 64): True, (112, 112): True, (128, 64): False,
    (64, 128): False, (96, 96): False, (512, 32): False, (32, 512): False, (128, 128): False,
    (256, 256): False, (512, 512): False,
}  # fmt: skip


@pytest.mark.parametrize("size", TRIED, ids=str)
def test_the_sizes_that_crash_the_cpu_are_those_that_were_seen_to(size):
    keys, head = size

    def network(planted, x, y):
        return mb.scaled_dot_product_attention(query=mb.relu(x=x), key=y, value=y)

    form = Form((((1, 1, 2, head), HALF), ((1, 1, keys, head), HALF)))
    found = Case("attention-cpu", network, form).seen(planted=True)
    assert found == (set() if TRIED[size] else {"attention-cpu"})


def test_each_fault_has_its_pair():
    assert {case.fault for case in cases} == cases.of_file("loading.toml")
