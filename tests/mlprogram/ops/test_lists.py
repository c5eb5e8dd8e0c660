"""Lists: written, read and grown, one op after another and through `while_loop`."""

from _oracle import few, normal, run
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from hypothesis import given
from hypothesis import strategies as st
from mlprogram import MLProgram
from mlprogram.errors import InvalidInput
from mlprogram.ops import OPS
import numpy as np
import pytest
import torch

OPTIONS = {"minimum_deployment_target": ct.target.iOS15, "skip_model_load": True}


def predict(program, precision=ct.precision.FLOAT32, **inputs):
    """The only output, computed with and without shortcuts."""
    with np.errstate(over="ignore"):  # coremltools compares the ranges of dtypes
        model = ct.convert(program, compute_precision=precision, **OPTIONS)
    fast = MLProgram.from_mlmodel(model)
    plain = MLProgram(fast.package, optimize=False)
    ((name, value),) = fast.predict(inputs).items()
    np.testing.assert_array_equal(value, plain.predict(inputs)[name])
    return value


@few
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(-9, 9)), max_size=8), st.integers(0, 3))
def test_writes_are_those_of_a_list_that_grows(writes, length):
    ls, expected = run("make_list", elem_shape=[2], init_length=length), [0] * length
    for index, value in writes:
        before = ls.copy()
        after = run("list_write", ls=ls, index=np.int32(index), value=np.float32([value, value]))
        np.testing.assert_array_equal(ls, before)  # a new list, as every value is new
        ls = after
        expected += [0] * (index + 1 - len(expected))
        expected[index] = value
    assert run("list_length", ls=ls) == len(expected)
    np.testing.assert_array_equal(ls, np.repeat(np.float32(expected)[:, None], 2, 1))
    for index, value in enumerate(expected):
        np.testing.assert_array_equal(run("list_read", ls=ls, index=np.int32([index])), [value] * 2)


@few
@given(st.lists(st.integers(0, 6), max_size=5))
def test_scatter_writes_in_order_and_gather_reads(indices):
    at, rows = np.int32(indices), normal(len(indices), 3)
    ls = run("make_list", elem_shape=3, init_length=2)
    ls = run("list_scatter", ls=ls, indices=at, value=rows)
    last = {index: row for index, row in zip(indices, rows, strict=True)}
    assert len(ls) == max([2, *(index + 1 for index in indices)])
    expected = [last[index] for index in indices]
    found = run("list_gather", ls=ls, indices=at)
    np.testing.assert_array_equal(found, np.reshape(expected, (-1, 3)))


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_elements_of_any_rank_and_dtype(shape):
    sizes = list(shape)
    ls = run("make_list", elem_shape=sizes, init_length=1, dtype="int32")
    value = np.full(shape, 7, np.int32)
    ls = run("list_write", ls=ls, index=np.int32(0), value=value)
    assert ls.dtype == np.int32 and ls.shape == (1, *shape)
    np.testing.assert_array_equal(run("list_read", ls=ls, index=np.int32(0)), value)


def test_open_sizes_are_those_of_the_first_element():
    ls = run("make_list", elem_shape=["s0", 3], init_length=2)
    ls = run("list_write", ls=ls, index=np.int32(1), value=normal(4, 3))
    np.testing.assert_array_equal(ls, np.stack([np.zeros((4, 3)), normal(4, 3)]))


@pytest.mark.parametrize("name, index", [("list_read", 3), ("list_read", -1), ("list_gather", 3)])
def test_what_was_never_there_is_not_read(name, index):
    key = "index" if name == "list_read" else "indices"
    with pytest.raises(InvalidInput, match=f"{name}: index .* a list of 3 elements"):
        OPS[name].function(ls=torch.zeros(3, 2), **{key: torch.tensor([index])})


def test_a_list_through_both_branches():
    @mb.program(
        input_specs=[mb.TensorSpec((2,)), mb.TensorSpec((1,), dtype=types.int32)],
        opset_version=ct.target.iOS15,
    )
    def program(x, index):
        first = mb.make_list(init_length=3, dynamic_length=False, elem_shape=(2,))
        second = mb.list_write(ls=first, index=0, value=x)
        far = mb.squeeze(x=mb.greater(x=index, y=1))
        ls = mb.cond(
            pred=far,
            _true_fn=lambda: mb.list_write(ls=second, index=2, value=x),
            _false_fn=lambda: mb.list_scatter(
                ls=second, indices=index, value=mb.expand_dims(x=x, axes=[0])
            ),
        )
        return mb.list_gather(ls=ls, indices=np.int32([0, 1, 2]))

    x = normal(2)
    rows = predict(program, x=x, index=np.int32([2]))
    np.testing.assert_array_equal(rows, [x, [0, 0], x])
    rows = predict(program, x=x, index=np.int32([1]))
    np.testing.assert_array_equal(rows, [x, x, [0, 0]])
