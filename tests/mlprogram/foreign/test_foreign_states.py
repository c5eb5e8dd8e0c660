"""States as programs from elsewhere use them: read late, read twice, written in loops and branches.

What is at stake is sharing of memory. The executor writes a state in place where it can, so a value
that was read before must not change with it, and what goes out must not be the state itself.
"""

from _foreign import AS_IT_STANDS, WAYS, agree, build, normal
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from mlprogram import MLProgram, State
from mlprogram.errors import InvalidInput
import numpy as np
import pytest


def test_a_loop_reads_a_state_that_is_written_after_it(tmp_path):
    """The write may not overtake the loop, nor change what the loop has given."""

    @build(tmp_path / "p.mlpackage", ((1, 4), types.fp16), states=[(3, 4)])
    def path(row, memory):
        before = mb.read_state(input=memory)

        def body(i, y):
            return mb.add(x=i, y=np.int32(1)), mb.add(x=y, y=before)

        _, seen = mb.while_loop(
            _cond=lambda i, y: mb.less(x=i, y=np.int32(3)),
            _body=body,
            loop_vars=(np.int32(0), mb.mul(x=before, y=np.float16(1))),
        )
        after = mb.slice_update(x=before, update=row, begin=[1, 0], end=[2, 4])
        mb.coreml_update_state(state=memory, value=after)
        return mb.identity(x=seen, name="seen"), mb.identity(x=after, name="after")

    rows = [normal(1, 4, seed=i) for i in range(3)]
    memory, want = np.zeros((3, 4), np.float32), []
    for row in rows:
        seen, memory = 4 * memory, memory.copy()
        memory[1] = row
        want.append({"seen": seen, "after": memory})
    agree(path, [{"row": row} for row in rows], want)


def test_states_written_in_a_loop_and_in_a_branch(tmp_path):
    """Row after row from inside a loop, then a branch that writes or leaves it."""

    @build(tmp_path / "p.mlpackage", ((1, 4), types.fp16), ((1,), types.int32), states=[(4, 4)])
    def path(row, rounds, memory):
        rounds = mb.squeeze(x=rounds)

        def body(i, y):
            now = mb.read_state(input=memory)
            column = mb.mul(x=row, y=mb.cast(x=i, dtype="fp16"))
            begin = mb.concat(values=[i, np.int32(0)], axis=0)
            end = mb.concat(values=[mb.add(x=i, y=np.int32(1)), np.int32(4)], axis=0)
            after = mb.slice_update(x=now, update=column, begin=begin, end=end)
            mb.coreml_update_state(state=memory, value=after)
            return mb.add(x=i, y=np.int32(1)), mb.add(x=y, y=now)

        _, seen = mb.while_loop(
            _cond=lambda i, y: mb.less(x=i, y=rounds),
            _body=body,
            loop_vars=(np.int32(0), mb.mul(x=row, y=np.zeros((4, 1), np.float16))),
        )

        def clear():
            zero = mb.mul(x=mb.read_state(input=memory), y=np.float16(0))
            return mb.coreml_update_state(state=memory, value=zero)

        full = mb.greater_equal(x=rounds, y=np.int32(4))
        left = mb.cond(pred=full, _true_fn=clear, _false_fn=lambda: mb.read_state(input=memory))
        return mb.identity(x=seen, name="seen"), mb.identity(x=left, name="left")

    def expected(calls):
        memory = np.zeros((4, 4), np.float32)
        for call in calls:
            seen = np.zeros_like(memory)
            for i in range(int(call["rounds"][0])):
                seen = seen + memory
                memory[i] = i * call["row"]
            memory = memory * (call["rounds"] < 4)
            yield {"seen": seen, "left": memory.copy()}

    rounds = (3, 2, 0, 4, 1)
    calls = [{"row": normal(1, 4, seed=n), "rounds": np.array([n], np.int32)} for n in rounds]
    agree(path, calls, list(expected(calls)))


def test_two_outputs_of_one_state_are_apart(tmp_path):
    """The same state goes out twice and is written again: neither result moves with it.

    Written with what `coreml_update_state` gives, as torch's frontend does: coremltools 9 takes two
    `read_state` of one state for the same value, even with a write between them.
    """

    @build(tmp_path / "p.mlpackage", ((1, 4), types.fp16), states=[(2, 4), (2, 4)])
    def path(row, one, two):
        before = mb.read_state(input=one)
        whole = mb.slice_update(x=before, update=row, begin=[0, 0], end=[1, 4])
        now = mb.coreml_update_state(state=one, value=whole)
        flat = mb.reshape(x=now, shape=[8], name="flat")
        copy = mb.coreml_update_state(state=two, value=now)
        double = mb.mul(x=row, y=np.float16(2))
        other = mb.slice_update(x=copy, update=double, begin=[1, 0], end=[2, 4])
        other = mb.coreml_update_state(state=two, value=other)
        return flat, mb.identity(x=now, name="now"), mb.identity(x=other, name="other")

    for precision, optimize in WAYS:
        program = MLProgram(path, None, precision, optimize=optimize)
        state, row = program.make_state(), normal(1, 4)
        first = program.predict({"row": row}, state)
        kept = {name: value.copy() for name, value in first.items()}
        second = program.predict({"row": 4 * row}, state)
        for name in kept:
            np.testing.assert_array_equal(first[name], kept[name])
        zero = np.zeros_like(row)
        np.testing.assert_array_equal(first["flat"], np.concatenate([row, zero]).reshape(-1))
        np.testing.assert_array_equal(first["now"], np.concatenate([row, zero]))
        np.testing.assert_array_equal(first["other"], np.concatenate([row, 2 * row]))
        np.testing.assert_array_equal(second["other"], np.concatenate([4 * row, 8 * row]))
        np.testing.assert_array_equal(state.read_state("one"), second["now"])
        np.testing.assert_array_equal(state.read_state("two"), second["other"])


def test_a_value_outlives_the_states_that_it_was_written_to(tmp_path):
    """One value goes into two states and out; a row of one state is written over afterwards.

    As it stands: a pass of coremltools 9 fails on a value that two states take.
    """

    @build(tmp_path / "p.mlpackage", ((2, 4), types.fp16), states=[(2, 4), (2, 4)], **AS_IT_STANDS)
    def path(x, one, two):
        before = mb.mul(x=mb.read_state(input=one), y=np.float16(1), name="before")
        double = mb.mul(x=x, y=np.float16(2))
        kept = mb.coreml_update_state(state=one, value=double)
        mb.coreml_update_state(state=two, value=double)
        row = mb.slice_by_index(x=x, begin=[0, 0], end=[1, 4])
        after = mb.slice_update(x=kept, update=row, begin=[0, 0], end=[1, 4])
        mb.coreml_update_state(state=one, value=after)
        both = mb.identity(x=double, name="double"), mb.identity(x=double, name="again")
        return before, *both

    for precision, optimize in WAYS:
        program = MLProgram(path, None, precision, optimize=optimize)
        state, x = program.make_state(), normal(2, 4)
        for turn in range(2):
            found = program.predict({"x": x}, state)
            half = np.concatenate([x[:1], 2 * x[1:]])
            np.testing.assert_array_equal(found["before"], turn * half)
            np.testing.assert_array_equal(found["double"], 2 * x)
            np.testing.assert_array_equal(found["again"], 2 * x)
            found["double"] += 1  # an output is the caller's own: neither state nor output follows
            np.testing.assert_array_equal(found["again"], 2 * x)
            np.testing.assert_array_equal(state.read_state("one"), half)
            np.testing.assert_array_equal(state.read_state("two"), 2 * x)


def test_an_update_of_what_the_state_no_longer_holds(tmp_path):
    """Two updates start from one reading; the second one's write has the last word, not both."""

    @build(tmp_path / "p.mlpackage", ((1, 4), types.fp16), states=[(3, 4)], **AS_IT_STANDS)
    def path(row, memory):
        before = mb.read_state(input=memory)
        first = mb.slice_update(x=before, update=row, begin=[0, 0], end=[1, 4])
        mb.coreml_update_state(state=memory, value=first)
        between = mb.mul(x=mb.read_state(input=memory), y=np.float16(1), name="between")
        second = mb.slice_update(x=before, update=row, begin=[1, 0], end=[2, 4])
        third = mb.slice_update(x=second, update=row, begin=[2, 0], end=[3, 4])
        seen = mb.mul(x=mb.read_state(input=memory), y=np.float16(1), name="seen")
        mb.coreml_update_state(state=memory, value=third)
        return between, seen

    for precision, optimize in WAYS:
        program = MLProgram(path, None, precision, optimize=optimize)
        state, row = program.make_state(), normal(1, 4)
        found = program.predict({"row": row}, state)
        np.testing.assert_array_equal(found["between"], np.concatenate([row, 0 * row, 0 * row]))
        np.testing.assert_array_equal(found["seen"], found["between"])
        np.testing.assert_array_equal(
            state.read_state("memory"), np.concatenate([0 * row, row, row])
        )


def test_an_output_and_a_state_of_one_op_are_apart(tmp_path):
    """The last hidden vector goes out and is kept: a caller who changes one leaves the other."""
    inward, inner = normal(4, 3) / 2, normal(4, 4) / 2

    @build(tmp_path / "p.mlpackage", ((2, 1, 3), types.fp16), states=[(1, 4)])
    def path(x, hidden):
        weights = {"weight_ih": inward.astype(np.float16), "weight_hh": inner.astype(np.float16)}
        last = mb.read_state(input=hidden)
        y, last = mb.rnn(x=x, initial_h=last, output_sequence=False, name="y", **weights)
        mb.coreml_update_state(state=hidden, value=last)
        return y

    for precision, optimize in WAYS:
        program = MLProgram(path, None, precision, optimize=optimize)
        state, hidden = program.make_state(), np.zeros((1, 4), np.float32)
        (name,) = program.outputs
        for turn in range(3):
            x = normal(2, 1, 3, seed=turn)
            found = program.predict({"x": x}, state)[name]
            for row in x:
                hidden = np.tanh(row @ inward.T + hidden @ inner.T)
            np.testing.assert_allclose(found[0], hidden, atol=2e-3)
            found[:] = 7


def keeping(path, rows: int):
    """Rows that count up by x."""

    @build(path, ((1, 4), types.fp16), states=[(rows, 4)])
    def counter(x, memory):
        total = mb.add(x=mb.read_state(input=memory), y=x)
        return mb.identity(x=mb.coreml_update_state(state=memory, value=total), name="y")

    return counter


def test_a_state_of_another_program_is_refused(tmp_path):
    path = keeping(tmp_path / "p.mlpackage", 2)
    program, x = MLProgram(path), {"x": normal(1, 4)}
    wider = MLProgram(keeping(tmp_path / "other.mlpackage", 3)).make_state()
    single = MLProgram(path, precision="fp32").make_state()
    for state, message in (
        (wider, r"has float16 \(3, 4\)"),
        (single, r"has float32 \(2, 4\)"),
        (State({}), "lacks it"),
    ):
        with pytest.raises(InvalidInput, match=rf"'memory' as float16 \(2, 4\).* {message}"):
            program.predict(x, state)
        assert not any(tensor.any() for tensor in state.tensors.values())


def test_a_view_of_a_constant_is_not_the_weights(tmp_path):
    weight = normal(2, 3)

    @build(tmp_path / "p.mlpackage", ((3,), types.fp16), **AS_IT_STANDS)
    def path(x):
        return mb.mul(x=x, y=x, name="y"), mb.transpose(x=weight, perm=[1, 0], name="turned")

    program = MLProgram(path, precision="fp32")
    for _ in range(2):
        found = program.predict({"x": normal(3)})["turned"]
        np.testing.assert_array_equal(found, weight.T)
        found += 1
