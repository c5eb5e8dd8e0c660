"""What a failure says: which op, where, and which one before it went astray."""

from typing import ClassVar

from _package import X, const, op, refused, run, typed
import numpy as np
import pytest


class TestTheFirstThatStrays:
    """A result of another shape than declared is told where it is made, not where it fails."""

    INPUTS: ClassVar = {"x": X, "reps": typed("int32", 2), "s": typed("fp32", 2, 3, kind="state")}

    @pytest.mark.parametrize("last", [op("reshape", {"y": X}, x="b", shape=const([2, 3])),
                                      op("abs", {"y": X}, x="b")])  # fmt: skip
    def test_is_named(self, make, last):
        operations = [
            op("abs", {"a": X}, x="x"),
            op("read_state", {"r": X}, input="s"),
            op("tile", {"t": X}, x="r", reps="reps"),
            op("abs", {"b": X}, x="t"),
            last,
            op("write_state", {}, input="s", data="a"),
        ]
        path = make(operations, inputs=self.INPUTS)
        given = {"x": np.ones((2, 3)), "reps": np.int32([0, 1])}
        says = (
            r"^function 'main', op 'tile' \('t', operation 2 of 6\) makes a float32\(0, 3\) for "
            r"'t', declared as .*; from that: function 'main'.*'y'"
        )
        refused(path, says, inputs=given)
        assert run(path, given | {"reps": np.int32([1, 1])})["y"].shape == (2, 3)

    def test_but_none_where_all_are_as_declared(self, make):
        path = make([op("log", {"y": X}, x="x"), op("reshape", {"z": X}, x="y", shape="n")],
                    inputs=self.INPUTS | {"n": typed("int32", 2)}, outputs=["z"])  # fmt: skip
        given = {"x": np.ones((2, 3)), "reps": np.int32([1, 1]), "n": np.int32([9, 9])}
        refused(path, "^function 'main', op 'reshape' ", inputs=given)


class TestWords:
    """An input that is a word says one that its op knows, with shortcuts and without."""

    @pytest.mark.parametrize(
        "operation",
        [
            op("pad", {"y": X}, x="x", pad=const([0, 0]), mode=const("edge")),
            op("gelu", {"y": X}, x="x", mode=const("exact")),
            op("conv", {"y": X}, x="x", weight=const(np.ones((3, 3, 1), np.float32)),
               pad_type=const("none")),
            op("scatter", {"y": X}, data="x", indices=const([0]), updates="x", mode=const("put")),
        ],
        ids=lambda operation: operation.type,
    )  # fmt: skip
    def test_of_another_is_refused(self, make, operation):
        says = r"op '\w+' \('y', operation 0 of 1\).*='\w+' is not one of \w+, "
        refused(make([operation]), says)

    def test_axes_of_a_layer_norm_are_some(self, make):
        axes = const(np.zeros(0, np.int32))
        refused(make([op("layer_norm", {"y": X}, x="x", axes=axes)]), r"op 'layer_norm'.*axes=\[\]")
