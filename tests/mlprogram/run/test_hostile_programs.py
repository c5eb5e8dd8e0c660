"""Programs that are damaged or hostile: their graph, control flow, states and ops.

Beside `test_hostile.py`, which is about files, the protobuf, types and constants.
"""

import cProfile
import itertools
import os
import pstats
import signal
import threading
from typing import ClassVar

from _package import ADD, X, block, const, edit, op, refused, run, typed
from mlprogram import MLProgram
from mlprogram.errors import InvalidInput, InvalidPackage, MLProgramError, UnsupportedOp
from mlprogram.package.reader import Package
from mlprogram.run import failures
import numpy as np
import pytest


class TestGraph:
    def test_used_before_it_is_made(self, make):
        operations = [op("add", {"y": X}, x="z", y="x"), op("abs", {"z": X}, x="x")]
        refused(make(operations), "'z' is used before any op made it")
        refused(make([op("abs", {"y": X}, x="y")]), "'y' is used before any op made it")

    @pytest.mark.parametrize("name", ["x", "y"])
    def test_made_twice(self, make, name):
        path = make([ADD, op("abs", {name: X}, x="x")])
        refused(path, f"'{name}' is made twice")

    def test_inputs_of_one_name(self, package):
        def change(model):
            inputs = model.mlProgram.functions["main"].inputs
            inputs.add().CopyFrom(inputs[0])

        refused(edit(package, change), "two of its inputs have one name")

    def test_outputs(self, make):
        refused(make([ADD], ["ghost"]), "output 'ghost' is made by no op")
        refused(make([ADD], []), "a block without outputs")
        refused(make([op("abs", {}, x="x"), ADD]), "has no output")

    def test_a_compressed_constant_of_open_size(self, make):
        """Its size was taken for a number, where a norm is as long as its constants."""
        sparse = op(
            "constexpr_lut_to_sparse",
            {"mask": typed("uint8", 3), "gamma": typed("fp32", None)},
            indices_mask=const([1, 1, 1], "uint8"),
            indices_nonzero_data=const([0, 1, 0], "uint8"),
            lut=const(np.ones((1, 2, 1), np.float32)),
        )
        norm = op("layer_norm", {"y": X}, x="x", axes=const([-1]), gamma="gamma")
        refused(make([sparse, norm]), "a constant of flexible size, 'gamma'")

    def test_a_value_of_the_other_branch(self, make):
        """Names are seen inside of the block that makes them, and in those within it."""
        first = block([op("abs", {"a": X}, x="x")], ["a"])
        second = block([op("abs", {"b": X}, x="a")], ["b"])
        path = make([op("cond", {"y": X}, [first, second], pred=const(False))])
        refused(path, "'a' is used before any op made it")

    def test_a_value_of_a_branch_outside_of_it(self, make):
        both = [block([op("abs", {name: X}, x="x")], [name]) for name in "ab"]
        path = make([op("cond", {"c": X}, both, pred=const(True)), op("abs", {"y": X}, x="a")])
        refused(path, "'a' is used before any op made it")

    def test_a_branch_that_makes_what_the_other_makes(self, make):
        both = [block([op("const", {"a": X}, val=const(np.full((2, 3), v, np.float32)))], ["a"])
                for v in (1, 2)]  # fmt: skip
        refused(make([op("cond", {"y": X}, both, pred=const(True))]), "'a' is made twice")


class TestControlFlow:
    def loop(self, condition, body, count=1, **inputs):
        return op("while_loop", {f"y{i}": X for i in range(count)}, [condition, body], **inputs)

    def body(self):
        return block([op("abs", {"n": X}, x="v")], ["n"], {"v": X})

    def true(self, name="t"):
        always = op("const", {name: typed("bool")}, val=const(True))
        return block([always], [name], {"v": X})

    def test_a_loop_that_never_ends(self, make):
        path = make([self.loop(self.true(), self.body(), loop_vars="x")], ["y0"])
        refused(path, r"op 'while_loop' \('y0', .*still runs after 32,768 turns")

    def test_loops_in_loops_draw_from_one_budget(self, make):
        inner = op(
            "while_loop", {"i": X},
            [block([op("const", {"t1": typed("bool")}, val=const(True))], ["t1"], {"w": X}),
             block([op("abs", {"m": X}, x="w")], ["m"], {"w": X})], loop_vars="v",
        )  # fmt: skip
        path = make(
            [self.loop(self.true(), block([inner], ["i"], {"v": X}), loop_vars="x")], ["y0"]
        )
        refused(path, "still runs after")

    def test_a_loop_that_ends_in_time(self, make, monkeypatch):
        total = op("reduce_sum", {"s": typed("fp32")}, x="v", keep_dims=const(False))
        less = op("less", {"t": typed("bool")}, x="s", y=const(np.float32(60)))
        twice = block([op("add", {"n": X}, x="v", y="v")], ["n"], {"v": X})
        loop = self.loop(block([total, less], ["t"], {"v": X}), twice, loop_vars="x")
        path = make([loop], ["y0"])
        assert run(path)["y0"].sum() == 96
        monkeypatch.setattr(failures, "MAX_TURNS", 3)  # it takes 4, and one that says stop
        refused(path, "still runs after 3 turns")

    def heavy(self, make):
        """A loop without an end, whose turns take a while."""
        body = block([op("tile", {"t": typed("fp32", 2000, 3000)}, x="v", reps=const([1000, 1000])),
                      op("reduce_sum", {"s": typed("fp32")}, x="t", keep_dims=const(False)),
                      op("add", {"n": X}, x="v", y="s")], ["n"], {"v": X})  # fmt: skip
        return make([self.loop(self.true("go"), body, loop_vars="x")], ["y0"])

    def test_a_heavy_loop_is_stopped_by_time(self, make, monkeypatch):
        path = self.heavy(make)
        monkeypatch.setenv("MLPROGRAM_LOOP_SECONDS", "0.05")
        refused(path, r"'y0'.*still runs after 0\.05 s; MLPROGRAM_LOOP_SECONDS sets more, or inf")
        monkeypatch.setenv("MLPROGRAM_LOOP_SECONDS", "long")
        refused(path, "must be a number of seconds, or inf; not 'long'", InvalidInput)

    def test_a_limit_of_time_can_be_lifted(self, make, monkeypatch):
        monkeypatch.setenv("MLPROGRAM_LOOP_SECONDS", "inf")
        monkeypatch.setattr(failures, "MAX_TURNS", 5)
        refused(self.heavy(make), "still runs after 5 turns")

    @pytest.mark.skipif(os.name == "nt", reason="signals are POSIX's")
    def test_ctrl_c_stops_a_loop(self, make):
        program = MLProgram(self.heavy(make))
        timer = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
        kept = signal.signal(signal.SIGINT, signal.default_int_handler)
        assert program.compiled  # so that the loop is what it interrupts
        try:
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                program.predict(program.random_inputs())
        finally:
            timer.cancel()
            signal.signal(signal.SIGINT, kept)

    @pytest.mark.parametrize(
        "operation",
        [
            op("cond", {"y0": X}, [], pred=const(True)),
            op("cond", {"y0": X}, [block([], ["x"])], pred=const(True)),
            op("cond", {"y0": X}, [block([], ["x"])] * 3, pred=const(True)),
            op("cond", {"y0": X}, [block([], ["x"]), block([], ["x", "x"])], pred=const(True)),
            op("cond", {"y0": X}, [block([], ["x"]), block([], ["x"], {"p": X})], pred=const(True)),
            op("cond", {"y0": X}, [block([], ["x"])] * 2),
            op("cond", {"y0": X}, [block([], ["x"])] * 2, pred=["x", "x"]),
            op("while_loop", {"y0": X}, [block([], ["x"])] * 2, loop_vars="x"),
            op("while_loop", {"y0": X}, [block([], ["v"], {"v": X})] * 2, loop_vars=["x", "x"]),
            op("while_loop", {"y0": X}, [block([], ["v"], {"v": X})] * 2),
            op("while_loop", {"y0": X}, [block([], ["x"], {"x": X})] * 2, loop_vars="x"),
            op("abs", {"y0": X}, [block([], ["x"])], x="x"),
            op("while_loop", {"y0": X, "y1": X},
               [block([], ["v"], {"v": X, "w": X}), block([], ["v"], {"v": X, "w": X})],
               loop_vars=["x", "x"]),
        ],
    )  # fmt: skip
    def test_parts_that_do_not_fit(self, make, operation):
        match = "(nested blocks|fit together|needs a value|2 values|twice)"
        refused(make([operation], ["y0"]), match)

    def test_a_condition_that_is_no_truth(self, make):
        path = make([op("cond", {"y": X}, [block([], ["x"])] * 2, pred="x")])
        refused(path, r"op 'cond' .*pred='x' float32\(2, 3\): RuntimeError: Boolean value")


class TestStates:
    STATE: ClassVar = {"x": X, "memory": typed("fp32", 2, 3, kind="state")}

    @pytest.mark.parametrize(
        "operation",
        [
            op("read_state", {"r": X}, input="x"),
            op("read_state", {"r": X}, input="ghost"),
            op("read_state", {"r": X}, input=const(1.0)),
            op("read_state", {"r": X}),
            op("write_state", {}, input="memory"),
            op("write_state", {}, input="memory", data="ghost"),
            op("write_state", {}, input=["memory", "memory"], data="x"),
            op("abs", {"r": X}, x="memory"),
        ],
    )
    def test_parts_that_do_not_fit(self, make, operation):
        path = make([operation, ADD], inputs=self.STATE)
        refused(path, "fit together|needs a value|before any op")

    def test_a_state_as_an_output(self, make):
        refused(make([ADD], ["memory"], inputs=self.STATE), "output 'memory' is made by no op")

    def test_a_key_that_would_become_source(self, make):
        """Keys of inputs are keywords in the generated source; only an op's own may be."""
        attack = "begin=__import__('os').abort(), end"
        update = op(
            "slice_update", {"u": X}, x="r", update="x", begin=const(np.zeros(2, np.int32)),
            end=const(np.array([2, 3], np.int32)), **{attack: const(np.array([2, 3], np.int32))},
        )  # fmt: skip
        operations = [
            op("read_state", {"r": X}, input="memory"), update,
            op("write_state", {}, input="memory", data="u"), ADD,
        ]  # fmt: skip
        refused(make(operations, inputs=self.STATE), "has no input", UnsupportedOp)


class TestOps:
    def test_the_error_names_the_op_and_what_it_was_given(self, make):
        bad = op("reshape", {"z": typed("fp32", 7)}, x="x", shape=const(np.array([7], np.int32)))
        path = make([op("abs", {"a": X}, x="x"), bad, ADD])
        with pytest.raises(InvalidPackage) as caught:
            run(path)
        assert str(caught.value) == (
            "function 'main', op 'reshape' ('z', operation 1 of 3) cannot run on shape=int32(1), "
            "x='x' float32(2, 3): RuntimeError: shape '[7]' is invalid for input of size 6; the "
            "program is damaged, or not made for such inputs"
        )
        assert isinstance(caught.value.__cause__, RuntimeError)
        with pytest.raises(InvalidPackage, match=r"op 'reshape' \('z'"):
            list(MLProgram(path).trace({"x": np.ones((2, 3))}))

    def test_one_that_the_executor_lacks(self, make):
        lacking = [op("silo", {"b": X}, x="a"), op("abs", {"y": X}, x="b")]
        path = make([op("relu", {"a": X}, x="x"), *lacking])
        refused(path, r"op 'silo'.*around it: relu silo abs.*silu", UnsupportedOp)

    @pytest.mark.parametrize(
        ("operation", "reason"),
        [(op("split", {"a": X, "y": X}, x="x", axis=const(0)), "neither num_splits nor"),
         (op("crop_resize", {"y": X}, x="x"), "neither boxes nor roi says what to crop")],
    )  # fmt: skip
    def test_one_of_two_optional_inputs_is_needed(self, make, operation, reason):
        refused(make([operation]), reason)

    def test_an_op_within_a_branch_is_named(self, make):
        bad = op("reshape", {"z": X}, x="x", shape=const(np.array([7], np.int32)))
        both = [block([bad], ["z"]), block([], ["x"])]
        path = make([op("cond", {"y": X}, both, pred=const(True))])
        refused(path, r"op 'reshape' \('z', operation 0 of 1 in a block of 'y'\) cannot run on sh")

    def test_a_mistake_of_ours_is_not_blamed_on_the_package(self, package, monkeypatch):
        def mistaken(*args):
            return nobody_defined_this  # noqa: F821

        monkeypatch.setattr("mlprogram.run.plan.select", mistaken)
        with pytest.raises(NameError):
            run(package)

    @pytest.mark.parametrize(
        "operation",
        [
            op("add", {"y": X}, x="x"),
            op("add", {"y": X}),
            op("add", {"y": X}, x=["x", "x"], y="x"),
            op("add", {"y": X, "z": X, "w": X}, x="x", y="x"),
            op("add", {"y": X}, x="x", y=const("text")),
            op("concat", {"y": X}, values=["x", "x"], axis=const(9)),
            op("concat", {"y": X}, values=["x", "x"], axis="x"),
            op("transpose", {"y": X}, x="x", perm=const(np.array([0, 0], np.int32))),
            op("split", {"y": X, "z": X}, x="x", axis=const(0), num_splits=const(0)),
            op("reduce_sum", {"y": X}, x="x", axes=const(np.array([2**31 - 1], np.int32))),
            op("cast", {"y": X}, x="x", dtype=const("fp17")),
            op("gather", {"y": X}, x="x", indices=const(np.array([9], np.int32)), axis=const(0)),
            op("softmax", {"y": X}, x="x", axis=const(1e30)),
            op("depth_to_space", {"y": X}, x="x", block_size=const(0)),
            op("sliding_windows", {"y": X}, x="x", axis=const(0), size=const(1), stride=const(0)),
            op("topk", {"y": X, "z": X}, x="x", k=const(-7)),
            op("range_1d", {"y": X}, start=const(0), end=const(1), step=const(0)),
            op("max_pool", {"y": X}, x="x", kernel_sizes=const([0]), strides=const([0]),
               pad_type=const("valid")),
            op("matmul", {"y": X}, x="x", y="x"),
            op("linear", {"y": X}, x="x", weight=const(np.ones((4, 9), np.float32))),
            op("linear", {"y": X}, x="x", weight=const(np.ones((3, 3), np.int32), "int8")),
            op("linear", {"y": X}, x="x", weight=const(np.ones((3, 3), np.float32)),
               bias=const(np.ones(1 << 12, np.float32))),
        ],
    )  # fmt: skip
    def test_inputs_that_an_op_does_not_take(self, make, operation):
        match = r"op '\w+' \('y'|output 'y' is declared|gather: indices"
        refused(make([operation]), match, MLProgramError)

    @pytest.mark.parametrize("key", ["_out", "self", "x y", "x=1, y", "import", "", "é"])
    def test_inputs_that_an_op_does_not_have(self, make, key):
        path = make([op("fill_like", {"y": X}, ref_tensor="x", **{key: const(1.0)})])
        refused(path, "has no input", UnsupportedOp)

    @pytest.mark.parametrize("size", [2**31 - 1, 2**20])
    def test_results_by_the_terabyte(self, make, size):
        sizes = const(np.array([size, size], np.int32))
        for operation in (
            op("fill", {"y": X}, shape=sizes, value=const(0.0)),
            op("tile", {"y": X}, x="x", reps=sizes),
            op("pad", {"y": X}, x="x", pad=const(np.array([0, size, 0, size], np.int32))),
        ):  # fmt: skip
            path = make([operation])
            refused(path, r"op '\w+' .*cannot run on|output 'y' is declared")

    @pytest.mark.parametrize("name", ["a'b", 'a"b', "a\nb", "a\\", "'); import os; ('", "\x1b[2J"])
    def test_names_are_no_source(self, make, name):
        operations = [op("abs", {name: X}, x="x"), op("add", {"y": X}, x=name, y="x")]
        path = make(operations)
        assert run(path)["y"].sum() == 12
        assert (
            sum(values.sum() for _, values in MLProgram(path).trace({"x": np.ones((2, 3))})) == 18
        )


class TestProducts:
    """Compiled products read memory by addresses: what they are given has to be checked."""

    @pytest.mark.parametrize("dtype", ["fp32", "fp16"])
    @pytest.mark.parametrize(
        "shape", [(1, 6, 1, 1), (1, 3, 1, 4), (2, 3, 1, 1), (1, 48, 1, 9), (3,)]
    )
    def test_a_convolution_of_other_channels(self, make, dtype, shape):
        weight = const(np.ones((64, 5, 1, 1)).astype(np.float32), dtype)
        out = typed(dtype, 1, 64, 1, 1)
        path = make(
            [op("conv", {"y": out}, x="x", weight=weight)], inputs={"x": typed(dtype, *shape)}
        )
        refused(path, "op 'conv'", inputs={"x": np.ones(shape, np.float16)})

    def test_a_product_declared_in_another_dtype(self, make):
        weight = const(np.ones((64, 3), np.float32), "fp16")
        path = make([op("linear", {"y": typed("fp16", 2, 64)}, x="x", weight=weight)])
        refused(path, "op 'linear'|output 'y' is declared")


def test_validation_takes_time_that_grows_with_the_program(make):
    """Calls are counted, not seconds: twice the ops, twice the calls."""

    def calls(count: int) -> int:
        names = ["x", *(f"v{i}" for i in range(count))]
        operations = [op("abs", {b: X}, x=a) for a, b in itertools.pairwise(names)]
        profile = cProfile.Profile()
        profile.runcall(Package, make(operations, [names[-1]]))
        return pstats.Stats(profile).total_calls

    assert calls(2000) < 2.2 * calls(1000)
