"""Whether the ANE takes an op: what was published, the limits, and what nobody said."""

from _segmenter import GRAPHS
from ane_book import claims
from ane_book.evidence.placement.graph import GraphOp
from ane_book.evidence.placement.support import support, table
from mlprogram.package.values import TensorType
import pytest

X = TensorType("fp16", (1, 64, 32, 32))


def op(type_: str, *inputs: TensorType, out: TensorType | None = None, **more) -> GraphOp:
    names = dict(zip("xyz", [(t,) for t in inputs], strict=False))
    return GraphOp(type_, type_, names, (out or inputs[0],), **more)


def conv(height: int, width: int) -> GraphOp:
    kernel = {"weight": (TensorType("fp16", (64, 64, height, width)),)}
    return op("conv", X, constants=kernel)


def test_support_is_what_was_published():
    """In every graph whose support the segmenter stated; the aim is 98 % of ops."""
    ops = {o.name: (o, "ane" in t) for g in GRAPHS for o, t in zip(g.ops, g.estimates, strict=True)}
    wrong = [name for name, (each, taken) in ops.items() if support(each).ane != taken]
    assert len(ops) > 300
    assert len(wrong) <= 0.01 * len(ops), wrong


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


def test_every_refusal_rests_on_a_claim():
    """And no op is told to be taken and not."""
    refused = {o.name: support(o) for g in GRAPHS for o in g.ops if support(o).ane is False}
    assert len({found.claim for found in refused.values()}) >= 7
    for found in refused.values():
        assert claims.find(found.claim).support, found
    lists = [table()["taken"], table()["states"], claims.find("ops-refused").value]
    assert lists[0] == sorted(lists[0])
    assert sum(map(len, lists)) == len({name for each in lists for name in each})
