"""Each fault that changes numbers is found in a package that has it, and in no near miss."""

from _pairs import HALF, INT, SINGLE, Case, Cases, Form
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil.types.type_mapping import string_to_nptype
import numpy as np
import pytest

cases = Cases()
IMAGE = ((1, 3, 8, 8), SINGLE)
ATTENTION = ((1, 2, 4, 8), HALF), ((1, 2, 6, 8), HALF), ((1, 1, 4, 6), HALF)
UINT4, INT4, BIT = (string_to_nptype(name) for name in ("uint4", "int4", "uint1"))


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


@cases("pow-two", ((3,), SINGLE))
def pow_two(planted, x):
    return mb.pow(x=np.float32(2), y=x) if planted else mb.pow(x=x, y=np.float32(2))


@cases("mod-sign", ((3,), INT))
def mod_sign(planted, x):
    return mb.mod(x=x if planted else mb.range_1d(start=0, end=3, step=1), y=np.int32(5))


@cases("integers-beyond", ((3,), INT))
def integers_beyond(planted, x):
    return mb.add(x=x, y=np.int32((1 << 24) + planted))


@cases("range-small-step", ((1,), SINGLE))
def range_small_step(planted, x):
    step = np.float32(1e-6 if planted else 1e-4)
    return mb.mul(x=mb.range_1d(start=np.float32(9), end=np.float32(9.001), step=step), y=x)


@cases("log-sum-exp", ((2, 4), HALF))
def log_sum_exp(planted, x):
    if not planted:
        x = mb.sub(x=x, y=mb.reduce_max(x=x, axes=[1], keep_dims=True))
    return mb.reduce_log_sum_exp(x=x, axes=[1])


@cases("gather-negative", ((3, 4), SINGLE), near={"target": ct.target.iOS16})
def gather_negative(planted, x):
    said = {"validate_indices": False} if planted else {}
    return mb.gather(x=x, indices=np.int32([-1]), axis=0, **said)


@cases("gather-nd-computed", ((3, 4), SINGLE), ((2, 1), INT))
def gather_nd_computed(planted, x, y):
    indices = y if planted else np.int32([[0], [2]])
    return mb.gather_nd(x=x, indices=indices, validate_indices=False)


@cases("slice-last-backwards", ((4, 2), SINGLE))
def slice_last_backwards(planted, x):
    end = -2 if planted else -3
    return mb.slice_by_index(
        x=x,
        begin=[-1, 0],
        end=[end, 0],
        stride=[-1, 1],
        begin_mask=[False, True],
        end_mask=[False, True],
    )


@cases("conv-corner", ((1, 2, 5, 5), SINGLE))
def conv_corner(planted, x):
    width = 2 if planted else 3
    return mb.conv(x=x, weight=ones(2, 2, 3, width), strides=[2, 2], pad_type="custom", pad=[1] * 4)


@cases("conv-weight-computed", IMAGE, ((2, 3, 3, 3), SINGLE))
def conv_weight_computed(planted, x, y):
    return mb.conv(x=x, weight=y if planted else ones(2, 3, 3, 3))


@cases("conv-transpose-shape", ((1, 3, 4, 4), SINGLE))
def conv_transpose_shape(planted, x):
    size = 4 if planted else 6  # its own: 3 + 4 - 1
    return mb.conv_transpose(x=x, weight=ones(3, 3, 3, 3), output_shape=[1, 3, size, size])


@cases("conv-transpose-uneven", ((1, 3, 4, 4), SINGLE))
def conv_transpose_uneven(planted, x):
    pad = [1, int(not planted), 1, 1]
    return mb.conv_transpose(x=x, weight=ones(3, 3, 3, 3), pad_type="custom", pad=pad)


@cases("avg-pool-seven", IMAGE)
def avg_pool_seven(planted, x):
    return mb.avg_pool(
        x=x, kernel_sizes=[7, 7], strides=[4, 4], pad_type="custom", pad=[3] * 4,
        exclude_padding_from_average=not planted,
    )  # fmt: skip


@cases("pool-same-lower", ((1, 1, 4), SINGLE), near={"inputs": (((1, 1, 4, 1), SINGLE),)})
def pool_same_lower(planted, x):
    kernel = [2] if planted else [2, 1]
    return mb.avg_pool(x=x, kernel_sizes=kernel, strides=[1] * len(kernel), pad_type="same_lower")


@cases("max-pool-padding", ((1, 2, 5, 5), SINGLE))
def max_pool_padding(planted, x):
    pad = [int(planted)] * 4
    return mb.max_pool(
        x=x, kernel_sizes=[3, 3], strides=[3, 3], pad_type="custom", pad=pad, ceil_mode=True
    )


@cases("upsample-fraction", IMAGE)
def upsample_fraction(planted, x):
    width = 2.5 if planted else 2.0
    return mb.upsample_nearest_neighbor(x=x, scale_factor_height=1.0, scale_factor_width=width)


@cases("resample-reflection", IMAGE, ((1, 2, 2, 2), SINGLE))
def resample_reflection(planted, x, y):
    return mb.resample(
        x=x, coordinates=y, sampling_mode="bilinear", padding_mode="reflection",
        padding_value=np.float32(0), coordinates_mode="normalized_minus_one_to_one",
        align_corners=not planted,
    )  # fmt: skip


@cases("crop-resize-gpu", IMAGE, target=ct.target.iOS16, near={"target": ct.target.iOS17})
def crop_resize_gpu(planted, x):
    box = [0, 0, 0, 1, 1] if planted else [0, 0, 1, 1]
    given = (
        {"roi": np.float32(box).reshape(1, 5, 1, 1, 1)}
        if planted
        else {"boxes": np.float32([box]), "box_indices": np.int32([0])}
    )
    return mb.crop_resize(
        x=x, target_height=2, target_width=2, normalized_coordinates=True,
        sampling_mode="ALIGN_CORNERS", **given,
    )  # fmt: skip


@cases("nms-half", ((1, 4, 4), HALF), ((1, 4, 2), HALF))
def nms_half(planted, x, y):
    threshold = np.float16(0.5)
    if not planted:
        x, y, threshold = (mb.cast(x=one, dtype="fp32") for one in (x, y, threshold))
    return mb.non_maximum_suppression(
        boxes=x, scores=y, iou_threshold=threshold, max_boxes=2, per_class_suppression=False
    )[0]  # fmt: skip


@cases("attention-batch", ((10, 2, 4, 8), HALF), near={"inputs": (((9, 2, 4, 8), HALF),)})
def attention_batch(planted, x):
    scores = mb.add(x=mb.matmul(x=x, y=x, transpose_y=True), y=ones(1, 2, 4, 4, dtype=np.float16))
    values = mb.matmul(x=mb.softmax(x=scores, axis=-1), y=x)
    rows = mb.reshape(x=mb.transpose(x=values, perm=[0, 2, 1, 3]), shape=(-1, 4, 16))
    return mb.linear(x=rows, weight=ones(16, 16, dtype=np.float16))


@cases("attention-mask-ignored", *ATTENTION)
def attention_mask_ignored(planted, x, y, z):
    mask = {"attn_mask": z} if planted else {}
    return mb.scaled_dot_product_attention(query=x, key=y, value=y, **mask)


@cases("state-slice-update", ((1, 4), HALF), states=(((8, 4), HALF),))
def state_slice_update(planted, x, state):
    old = mb.read_state(input=state)
    new = mb.add(x=old, y=x)
    if planted:
        new = mb.slice_update(x=old, update=x, begin=[0, 0], end=[1, 4])
    return mb.add(x=mb.coreml_update_state(state=state, value=new), y=x)


@cases("int4-scale-each", ((4, 4), SINGLE))
def int4_scale_each(planted, x):
    scale = ones(4, 4 if planted else 2)
    weight = mb.constexpr_blockwise_shift_scale(data=ones(4, 4, dtype=INT4), scale=scale)
    return mb.add(x=x, y=weight)


@cases("palette-quantised", ((4, 4), SINGLE))
def palette_quantised(planted, x):
    lut = ones(1, 1, 16, 1, dtype=np.int8 if planted else np.float32)
    if planted:
        lut = mb.constexpr_blockwise_shift_scale(data=lut, scale=ones(1, 1, 1, 1))
    return mb.add(x=x, y=mb.constexpr_lut_to_dense(indices=ones(4, 4, dtype=UINT4), lut=lut))


@cases("lstm-sparse-integers", ((3, 1, 8), SINGLE))
def lstm_sparse_integers(planted, x):
    mask, kept = (np.arange(8) < 4) * ones(32, 1, dtype=BIT), ones(128)
    mask = mask.astype(BIT)
    if planted:
        mask, kept = mb.constexpr_sparse_blockwise_shift_scale(
            data_mask=mask, nonzero_data=kept.astype(np.int8), scale=ones(1, 1)
        )
    weight = mb.constexpr_sparse_to_dense(nonzero_data=kept, mask=mask)
    start = ones(1, 8)
    return mb.lstm(
        x=x, initial_h=start, initial_c=start, weight_ih=weight, weight_hh=ones(32, 8)
    )[0]  # fmt: skip


@cases("hardswish-matrix", ((2, 8), HALF), near={"inputs": (((1, 1, 2, 8), HALF),)})
def hardswish_matrix(planted, x):
    x = mb.linear(x=x, weight=ones(8, 8, dtype=np.float16))
    return mb.mul(x=x, y=mb.sigmoid_hard(x=x, alpha=np.float16(1 / 6), beta=np.float16(0.5)))


@pytest.mark.parametrize("case", cases, ids=lambda case: case.fault)
class TestNumbers:
    def test_a_planted_fault_is_found_and_nothing_else(self, case):
        assert case.seen(planted=True) == {case.fault}

    def test_a_near_miss_has_none(self, case):
        assert case.seen(planted=False) == set()


#: A dividend that cannot be negative -> one that can be, by the op that makes it.
SIGNS = {
    "abs": (lambda x: mb.abs(x=x), lambda x: mb.sub(x=x, y=np.int32(1))),
    "maximum": tuple(lambda x, y=y: mb.maximum(x=x, y=np.int32(y)) for y in (0, -1)),
    "chain": (
        lambda x: mb.add(x=mb.reshape(x=mb.square(x=x), shape=[1, 3]), y=np.int32(2)),
        lambda x: mb.add(x=mb.reshape(x=mb.square(x=x), shape=[1, 3]), y=np.int32(-2)),
    ),
    "select": (
        lambda x: mb.select(cond=mb.less(x=x, y=np.int32(0)), a=mb.abs(x=x), b=np.int32([1, 2, 3])),
        lambda x: mb.select(cond=mb.less(x=x, y=np.int32(0)), a=mb.abs(x=x), b=x),
    ),
    "wrapped": (
        lambda x: mb.add(x=mb.mod(x=x, y=np.int32(5)), y=np.int32(5)),
        lambda x: mb.sub(x=mb.mod(x=x, y=np.int32(5)), y=np.int32(5)),
    ),
    "indices": (
        lambda x: mb.topk(x=x, k=2)[1],
        lambda x: mb.topk(x=x, k=2)[0],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNS)
def test_a_sign_is_known_from_the_ops_before(name):
    never, maybe = SIGNS[name]

    def network(planted, x):
        return mb.mod(x=(maybe if planted else never)(x), y=np.int32(5))

    case = Case("mod-sign", network, Form((((3,), INT),)))
    assert case.seen(planted=True) == {"mod-sign"} and case.seen(planted=False) == set()


def test_each_fault_has_its_pair():
    assert {case.fault for case in cases} == cases.of_file("coreml.toml")
