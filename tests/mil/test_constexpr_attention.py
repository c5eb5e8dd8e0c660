"""Compressed constants, quantisation, attention and box suppression against independent oracles.

The oracles are as in `test_shapes_slices.py`, whose helpers this file uses.
"""

from _oracle import few
from ane_book.mil.aliases import VIEWS
from ane_book.mil.ops import OPS
from coremltools.converters.mil.mil import types
from coremltools.optimize import _utils as optimize_utils
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from test_shapes_slices import FLOATS, IOS16, IOS17, grid, numbers, ours, same, theirs
import torch

# --- constants --------------------------------------------------------------------------------


def integers(*shape, dtype=np.int8, low=-8, high=8, seed=0):
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


@pytest.mark.parametrize("dtype, signed, axis", grid(FLOATS, [True, False], [None, 0, -1]))
def test_affine_dequantize(dtype, signed, axis):
    small = np.int8 if signed else np.uint8
    data = integers(3, 4, 5, dtype=small, low=-128 if signed else 0, high=127)
    count = () if axis is None else (data.shape[axis],)
    scale, zero = (
        numbers(*count, low=0.01, high=2, dtype=dtype),
        integers(*count, dtype=small, low=0),
    )
    arguments = {"scale": scale, "zero_point": zero}
    want = theirs(
        "constexpr_affine_dequantize", IOS16, quantized_data=data, axis=axis or 0, **arguments
    )
    y = ours("constexpr_affine_dequantize", quantized_data=data, axis=axis or 0, **arguments)
    same(y, want, dtype)
    arguments |= {} if axis is None else {"axis": axis}
    want = theirs("dequantize", IOS17, input=data, **arguments)
    same(ours("dequantize", input=data, **arguments), want, dtype)
    arguments.pop("zero_point")
    want = theirs("dequantize", IOS17, input=data, **arguments)
    same(ours("dequantize", input=data, **arguments), want, dtype)


@pytest.mark.parametrize("name, axis", grid(["int8", "uint8"], [None, 1, -1]))
def test_quantize(name, axis):
    x = numbers(3, 4, 5, low=-300, high=300)
    x[0, 0] = [0.5, 1.5, 2.5, -0.5, -1.5]  # halves go to the even neighbour
    count = () if axis is None else (x.shape[axis],)
    scale = np.float32(1) if axis is None else numbers(*count, low=0.5, high=4)
    zero = integers(*count, dtype=name, low=0, high=9)
    arguments = {"input": x, "scale": scale, "output_dtype": name}
    arguments |= {} if axis is None else {"axis": axis}
    for extra in ({}, {"zero_point": zero}):
        want = theirs("quantize", IOS17, **arguments, **extra)
        same(ours("quantize", **arguments, **extra), want, np.dtype(name))


@pytest.mark.parametrize("bits, dtype", grid([1, 2, 4, 6, 8], [*FLOATS, np.int8]))
def test_packed_palettes(bits, dtype):
    shape, lut = (5, 3, 2), numbers(1 << bits, low=-100, high=100).astype(dtype)
    indices = integers(*shape, dtype=np.uint8, low=0, high=1 << bits)
    packed = optimize_utils.pack_elements_into_bits(indices.reshape(-1), bits)
    arguments = {"indices": packed, "lut": lut, "shape": np.uint32(shape)}
    want = theirs("constexpr_lut_to_dense", IOS16, **arguments)
    same(want, lut[indices])
    same(ours("constexpr_lut_to_dense", **arguments), want, dtype)


def sub_byte(values, bits):
    """Indices in coremltools' own dtype of `bits` bits."""
    return values.astype(types.nptype_from_builtin(types.string_to_builtin(f"uint{bits}")))


@pytest.mark.parametrize("groups", [(1, 1, 1), (2, 1, 1), (1, 3, 1), (2, 3, 2), (4, 6, 2)])
@pytest.mark.parametrize("vector, axis", [(1, None), (2, 0), (3, 1), (2, -1)])
def test_grouped_and_vector_palettes(groups, vector, axis):
    lut = numbers(*groups, 8, vector, dtype=np.float16)
    indices = integers(4, 6, 2, dtype=np.uint8, low=0)
    extra = {} if axis is None else {"vector_axis": np.int32(axis)}
    want = theirs("constexpr_lut_to_dense", indices=sub_byte(indices, 3), lut=lut, **extra)
    dense = ours("constexpr_lut_to_dense", indices=indices, lut=lut, **extra)
    same(dense, want, np.float16)
    for place in np.ndindex(indices.shape):
        group = tuple(p * g // d for p, g, d in zip(place, groups, indices.shape, strict=True))
        entry = lut[(*group, indices[place])]
        if axis is None:
            assert dense[place] == entry[0]
        else:
            moved, p = np.moveaxis(dense, axis, -1), list(place)
            at = p.pop(axis) * vector
            assert (moved[tuple(p)][at : at + vector] == entry).all()


@pytest.mark.parametrize("dtype", [*FLOATS, np.int8])
def test_sparse(dtype):
    dense = (numbers(5, 3, dtype=np.int32) * (numbers(5, 3, seed=1) > 0)).astype(dtype)
    mask, nonzero = dense != 0, dense[dense != 0]
    packed = np.packbits(mask.reshape(-1), bitorder="little")
    old = {"nonzero_data": nonzero, "mask": packed, "shape": np.uint32(dense.shape)}
    same(theirs("constexpr_sparse_to_dense", IOS16, **old), dense)
    same(ours("constexpr_sparse_to_dense", **old), dense, dtype)
    y = ours("constexpr_sparse_to_dense", nonzero_data=nonzero, mask=mask.astype(np.uint8))
    same(
        y, theirs("constexpr_sparse_to_dense", nonzero_data=nonzero, mask=sub_byte(mask, 1)), dtype
    )


@pytest.mark.parametrize("vector, axis", [(1, None), (2, 0), (2, 1)])
def test_sparse_palettes(vector, axis):
    mask = integers(4, 6, dtype=np.uint8, low=0, high=2)
    lut = numbers(2, 1, 4, vector, dtype=np.float16)
    indices = integers(int(mask.sum()), dtype=np.uint8, low=0, high=4, seed=1)
    extra = {} if axis is None else {"vector_axis": np.int32(axis)}
    want = theirs("constexpr_lut_to_sparse", indices_mask=sub_byte(mask, 1),
                  indices_nonzero_data=sub_byte(indices, 2), lut=lut, **extra)  # fmt: skip
    y = ours(
        "constexpr_lut_to_sparse", indices_mask=mask, indices_nonzero_data=indices, lut=lut, **extra
    )
    same(y, want)
    assert y[1].dtype == np.float16


@pytest.mark.parametrize("blocks", [(1, 1), (4, 1), (2, 3), (4, 6)])
@pytest.mark.parametrize("dtype, offset", grid(FLOATS, [None, np.int8, "same"]))
def test_blockwise_shift_scale(blocks, dtype, offset):
    data, scale = integers(4, 6), numbers(*blocks, low=0.1, high=2, dtype=dtype)
    shift = {}
    if offset:
        values = integers(*blocks, seed=1, low=-4, high=4)
        shift = {"offset": values.astype(dtype if offset == "same" else offset)}
    want = theirs("constexpr_blockwise_shift_scale", data=data, scale=scale, **shift)
    y = ours("constexpr_blockwise_shift_scale", data=data, scale=scale, **shift)
    same(y, want, dtype, 1e-6)
    mask = integers(4, 6, dtype=np.uint8, low=0, high=2)
    want = theirs("constexpr_sparse_blockwise_shift_scale", data_mask=sub_byte(mask, 1),
                  nonzero_data=data[mask > 0], scale=scale, **shift)  # fmt: skip
    y = ours("constexpr_sparse_blockwise_shift_scale", data_mask=mask, nonzero_data=data[mask > 0],
             scale=scale, **shift)  # fmt: skip
    same(y, want, tolerance=1e-6)
    assert y[1].dtype == dtype


def test_constexpr_cast():
    x = numbers(3, 4, dtype=np.float16)
    want = theirs("constexpr_cast", IOS16, source_val=x, output_dtype="fp32")
    same(ours("constexpr_cast", source_val=x, output_dtype="fp32"), want, np.float32)


# --- attention --------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(2,), (2, 3), (1, 2, 3)])
@pytest.mark.parametrize("mask, dtype", grid([None, "bool", "float", "row"], FLOATS))
def test_attention(batch, mask, dtype):
    query, key, value = (numbers(*batch, n, e, seed=n, dtype=dtype, low=-2, high=2)
                         for n, e in ((4, 8), (5, 8), (5, 3)))  # fmt: skip
    arguments = {"query": query, "key": key, "value": value}
    if mask:
        shape = (5,) if mask == "row" else (*batch[:-1], 1, 4, 5)[-len(batch) - 2 :]
        values = numbers(*shape, seed=9, dtype=dtype)
        values[..., 0] = 1  # no row is closed altogether
        arguments["attn_mask"] = values > 0 if mask == "bool" else values
    wide = {k: v if v.dtype == bool else v.astype(np.float32) for k, v in arguments.items()}
    y = ours("scaled_dot_product_attention", **arguments)
    want = theirs("scaled_dot_product_attention", **wide)
    same(y, want.astype(dtype), dtype, 1e-5 if dtype == np.float32 else 2e-3)


# --- boxes ------------------------------------------------------------------------------------


def suppress(boxes, scores, iou, limit, count, per_class):
    """Indices that survive, by comparing every pair of boxes in plain Python."""
    best, kind = scores.max(-1), scores.argmax(-1)
    edges = [(x - w / 2, y - h / 2, x + w / 2, y + h / 2) for x, y, w, h in boxes.tolist()]
    kept = []
    for i in sorted(range(len(best)), key=lambda i: -best[i]):
        a = edges[i]
        for j in kept:
            b = edges[j]
            w, h = (max(0, min(a[k + 2], b[k + 2]) - max(a[k], b[k])) for k in (0, 1))
            areas = [(e[2] - e[0]) * (e[3] - e[1]) for e in (a, b)]
            if w * h > iou * (sum(areas) - w * h) and (not per_class or kind[i] == kind[j]):
                break
        else:
            if best[i] >= limit:
                kept.append(i)
    return (kept or [int(best.argmax())])[:count]


@few
@given(
    shape=st.tuples(*[st.integers(1, most) for most in (3, 20, 4)]),  # batch, boxes, kinds
    iou=st.floats(0.05, 0.9),
    limit=st.sampled_from([-9.0, 4.0, 99.0]),
    most=st.integers(1, 24),
    per_class=st.booleans(),
    seed=st.integers(0, 99),
)
def test_non_maximum_suppression(shape, iou, limit, most, per_class, seed):
    batch, count, kinds = shape
    boxes = numbers(batch, count, 4, low=0, high=9, seed=seed)
    scores = numbers(batch, count, kinds, seed=seed + 100)
    common = {"iou_threshold": iou, "max_boxes": most, "per_class_suppression": per_class}
    y = ours("non_maximum_suppression", boxes=boxes, scores=scores, score_threshold=limit, **common)
    new = ours("non_maximum_suppression", boxes=boxes.mT, scores=scores.mT, **common)
    assert len(y) == 4 and len(new) == 3
    for b in range(batch):
        kept = suppress(boxes[b], scores[b], iou, limit, most, per_class)
        rest = most - len(kept)
        want = [np.pad(v[b, kept], ((0, rest), (0, 0))) for v in (boxes, scores)]
        want += [kept + [-1] * rest, len(kept)]
        same([np.asarray(v[b]) for v in y], want)
        every = suppress(boxes[b], scores[b], iou, -99, most, per_class)
        same(new[2][b], np.pad(every, (0, most - len(every)), constant_values=-1))
        same(new[0][b, :, : len(every)], boxes[b, every].T)


def test_boxes_as_in_apples_op_test():
    boxes = np.repeat(np.arange(4, dtype=np.float32)[None, :, None], 4, -1)
    scores = np.float32([[[-3.5], [9.4], [2.3], [0.7]]])
    y = ours("non_maximum_suppression", boxes=boxes, scores=scores, iou_threshold=0.2,
             score_threshold=0.4, max_boxes=2, per_class_suppression=True)  # fmt: skip
    same(y, [boxes[:, 1:3], scores[:, 1:3], [[1, 2]], [2]], tolerance=0)


@pytest.mark.parametrize("iou, left", [(0.2, 1), (0.199, 1), (0.201, 2), (0.0, 1)])
def test_boxes_that_overlap_by_the_threshold_go_since_ios_17(iou, left):
    """As in coremltools' `test_nms_corner_case_iou_equal_threshold`: 1 of 5 in common."""
    boxes = np.float32([[[1, 1, 2, 2], [1.5, 2, 1, 2], [9, 9, 1, 1]]])
    scores = np.float32([[[2], [4], [1]]])
    common = {"iou_threshold": np.float32(iou), "max_boxes": 3, "per_class_suppression": False}
    y = ours("non_maximum_suppression", boxes=boxes, scores=scores, score_threshold=-9, **common)
    new = ours("non_maximum_suppression", boxes=boxes.mT, scores=scores.mT, **common)
    assert np.asarray(y[3]).tolist() == [3 if iou == 0.2 else left + 1]
    kept = [1, 0, 2] if left == 2 else [1, 2, -1]
    assert np.asarray(new[2])[0].tolist() == kept


# --- memory -----------------------------------------------------------------------------------

ONE = torch.ones(1, 1, 1, 1)
INDEX = torch.zeros(1, 1, 1, 1, dtype=torch.int32)
OUT = {"_out": [(torch.float32, (1, 1, 1, 1))]}
#: For every op that is not known as a view, the call most likely to give its input back.
FRESH = {
    "band_part": {"x": ONE},
    "batch_to_space": {"x": ONE, "block_shape": [1, 1], "crops": [[0, 0], [0, 0]]},
    "concat": {"values": [ONE], "axis": 0},
    "crop": {"x": ONE, "crop_height": [0, 0], "crop_width": [0, 0]},
    "cumsum": {"x": ONE},
    "depth_to_space": {"x": ONE, "block_size": 1},
    "fill_like": {"ref_tensor": ONE, **OUT},
    "gather": {"x": ONE, "indices": INDEX[0, 0, 0, 0]},
    "gather_along_axis": {"x": ONE, "indices": INDEX},
    "gather_nd": {"x": ONE, "indices": INDEX[0, 0, 0]},
    "pad": {"x": ONE, "pad": [0, 0]},
    "pixel_shuffle": {"x": ONE, "upscale_factor": 1},
    "pixel_unshuffle": {"x": ONE, "downscale_factor": 1},
    "resize": {"x": ONE, "shape": [0], "resized_dims": 1},
    "resize_bilinear": {"x": ONE},
    "resize_nearest_neighbor": {"x": ONE, "target_size_height": 1, "target_size_width": 1},
    "reverse_sequence": {"x": ONE, "lengths": INDEX.reshape(1), "seq_axis": 1},
    "scatter": {"data": ONE, "indices": INDEX.reshape(1), "updates": ONE},
    "scatter_along_axis": {"data": ONE, "indices": INDEX, "updates": ONE},
    "scatter_nd": {"data": ONE, "indices": INDEX[0, 0], "updates": ONE[0]},
    "select": {"cond": ONE > 0, "a": ONE, "b": ONE},
    "slice_update": {"x": ONE, "update": ONE, "begin": [0] * 4, "end": [1] * 4},
    "sliding_windows": {"x": ONE, "axis": 0, "size": 1},
    "space_to_batch": {"x": ONE, "block_shape": [1, 1], "paddings": [[0, 0], [0, 0]]},
    "space_to_depth": {"x": ONE, "block_size": 1},
    "stack": {"values": [ONE], "axis": 0},
    "topk": {"x": ONE, "return_indices": False},
    "upsample_bilinear": {"x": ONE},
    "upsample_nearest_neighbor": {"x": ONE},
}


@pytest.mark.parametrize("name", FRESH)
def test_only_known_views_share_memory(name):
    assert name not in VIEWS
    y = OPS[name].function(**FRESH[name])
    assert y.untyped_storage().data_ptr() != ONE.untyped_storage().data_ptr()
