"""Whether the ANE takes an op: what was published, the limits, and what nobody said."""

from collections.abc import Iterator
from pathlib import Path
import re

from mlprogram.ane import claims
from mlprogram.ane.placement import support as placement_support
from mlprogram.ane.placement.graph import GraphOp
from mlprogram.ane.placement.support import Support, support, table, whole_program
from mlprogram.package.validation.signatures import NEEDED
from mlprogram.package.values import TensorType
import pytest

X = TensorType("fp16", (1, 64, 32, 32))


def op(type_: str, *inputs: TensorType, out: TensorType | None = None, **more) -> GraphOp:
    names = dict(zip("xyz", [(t,) for t in inputs], strict=False))
    return GraphOp(type_, type_, names, (out or inputs[0],), **more)


def conv(height: int, width: int) -> GraphOp:
    kernel = {"weight": (TensorType("fp16", (64, 64, height, width)),)}
    return op("conv", X, constants=kernel)


@pytest.mark.parametrize(
    "found, taken",
    [
        (conv(1, 15), True),
        (conv(1, 16), False),
        (conv(16, 16), True),
        (conv(17, 17), False),
        (conv(31, 1), True),
        (conv(32, 1), False),
        (conv(31, 15), None),
        (op("conv", X, out=TensorType("fp16", (1, 66688, 32, 32))), None),
        (op("conv", TensorType("fp16", (1, 66688, 1, 1)), out=X), False),
        (op("relu", TensorType("fp16", (1, 65536, 1, 1))), True),
        (op("relu", TensorType("fp16", (1, 65537, 1, 1))), False),
        (op("relu", TensorType("fp16", (1, 1, 1, 1, 1, 2))), False),
        (op("relu", TensorType("fp16", (1, None, 1, 1))), None),
        (op("relu", TensorType("fp32", (1, 64))), False),
        (op("cast", TensorType("fp32", (1, 64)), out=TensorType("fp16", (1, 64))), True),
        (op("add", TensorType("int32", (1, 64)), TensorType("int32", (1, 64))), False),
        (op("matmul", TensorType("fp16", (1, 32768)), TensorType("fp16", (32768, 1))), True),
        (op("matmul", TensorType("fp16", (1, 40000)), TensorType("fp16", (40000, 1))), False),
        (op("read_state", X), None),
        (op("an_op_of_next_year", X), None),
    ],
)
def test_limits(found, taken):
    answer = support(found)
    assert answer.ane is taken, answer
    assert taken or answer.reason


def test_the_m2_has_no_topk():
    assert support(op("topk", X), "m4").ane is True
    assert support(op("topk", X), "m2").ane is False


def edges() -> Iterator[tuple[str, GraphOp, GraphOp]]:
    """Each tried range of the table: an op at its end, and one a step beyond."""
    for type_, ranges in table()["tried"].items():
        for name, most in ranges.items():
            if name != "kernel":
                both = (op(type_, X, attributes={name: [n, 1]}) for n in (most, most + 1))
                yield f"{type_} {name}", *both
                continue
            for axes, longest in most.items():
                shapes = [(64, 64) + (1,) * (int(axes) - 3) + (n,) for n in (longest, longest + 1)]
                weights = [{"weight": (TensorType("fp16", shape),)} for shape in shapes]
                both = (op(type_, X, constants=weight) for weight in weights)
                yield f"{type_} {axes}", *both


@pytest.mark.parametrize("name, within, beyond", [*edges()])
def test_nothing_is_certain_one_step_beyond_what_was_tried(name, within, beyond):
    assert support(within).ane is True, name
    answer = support(beyond)
    assert answer.ane is not True and answer.reason, name


def shaped(*sizes: int) -> GraphOp:
    return op("relu", TensorType("fp16", sizes))


#: Each limit of the registry that support reads -> an op of this extent along it.
LIMITS = {
    "axis-most": lambda n: shaped(1, n, 1, 1),
    "rank-most": lambda n: shaped(*(1,) * n),
    "conv-width": lambda n: conv(1, n),
    "conv-height": lambda n: conv(n, 1),
    "conv-square": lambda n: conv(n, n),
    "matmul-depth": lambda n: op("matmul", TensorType("fp16", (1, n)), TensorType("fp16", (n, 1))),
    "max-pool": lambda n: op("max_pool", X, attributes={"kernel_sizes": [1, n]}),
}


@pytest.mark.parametrize("chip", [*table()["chips"]])
def test_nothing_is_certain_beyond_a_limit_on_any_chip(chip):
    """Limits of the registry and of generations, all that are read, one step beyond."""
    read = set(re.findall(r'_most\("([a-z0-9-]+)"\)', Path(placement_support.__file__).read_text()))
    assert read == LIMITS.keys() | {"program-1gb"}, "program-1gb is of whole programs, below"
    for claim, make in LIMITS.items():
        beyond = support(make(claims.find(claim).number + 1), chip)
        assert beyond.ane is not True and beyond.reason, (chip, claim)
    limits = table()["limits"].get(table()["chips"][chip].get("limits"))
    if limits:
        assert support(shaped(1, 1, 1, limits["spatial"]), chip).ane is True
        assert support(shaped(1, 1, 1, limits["spatial"] + 1), chip).ane is not True
        assert support(product(limits["depth"] + 1), chip).ane is not True
        assert support(conv(1, limits["kernel"] + 1), chip).ane is not True


def test_nothing_is_certain_of_what_no_source_speaks_of():
    """Ops of MIL that are in no list: unknown, whatever their values."""
    lists = {*table()["taken"], *table()["states"], *claims.find("ops-refused").names}
    others = NEEDED.keys() - lists
    assert len(others) > 10
    for type_ in others:
        assert support(op(type_, X)).ane is not True, type_


def product(depth: int, type_: str = "linear") -> GraphOp:
    """A product with sums of so many terms; of a convolution they are its channels."""
    rows = (1, depth, 1, 1) if type_ == "conv" else (1, depth)
    weight = (64, depth, 1, 1) if type_ == "conv" else (64, depth)
    x, constant = TensorType("fp16", rows), TensorType("fp16", weight)
    out = TensorType("fp16", (1, 64, 1, 1) if type_ == "conv" else (1, 64))
    return op(type_, x, out=out, constants={"weight": (constant,)})


@pytest.mark.parametrize(
    "found, before, after",
    [
        (op("relu", TensorType("fp16", (1, 64, 1, 16_384))), True, True),
        (op("relu", TensorType("fp16", (1, 64, 1, 16_385))), False, True),
        (op("relu", TensorType("fp16", (1, 64, 16_385, 1))), False, True),
        (op("relu", TensorType("fp16", (1, 65_536, 1, 1))), True, True),
        (op("linear", TensorType("fp16", (1, 1, 768)), out=TensorType("fp16", (1, 1, 50_257))),
         False, True),
        (product(16_384), True, True),
        (product(16_385), False, True),
        (product(16_384, "conv"), True, True),
        (product(16_385, "conv"), False, True),
        (product(32_769, "conv"), None, None),
        (product(32_769), None, None),
        (conv(1, 13), True, True),
        (conv(1, 14), None, True),
    ],
)  # fmt: skip
def test_limits_are_those_of_the_generation(found, before, after):
    """H, W and D end at 16,384 before the M4; for `any` chip nothing beyond is certain."""
    for chip in ("m1", "m2", "m3"):
        assert support(found, chip).ane is before
    for chip in ("m4", "m5", "m6"):
        assert support(found, chip).ane is after
    assert support(found, "any").ane is (True if before is True else None)


def test_apples_einsum_is_taken_and_no_other():
    own = ("bchq,bkhc->bkhq", True), ("bkhc,bchq->bkhq", True), ("ij,jk->ik", None)
    for equation, taken in own:
        assert support(op("einsum", X, X, attributes={"equation": equation})).ane is taken


@pytest.mark.parametrize(
    "types, file, taken, claim",
    [
        (["relu"], 0, True, ""),
        (["relu"], 1_000_000_000, True, ""),
        (["relu"], 1_000_000_001, None, "program-2gb"),
        (["relu"], 2**31, None, "program-2gb"),
        (["relu"], 2**31 + 1, False, "program-2gb"),
        (["scaled_dot_product_attention"], 0, True, ""),
        (["scaled_dot_product_attention"] * 2, 0, None, "fused-attention"),
        (["read_state", "relu"], 0, None, "state-writes"),
        (["slice_update"], 0, True, ""),
        (["read_state", "relu"], 2 * 10**9, None, "program-2gb state-writes"),
    ],
)
def test_what_is_said_of_a_whole_program_is_said_of_its_ops(types, file, taken, claim):
    whole = whole_program([op(type_, X) for type_ in types], file)
    assert (whole.ane, whole.claim) == (taken, claim)
    for one in (Support(True), Support(None, "", "x"), Support(False, "", "x")):
        found = one.within(whole).ane
        assert found is (False if False in (one.ane, taken) else None if None in (one.ane, taken)
                         else True)  # fmt: skip
