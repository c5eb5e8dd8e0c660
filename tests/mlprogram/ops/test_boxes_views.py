"""Attention, box suppression, and which ops give their input back."""

from _oracle import FLOATS, few, run, suppress, theirs
from hypothesis import given
from hypothesis import strategies as st
from mlprogram.analysis.aliases import VIEWS
from mlprogram.ops import OPS
import numpy as np
import pytest
from test_shapes_slices import grid, numbers, same
import torch

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
    y = run("scaled_dot_product_attention", **arguments)
    want = theirs("scaled_dot_product_attention", **wide)
    same(y, want.astype(dtype), dtype, 1e-5 if dtype == np.float32 else 2e-3)


# --- boxes ------------------------------------------------------------------------------------


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
    y = run("non_maximum_suppression", boxes=boxes, scores=scores, score_threshold=limit, **common)
    new = run("non_maximum_suppression", boxes=boxes.mT, scores=scores.mT, **common)
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


@pytest.mark.parametrize("iou, left", [(0.2, 1), (0.199, 1), (0.201, 2), (0.0, 1)])
def test_boxes_that_overlap_by_the_threshold_go_since_ios_17(iou, left):
    """As in coremltools' `test_nms_corner_case_iou_equal_threshold`: 1 of 5 in common."""
    boxes = np.float32([[[1, 1, 2, 2], [1.5, 2, 1, 2], [9, 9, 1, 1]]])
    scores = np.float32([[[2], [4], [1]]])
    common = {"iou_threshold": np.float32(iou), "max_boxes": 3, "per_class_suppression": False}
    y = run("non_maximum_suppression", boxes=boxes, scores=scores, score_threshold=-9, **common)
    new = run("non_maximum_suppression", boxes=boxes.mT, scores=scores.mT, **common)
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
