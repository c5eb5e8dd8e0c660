"""`depends`: each row met by an op that comes to it, and not by a near miss."""

from _both import like, one
from _package import const, op, typed
from mlprogram import MLProgram, arithmetic
from mlprogram.errors import InvalidPackage
from mlprogram.package.reader import Package
import numpy as np
import pytest

F, H = np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float16)
INT, SHORT = np.zeros((2, 3), np.int32), np.zeros((2, 3), np.int16)
F4, ROW = np.zeros((1, 1, 5, 5), np.float32), np.zeros(3, np.float32)
W = np.float32
Q = np.zeros((1, 1, 2, 4), np.float32)
QKV = {"query": Q, "key": Q, "value": Q}
OPEN, SHUT = np.array([[True, False], [True, True]]), np.array([[True, False], [False, False]])
POOL = {"kernel_sizes": const([3, 3]), "strides": const([3, 3]), "pad": const([1] * 4),
        "pad_type": const("custom"), "ceil_mode": const(True)}  # fmt: skip
FALSE, ONE = const(False), const(1)


def ceil(made, **more):
    return typed("fp32", 1, 1, made, made), {"x": F4}, POOL | more


def gather(made=(2, 3), x=F, **more):
    return typed("fp32", *made), {"x": x}, {"axis": const(0), "validate_indices": FALSE} | more


def conv(kernel, step=2):
    weight = const(np.ones((1, 1, *kernel), np.float32))
    return typed("fp32", 1, 1, 3, 3), {"x": F4}, {
        "weight": weight, "strides": const([step] * 2), "pad": const([1] * 4),
        "pad_type": const("custom"), "dilations": const([1, 1]), "groups": ONE}  # fmt: skip


def transposed(size):
    given = {"weight": const(np.ones((1, 1, 3, 3), np.float32)), "strides": const([1, 1]),
             "pad_type": const("valid"), "output_shape": const([1, 1, size, size])}  # fmt: skip
    return typed("fp32", 1, 1, size, size), {"x": F4}, given


def average(kernel):
    given = {"kernel_sizes": const([kernel] * 2), "strides": const([4, 4]),
             "pad": const([3] * 4), "pad_type": const("custom")}  # fmt: skip
    return typed("fp32", 1, 1, 2, 2), {"x": F4}, given


SAME, WHOLE = typed("fp32", 2, 3), typed("int32", 2, 3)
GRU = {"weight_ih": const(np.ones((3, 1), W)), "weight_hh": const(np.ones((3, 1), W))}

#: (row, op, what makes it: its type, inputs and constants, and what does not).
CASES = [
    ("mod-sign", "mod", (SAME, {"x": F}, {"y": const(2.0)}),
     (WHOLE, {}, {"x": "places", "y": "places"})),
    ("pow-base-two", "pow", (SAME, {"y": F}, {"x": const(2.0)}),
     (SAME, {"x": F}, {"y": const(2.0)})),
    ("int32-single", "add", (WHOLE, {"x": INT}, {"y": ONE}),
     (WHOLE, {}, {"x": "places", "y": ONE})),
    ("cast-outside", "cast", (WHOLE, {"x": F}, {"dtype": const("int32")}),
     (WHOLE, {}, {"x": "share", "dtype": const("int32")})),
    ("cast-int16", "cast", (typed("int16", 2, 3), {"x": INT}, {"dtype": const("int16")}),
     (typed("int16", 2, 3), {}, {"x": "places", "dtype": const("int16")})),
    ("log-epsilon", "log", (SAME, {"x": F}, {}), (SAME, {"x": F}, {"epsilon": const(1e-3)})),
    ("inverse-epsilon", "inverse", (SAME, {"x": F}, {}), (SAME, {"x": F}, {"epsilon": const(0.0)})),
    ("round-halves", "round", (SAME, {"x": F}, {}), None),
    ("clip-order", "clip", (SAME, {"x": F}, {"alpha": const(2.0), "beta": const(1.0)}),
     (SAME, {"x": F}, {"alpha": const(1.0), "beta": const(2.0)})),
    ("softplus-engine", "softplus", (SAME, {"x": F}, {}), (SAME, {}, {"x": "share"})),
    ("avg-pool-overhang", "avg_pool", ceil(2, pad=const([0] * 4)), ceil(2, ceil_mode=FALSE)),
    ("max-pool-padding", "max_pool", ceil(3), ceil(2)),
    ("avg-pool-seven", "avg_pool", average(7), average(6)),
    ("conv-three-by-two", "conv", conv((3, 2)), conv((3, 3))),
    ("conv-transpose-shape", "conv_transpose", transposed(5), transposed(7)),
    ("sort-nan", "argsort", (WHOLE, {"x": F}, {}), (WHOLE, {"x": INT}, {})),
    ("sort-equals", "argsort", (WHOLE, {"x": INT}, {}), None),
    ("argmax-equals", "reduce_argmax", (typed("int32", 2), {"x": INT}, {}), None),
    ("argmax-nan", "reduce_argmax", (typed("int32", 2), {"x": F}, {}),
     (typed("int32", 2), {"x": INT}, {})),
    ("gather-negative", "gather",
     (typed("fp32", 2, 3, 3), {"x": F, "indices": INT},
      {"axis": const(0), "validate_indices": FALSE}),
     gather(indices=const([0, 2]))),
    ("gather-nd-negative", "gather_nd", gather((2,), indices=const(np.int32([[-1, 0], [1, 1]]))),
     gather((2,), indices=const(np.int32([[0, 0], [1, 1]])))),
    ("gather-beyond", "gather", gather(indices=const([0, 2])), gather(indices=const([0, 1]))),
    ("gather-nd-first", "gather_nd", gather((2, 2, 3), indices="places"),
     gather((2,), indices=const(np.int32([[0, 0], [1, 1]])))),
    ("gather-validate", "gather", (SAME, {"x": F}, {"indices": const([0, 1])}),
     gather(indices=const([0, 1]))),
    ("gather-bool", "gather", gather(x=F > 0, indices=const([0, 1])),
     gather(indices=const([0, 1]))),
    ("matmul-rank-one", "matmul", (typed("fp32", 2), {"x": F, "y": ROW}, {}),
     (typed("fp32", 2, 2), {"x": F, "y": np.zeros((3, 2), W)}, {})),
    ("product-int32", "linear", (typed("int32", 2, 1), {"x": INT}, {"weight": const(INT[:1])}),
     (typed("fp32", 2, 1), {"x": F}, {"weight": const(F[:1])})),
    ("attention-closed-row", "scaled_dot_product_attention",
     (like(Q), QKV, {"attn_mask": const(SHUT)}), (like(Q), QKV, {"attn_mask": const(OPEN)})),
    ("attention-batch", "scaled_dot_product_attention",
     (typed("fp32", 10, 1, 2, 4), {n: np.zeros((10, 1, 2, 4), W) for n in QKV}, {}),
     (like(Q), QKV, {})),
    ("log-sum-exp", "reduce_log_sum_exp", (typed("fp32", 2), {"x": F}, {"axes": const([1])}),
     (typed("int32", 2), {"x": INT}, {"axes": const([1])})),
    ("band-part-infinity", "band_part", (SAME, {"x": F}, {}), (WHOLE, {"x": INT}, {})),
    ("select-broadcast", "select",
     (SAME, {"a": F}, {"b": const(0.0), "cond": const(F == 0)}),
     (SAME, {"a": F}, {"b": const(F), "cond": const(F == 0)})),
    ("range-empty", "range_1d",
     (typed("fp32", None), {}, {"start": const(2.0), "end": const(2.0), "step": const(1.0)}),
     (typed("fp32", None), {}, {"start": const(0.0), "end": const(2.0), "step": const(1.0)})),
    ("range-fractions", "range_1d",
     (typed("fp32", None), {}, {"start": const(0.0), "end": const(2.0), "step": const(0.1)}),
     (typed("fp32", None), {}, {"start": const(0.0), "end": const(2.0), "step": const(1.0)})),
    ("pad-reflect", "pad", (typed("fp32", 2, 8), {"x": F},
                            {"pad": const([0, 0, 3, 2]), "mode": const("reflect")}),
     (typed("fp32", 2, 7), {"x": F}, {"pad": const([0, 0, 2, 2]), "mode": const("reflect")})),
    ("gru-reset", "gru", (typed("fp32", 1, 1, 1),
                          {"x": np.zeros((1, 1, 1), W), "initial_h": np.zeros((1, 1), W)}, GRU),
     None),
]  # fmt: skip


def touched(make, kind, made, inputs, constants):
    """What an op depends on. "places" are indices of `argsort`, "share" is between 0 and 1."""
    before = [
        op("argsort", {"places": WHOLE}, x=const(F)),
        op("sigmoid", {"share": SAME}, x=const(F)),
    ]
    outputs = {"z": made, "last": typed("fp32", 1, 1)} if kind == "gru" else {"z": made}
    operation = op(kind, outputs, **{name: name for name in inputs}, **constants)
    types = {name: like(array) for name, array in inputs.items()}
    package = Package(make([*before, operation], ("z",), types))
    found = arithmetic.depends(package.functions["main"])
    return {name for name, ops in found.items() if "z" in ops}


@pytest.mark.parametrize("row, kind, hit, miss", CASES, ids=[case[0] for case in CASES])
def test_an_op_that_comes_to_it_and_one_that_does_not(make, row, kind, hit, miss):
    assert row in touched(make, kind, *hit)
    if miss is not None:
        assert row not in touched(make, kind, *miss)


def test_every_row_of_an_op_has_a_case():
    named = {case[0] for case in CASES} | {"topk-near-equal"}
    assert named == {name for name, row in arithmetic.rows().items() if row.ops}


def test_a_program_and_its_function_say_the_same_in_the_order_of_the_table(make):
    x = np.zeros(4, np.float32)
    first = op("topk", {"v": typed("fp32", 2), "k": typed("int32", 2)}, x="x", k=const(2))
    second = op("mod", {"y": typed("fp32", 2)}, x="v", y=const(2.0))
    program = MLProgram(make([first, second], ("y",), {"x": like(x)}))
    found = arithmetic.depends(program)
    assert found == arithmetic.depends(program.package.functions["main"])
    assert list(found.items()) == [
        ("mod-sign", ["y"]), ("sort-equals", ["v"]), ("topk-near-equal", ["v"]),
    ]  # fmt: skip


def test_sizes_are_no_whole_numbers_beyond_single_precision(make):
    """What converters compute of open sizes depends on nothing."""
    ops = [
        op("shape", {"s": typed("int32", 2)}, x="x"),
        op("add", {"more": typed("int32", 2)}, x="s", y=const(7)),
        op("mod", {"rest": typed("int32", 2)}, x="more", y=const(4)),
        op("floor_div", {"y": typed("int32", 2)}, x="rest", y=const(2)),
    ]
    package = Package(make(ops, ("y",), {"x": typed("fp32", None, 8)}))
    assert arithmetic.depends(package.functions["main"]) == {}


def test_what_an_op_cannot_have_is_refused_by_name(make):
    given = {"validate_indices": FALSE, "axis": const(7), "indices": const([9])}
    path = one(make, "gather", typed("fp32", 1, 3), {"x": F}, **given)
    with pytest.raises(InvalidPackage, match="'gather'"):
        arithmetic.depends(Package(path).functions["main"])
