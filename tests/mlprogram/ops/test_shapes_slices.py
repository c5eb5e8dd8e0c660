"""The ops that join, cut, fill, order and move tensors, against independent oracles.

Where coremltools can compute an op itself (`value_inference`, `materialized_val_inference`), that
is the oracle; else a numpy or torch reference written another way, or values worked out by hand or
recorded in Apple's op tests.
"""

from itertools import product

from _oracle import FLOATS, run, tensor, theirs
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from mlprogram.ops import OPS
from mlprogram.ops.tensor_transformation import write_slice
import numpy as np
import pytest
import torch

DTYPES = [np.float32, np.float16, np.int32]
few = settings(max_examples=40, deadline=None)


def numbers(*shape, dtype=np.float32, seed=0, low=-9, high=9):
    rng = np.random.default_rng(seed)
    values = rng.integers(low, high, shape) if dtype == np.int32 else rng.uniform(low, high, shape)
    return np.asarray(values, dtype=dtype)


def grid(*axes):
    """Every combination, for parametrize."""
    return list(product(*axes))


def same(got, want, dtype=None, tolerance=0.0):
    got, want = (got, want) if isinstance(got, list | tuple) else ([got], [want])
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g.shape == np.shape(w)
        assert dtype is None or g.dtype == dtype
        np.testing.assert_allclose(g.astype(np.float64), w, rtol=tolerance, atol=tolerance)


# --- joining, splitting, shapes ---------------------------------------------------------------

X = (2, 3, 4)
EXACT = [
    ("band_part", {"lower": 1, "upper": 0}),
    ("band_part", {"lower": -1, "upper": 2}),
    ("cumsum", {"axis": 1}),
    ("cumsum", {"axis": -1, "reverse": True}),
    ("tile", {"reps": [2, 1, 3]}),
    ("flatten2d", {"axis": 2}),
    ("flatten2d", {"axis": -1}),
    ("split", {"axis": 2, "num_splits": 2}),
    ("split", {"axis": -1, "split_sizes": [1, 3]}),
    ("expand_dims", {"axes": [1]}),
    ("expand_dims", {"axes": [-1]}),
    ("expand_dims", {"axes": [0, -1, 2]}),
    ("reshape", {"shape": [4, 6]}),
    ("reshape", {"shape": [6, -1]}),
    ("reshape", {"shape": [0, 4, 3]}),
    ("reshape", {"shape": [1, 0, -1, 0]}),
    ("reshape", {"shape": [0, 0, -1, 1, 0]}),
    ("reverse", {}),
    ("reverse", {"axes": [0, -1]}),
    ("transpose", {"perm": [2, 0, 1]}),
    ("transpose", {"perm": [-1, 1, 0]}),
    ("identity", {}),
    ("shape", {}),
    ("slice_by_size", {"begin": [0, 1, -3], "size": [-1, 2, 2]}),
    ("argsort", {"axis": 1}),
    ("argsort", {"axis": -1, "ascending": True}),
    ("topk", {"k": 2, "axis": 1}),
    ("topk", {"k": 3, "ascending": True, "return_indices": False}),
    ("gather", {"indices": np.int32([[2, 0], [1, -3]]), "axis": 1}),
    ("gather", {"indices": np.int32(1), "axis": -1}),
    ("gather", {"indices": np.int32([[2, 0, 1], [1, 1, 0]]), "axis": 2, "batch_dims": 1}),
    ("gather", {"indices": np.int32([[0, 1, 1], [1, 0, 2]]), "axis": 2, "batch_dims": 2}),
    ("gather_along_axis", {"indices": np.int32([[[0, -1, 2, 1]], [[1, 1, 0, 2]]]), "axis": 1}),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name, inputs", EXACT)
def test_agrees_with_coremltools(name, inputs, dtype):
    rng = np.random.default_rng(3)  # distinct values: the order of equals is not defined
    x = rng.permutation(24).reshape(X).astype(dtype) - 5
    want = theirs(name, x=x, **inputs)
    same(run(name, x=x, **inputs), want)
    first = run(name, x=x, **inputs)
    first = first[0] if isinstance(first, tuple) else first
    assert first.dtype == (np.int32 if name in ("shape", "argsort") else dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode, pad", grid(["constant", "reflect", "replicate"], [0, 1, 2]))
def test_pad(dtype, mode, pad):
    x = numbers(*X, dtype=dtype)
    sizes = np.int32([[1, 0, 2, 1], [0, 0, 0, 0], [1, 1, 0, 2, 3, 1]][pad])
    value = {"constant_val": dtype(1.5)} if mode == "constant" else {}
    arguments = {"x": x, "pad": sizes, "mode": mode, **value}
    same(run("pad", **arguments), theirs("pad", **arguments), dtype)


@few
@given(array_shapes(min_dims=1, max_dims=4, max_side=4), st.data())
def test_concat_stack_split_undo_each_other(shape, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    parts = [numbers(*shape, seed=i, dtype=np.float16) for i in range(3)]
    joined = run("concat", values=parts, axis=axis)
    same(joined, np.concatenate(parts, axis), np.float16)
    same(run("split", x=joined, axis=axis, num_splits=3), parts)
    same(run("stack", values=parts, axis=axis), np.stack(parts, axis), np.float16)
    woven = run("concat", values=parts, axis=axis, interleave=True)
    for i, part in enumerate(parts):
        same(np.take(woven, range(i, woven.shape[axis], 3), axis), part)


def test_concat_of_scalars_is_a_vector():
    same(run("concat", values=[np.int32(4), np.int32(2)], axis=0), np.int32([4, 2]), np.int32)


def test_squeeze_leaves_axes_that_are_not_one():
    x = numbers(1, 2, 1, 3)
    for axes, shape in ((None, (2, 3)), ([0], (2, 1, 3)), ([0, 1, -2], (2, 3)), ([1], x.shape)):
        assert run("squeeze", x=x, axes=axes).shape == shape


def test_reshape_like_takes_sizes_from_its_references():
    x, refs = numbers(2, 3, 5, 6), [numbers(2, 3, 4), numbers(1, 5, 6)]
    y = run("reshape_like", x=x.reshape(-1), ref_tensors=refs, begins=[0, 1], ends=[2, 0],
             end_masks=[False, True])  # fmt: skip
    same(y, x)
    single = OPS["reshape_like"].function(torch.zeros(6), torch.zeros(1, 2, 3), 1, 0, True)
    assert single.shape == (2, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int32, torch.bool])
def test_fill(dtype):
    y = run("fill", out=dtype, shape=[2, 3], value=1)
    assert torch.equal(torch.from_numpy(y), torch.ones(2, 3, dtype=dtype))
    same(run("fill_like", out=dtype, ref_tensor=numbers(4, 1, dtype=np.int32)), np.zeros((4, 1)))


@pytest.mark.parametrize("start, end, step", [(0, 7, 2), (5, -4, -3), (3, 3, 1), (-2, 4, 1)])
def test_range_1d(start, end, step):
    arguments = {"start": np.int32(start), "end": np.int32(end), "step": np.int32(step)}
    same(run("range_1d", out=torch.int32, **arguments), np.arange(start, end, step), np.int32)
    halves = {key: np.float32(value / 2) for key, value in arguments.items()}
    want = theirs("range_1d", **halves)
    same(run("range_1d", out=torch.float16, **halves), want, np.float16)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_one_hot(axis):
    indices = np.int32([[0, 3, 1], [2, 4, -1]])
    y = run("one_hot", out=torch.float16, indices=indices, one_hot_vector_size=4, axis=axis,
             on_value=2.5, off_value=-1.0)  # fmt: skip
    rows = [np.eye(4)[i] if 0 <= i < 4 else np.zeros(4) for i in indices.reshape(-1)]
    want = np.moveaxis(np.stack(rows).reshape(2, 3, 4) * 3.5 - 1, -1, axis)
    same(y, want, np.float16)


@pytest.mark.parametrize("reverse, dtype", grid([False, True], DTYPES))
def test_exclusive_cumsum(reverse, dtype):
    x = numbers(3, 5, dtype=dtype)
    y = run("cumsum", x=x, axis=1, exclusive=True, reverse=reverse)
    sums = [x[:, i + 1 :].sum(1) if reverse else x[:, :i].sum(1) for i in range(5)]
    same(y, np.stack(sums, 1), dtype, 1e-5 if dtype == np.float32 else 2e-2)


def test_cumsum_of_half_is_rounded_once():
    x = np.full(4096, 1, np.float16)  # a running sum in half stops at 2048
    same(run("cumsum", x=x), np.arange(1, 4097).astype(np.float16), np.float16)


@pytest.mark.parametrize("dtype", [*DTYPES, np.bool_])
def test_non_zero_and_select(dtype):
    x = (numbers(3, 4, dtype=np.int32) % 3).astype(dtype)
    same(run("non_zero", x=x), theirs("non_zero", x=x), np.int32)
    cond, b = numbers(3, 1) > 0, (numbers(4, seed=2) > 0).astype(dtype)
    same(run("select", cond=cond, a=x, b=b), np.where(cond, x, b), dtype)


def test_topk_orders_equals_by_index_and_gives_the_dtype_asked_for():
    x = np.float16([[3, 7, 7, 1, 7]])
    values, indices = run("topk", x=x, k=4, output_indices_dtype="uint16")
    same([values, indices], [[[7, 7, 7, 3]], [[1, 2, 4, 0]]])
    assert indices.dtype == np.uint16
    assert run("topk", x=x, k=-1)[0].shape == (1, 5)


@pytest.mark.parametrize("ascending", [True, False])
def test_equal_elements_keep_their_order(ascending):
    x = numbers(500, dtype=np.int32) // 3
    want = np.argsort(x if ascending else -x, kind="stable")
    same(run("argsort", x=x, ascending=ascending), want, np.int32)
    same(run("topk", x=x, k=90, ascending=ascending)[1], want[:90], np.int32)


# --- slices -----------------------------------------------------------------------------------


@st.composite
def slices(draw):
    """A shape and slice arguments that numpy understands, every mask among them."""
    shape = draw(array_shapes(min_dims=1, max_dims=4, max_side=6))
    lists = {
        key: [] for key in ("begin", "end", "stride", "begin_mask", "end_mask", "squeeze_mask")
    }
    for size in shape:
        lists["begin"].append(draw(st.integers(-size, size - 1)))
        lists["end"].append(draw(st.integers(-size - 1, size + 1)))
        lists["stride"].append(draw(st.sampled_from([1, 1, 1, 2, 3, -1, -2])))
        for mask, share in (("begin_mask", 3), ("end_mask", 3), ("squeeze_mask", 5)):
            lists[mask].append(draw(st.integers(0, share)) == share)
    dropped = [key for key in list(lists)[2:] if draw(st.booleans())]
    return shape, {key: value for key, value in lists.items() if key not in dropped}


def numpy_slice(shape, begin, end, stride=None, begin_mask=None, end_mask=None, squeeze_mask=None):
    index = []
    for axis in range(len(shape)):
        first = None if begin_mask and begin_mask[axis] else begin[axis]
        last = None if end_mask and end_mask[axis] else end[axis]
        one = squeeze_mask and squeeze_mask[axis]
        index.append((first or 0) if one else slice(first, last, stride[axis] if stride else 1))
    return tuple(index)


@settings(max_examples=300, deadline=None)
@given(slices())
def test_slice_by_index_and_slice_update(case):
    shape, arguments = case
    x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    index = numpy_slice(shape, **arguments)
    part = x[index]
    same(run("slice_by_index", x=x, **arguments), part, np.int32)
    update = -1 - np.arange(part.size, dtype=np.int32).reshape(part.shape)
    want = x.copy()
    want[index] = update
    same(run("slice_update", x=x, update=update, **arguments), want, np.int32)
    place = torch.from_numpy(x.copy())
    write_slice(place, tensor(update), **arguments)
    same(place.numpy(), want)


@pytest.mark.parametrize("axis, size, stride", [(1, 3, 1), (-1, 2, 2), (0, 1, 1)])
def test_sliding_windows(axis, size, stride):
    x = numbers(2, 5, 4)
    windows = np.lib.stride_tricks.sliding_window_view(x, size, axis)
    windows = np.moveaxis(windows, -1, axis % 3 + 1)
    want = np.take(windows, range(0, windows.shape[axis % 3], stride), axis % 3)
    same(run("sliding_windows", x=x, axis=axis, size=size, stride=stride), want)


@pytest.mark.parametrize("seq_axis, batch_axis", [(1, 0), (0, 2), (2, 1)])
def test_reverse_sequence(seq_axis, batch_axis):
    x = numbers(3, 4, 5)
    lengths = np.int32([2, 0, 3, 1, 3])[: x.shape[batch_axis]]
    want = x.copy()
    for b, length in enumerate(lengths):
        row = np.moveaxis(want, (batch_axis, seq_axis), (0, 1))[b]
        row[:length] = row[:length][::-1].copy()
    y = run("reverse_sequence", x=x, lengths=lengths, seq_axis=seq_axis, batch_axis=batch_axis)
    same(y, want)
