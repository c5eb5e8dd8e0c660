"""Control flow and lists as programs from elsewhere have them, against plain Python.

Programs are written with coremltools' builder, as its TensorFlow frontend does, or scripted by
torch, whose `if` and `for` become `cond` and `while_loop`. coremltools 9 does not take `torch.cond`
of torch.export.
"""

from _foreign import IN_SINGLE, agree, build, normal, package
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from mlprogram import MLProgram, arithmetic
import numpy as np
import pytest
import torch


def total(x):
    return mb.reduce_sum(x=x, axes=[0], keep_dims=False)


def operation_types(path) -> list[str]:
    return [operation.type for operation in MLProgram(path).operations]


OPSETS = [ct.target.iOS15, ct.target.iOS16, ct.target.iOS17, ct.target.iOS18]


@pytest.mark.parametrize("opset", OPSETS, ids=lambda target: target.name)
def test_several_loop_variables(opset, tmp_path):
    """Newton's square root and a count: both change, both come out, of every opset."""

    @build(tmp_path / "p.mlpackage", ((3,), types.fp32), opset=opset)
    def path(a):
        def close(x, count):
            rest = mb.reduce_max(x=mb.abs(x=mb.sub(x=mb.mul(x=x, y=x), y=a)), axes=[0])
            far = mb.squeeze(x=mb.greater(x=rest, y=np.float32(0.05)))
            return mb.logical_and(x=far, y=mb.less(x=count, y=np.int32(20)))

        def step(x, count):
            better = mb.mul(x=mb.add(x=x, y=mb.real_div(x=a, y=x)), y=np.float32(0.5))
            return better, mb.add(x=count, y=np.int32(1))

        root, count = mb.while_loop(_cond=close, _body=step, loop_vars=(a, np.int32(0)))
        return mb.identity(x=root, name="root"), mb.identity(x=count, name="count")

    def expected(a):
        x, count = a, 0
        while np.abs(x * x - a).max() > 0.05 and count < 20:
            x, count = (x + a / x) * 0.5, count + 1
        return {"root": x, "count": np.int32(count)}

    numbers = [np.array(v, np.float32) for v in ([1, 1, 1], [2, 3, 4], [1, 50, 9])]
    counts = [expected(a)["count"] for a in numbers]
    assert counts[0] == 0 and counts[1] != counts[2]
    agree(path, [{"a": a} for a in numbers], [expected(a) for a in numbers])


def test_what_a_loop_takes_has_its_type_for_the_table_of_arithmetic(tmp_path):
    """A gather in its body, by the count, of what the loop carries: its sizes are no mystery."""

    @build(tmp_path / "p.mlpackage", ((4, 3), types.fp32), **IN_SINGLE)
    def path(a):
        def step(i, x):
            row = mb.gather(x=x, indices=mb.reshape(x=i, shape=[1]), axis=1, validate_indices=False)
            return mb.add(x=i, y=np.int32(1)), mb.add(x=x, y=row)

        return mb.while_loop(
            _cond=lambda i, x: mb.less(x=i, y=np.int32(2)), _body=step, loop_vars=(np.int32(0), a)
        )

    assert "gather-beyond" in arithmetic.depends(MLProgram(path))


def test_nested_loops_use_what_stands_outside(tmp_path):
    """A loop in a loop in a branch; constants and values of every enclosing block."""
    weight = normal(4, 4)

    @build(tmp_path / "p.mlpackage", ((2, 4), types.fp32), ((1,), types.int32))
    def path(x, rounds):
        shifted = mb.add(x=x, y=np.float32(1))  # used two blocks further in
        rounds = mb.squeeze(x=rounds)

        def inner(outer):
            def body(i, y):
                product = mb.matmul(x=y, y=weight * 0.3)
                return mb.add(x=i, y=np.int32(1)), mb.tanh(x=mb.add(x=product, y=shifted))

            return mb.while_loop(
                _cond=lambda i, y: mb.less(x=i, y=outer), _body=body, loop_vars=(np.int32(0), x)
            )[1]

        def body(i, y):
            return mb.add(x=i, y=np.int32(1)), mb.add(x=y, y=inner(i))

        def loops():
            return mb.while_loop(
                _cond=lambda i, y: mb.less(x=i, y=rounds),
                _body=body,
                loop_vars=(np.int32(0), shifted),
            )[1]

        many = mb.greater(x=rounds, y=np.int32(1))
        y = mb.cond(pred=many, _true_fn=loops, _false_fn=lambda: mb.mul(x=shifted, y=x))
        return mb.add(x=y, y=shifted, name="y")

    assert operation_types(path).count("while_loop") == 2

    def expected(x, rounds):
        shifted = x + 1
        y = shifted * x if rounds <= 1 else shifted
        for i in range(rounds if rounds > 1 else 0):
            inner = x
            for _ in range(i):
                inner = np.tanh(inner @ (weight * 0.3) + shifted)
            y = y + inner
        return {"y": y + shifted}

    calls = [{"x": normal(2, 4), "rounds": np.array([n], np.int32)} for n in (0, 1, 2, 5)]
    want = [expected(call["x"], int(call["rounds"][0])) for call in calls]
    agree(path, calls, want, single=1e-3)  # 0.3 * weight is rounded to half


def test_a_branch_may_give_an_input_a_constant_and_two_results(tmp_path):
    @build(tmp_path / "p.mlpackage", ((3,), types.fp32), **IN_SINGLE)
    def path(x):
        fixed = np.array([1, 2, 3], np.float32)
        positive = mb.greater(x=total(x), y=np.float32(0))
        first, second = mb.cond(
            pred=positive,
            _true_fn=lambda: (mb.identity(x=x), mb.mul(x=x, y=fixed)),
            _false_fn=lambda: (mb.const(val=fixed), mb.identity(x=x)),
        )
        return mb.identity(x=first, name="first"), mb.identity(x=second, name="second")

    fixed, x = np.array([1, 2, 3], np.float32), np.array([4, -1, 2], np.float32)
    want = [{"first": x, "second": x * fixed}, {"first": fixed, "second": -x}]
    found = agree(path, [{"x": x}, {"x": -x}], want)
    for positive, negative in found:  # no result is the caller's array or the weights themselves
        positive["first"][:] = negative["first"][:] = 7
    np.testing.assert_array_equal(x, [4, -1, 2])
    agree(path, [{"x": x}, {"x": -x}], want)


class Early(torch.nn.Module):
    """A scripted loop that leaves early, with a branch and a size taken at run time inside."""

    def forward(self, x):
        y = x
        for i in range(10):
            if y.sum() > 20.0:
                break
            y = y * 1.5 + x if i % 2 == 0 else y + x.shape[0]
        return y


def test_a_scripted_loop_that_leaves_early(tmp_path):
    path = package(
        torch.jit.script(Early()),
        tmp_path / "p.mlpackage",
        inputs=[ct.TensorType("x", (ct.RangeDim(1, 8, default=3),))],
        outputs=[ct.TensorType("y")],
        **IN_SINGLE,
    )
    assert {"cond", "while_loop", "shape"} <= set(operation_types(path))
    numbers = [np.array(v, np.float32) for v in ([1, 2, 0.5], [0.25], [30, 1], [-1, 0, 0, 0, 1])]
    want = [{"y": Early()(torch.from_numpy(x)).numpy()} for x in numbers]
    agree(path, [{"x": x} for x in numbers], want)


def test_lists(tmp_path):
    """Fibonacci rows collected in a list by a loop: write, read, length, gather, scatter."""

    @build(tmp_path / "p.mlpackage", ((2,), types.fp32), ((1,), types.int32))
    def path(x, length):
        rows = mb.make_list(init_length=2, elem_shape=(2,), dtype="fp32", dynamic_length=True)
        rows = mb.list_write(ls=rows, index=0, value=x)
        rows = mb.list_write(ls=rows, index=1, value=mb.mul(x=x, y=np.float32(2)))

        def body(i, rows):
            one = mb.list_read(ls=rows, index=mb.sub(x=i, y=np.int32(1)))
            two = mb.list_read(ls=rows, index=mb.sub(x=i, y=np.int32(2)))
            rows = mb.list_write(ls=rows, index=i, value=mb.add(x=one, y=two))
            return mb.add(x=i, y=np.int32(1)), rows

        end = mb.squeeze(x=length)
        _, rows = mb.while_loop(
            _cond=lambda i, rows: mb.less(x=i, y=end), _body=body, loop_vars=(np.int32(2), rows)
        )
        every = mb.list_gather(ls=rows, indices=mb.range_1d(start=0, end=end, step=1), name="every")
        count = mb.list_length(ls=rows, name="count")
        swapped = mb.list_scatter(
            ls=rows, indices=[1, 0], value=mb.list_gather(ls=rows, indices=[0, 1])
        )
        return every, count, mb.list_read(ls=swapped, index=0, name="second")

    x = np.array([1, -0.5], np.float32)
    rows = [x, 2 * x]
    for _ in range(6):
        rows.append(rows[-1] + rows[-2])
    calls = [{"x": x, "length": np.array([n], np.int32)} for n in (2, 3, 8)]
    want = [
        {"every": np.stack(rows[:n]), "count": np.int32(n), "second": rows[1]} for n in (2, 3, 8)
    ]
    agree(path, calls, want)
