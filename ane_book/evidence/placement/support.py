"""Whether the ANE takes an op: yes, no or unknown, with the reason and the claim behind it.

This is what the segmenter allows, not yet where it places an op: see `path`. An op, a dtype or a
size that no source mentions is unknown, and stays so.

Source of what the ANE takes: 751K/Apple-Neural-Engine-Microarchitecture-Study-M6@5cb462b
data/03_compile/opdispatch/ana, M4, macOS 27.0.1. Limits and refusals: the registry of claims.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
import tomllib

from ane_book import claims
from ane_book.evidence.placement.graph import BLOCKS, GraphOp

__all__ = ["Support", "support", "table"]

#: Dtypes that no op of the ANE reads or writes, except that a cast may read or write fp32.
REFUSED, WIDE = frozenset(["int32", "uint32", "int64", "uint64", "fp64"]), "fp32"


@dataclass(frozen=True)
class Support:
    """Whether the ANE takes an op: True, False, or None for unknown. claim: its id, or ""."""

    ane: bool | None
    reason: str = ""
    claim: str = ""

    @property
    def word(self) -> str:
        return {True: "yes", False: "no", None: "unknown"}[self.ane]


@cache
def table() -> dict:
    """The contents of `support.toml`."""
    return tomllib.loads(Path(__file__).with_name("support.toml").read_text())


def support(op: GraphOp, chip: str = "m4") -> Support:
    """Whether the ANE of a chip takes an op, by the first rule that applies to it."""
    for rule in (_by_name, _by_dtype, _by_shape, _by_form):
        found = rule(op)
        if found:
            return found
    if op.type in table()["chips"].get(chip, {}).get("refused", ()):
        return Support(False, f"the {chip.upper()} does not take {op.type}", "topk")
    if op.type in table()["taken"]:
        return Support(True)
    return Support(None, f"no source speaks of {op.type}")


def _most(claim: str) -> float:
    return claims.find(claim).number


def _by_name(op: GraphOp) -> Support | None:
    if op.type in claims.find("ops-refused").names:
        return Support(False, f"the ANE of an M4 does not take {op.type}", "ops-refused")
    if op.type in ("argsort", "reduce_argmax", "reduce_argmin"):
        return Support(False, f"{op.type} gives whole numbers", "argmax-integer")
    if BLOCKS in op.compressed:
        return Support(None, "a weight with scales along its input", "scale-per-block")
    if op.type in table()["states"]:
        return Support(None, "reports on states conflict", "state-writes")
    return None


def _by_dtype(op: GraphOp) -> Support | None:
    found = {type_.dtype for type_ in op.values}
    refused = sorted(found & REFUSED)
    if refused:
        return Support(False, f"{refused[0]} values", "int32-ops")
    if WIDE in found and op.type != "cast":
        return Support(False, "single precision", "fp32-ops")
    return None


def _by_shape(op: GraphOp) -> Support | None:
    if op.flexible:
        return Support(None, "a size is known only at run time", "flexible-cpu")
    axes = max((len(type_.shape) for type_ in op.values), default=0)
    if axes > _most("rank-most"):
        return Support(False, f"{axes} axes, at most {_most('rank-most')}", "rank-most")
    most, of_inputs = _most("axis-most"), [t for types in op.inputs.values() for t in types]
    longest = max((size for type_ in op.values for size in type_.sizes), default=0)
    if longest > most:
        read = max((size for type_ in of_inputs for size in type_.sizes), default=0)
        written = op.type == "conv" and read <= most  # three reports have such on the ANE
        return Support(
            None if written else False, f"an axis of {longest:,}, at most {most:,}", "axis-most"
        )
    return None


def _by_form(op: GraphOp) -> Support | None:
    rule = FORMS.get(op.type)
    return rule(op) if rule else None


# --- forms of single ops --------------------------------------------------------------------------


def _conv(op: GraphOp) -> Support | None:
    weight = op.operand("weight")
    if weight is None or len(weight.shape) != 4:
        return None
    height, width = weight.sizes[2:]
    square = height == width == _most("conv-square")
    if width > _most("conv-width") and not square:
        wide = f"a kernel {width} wide, at most {_most('conv-width')}"
        return Support(False, wide, "conv-width")
    if height > _most("conv-height"):
        high = f"a kernel {height} high, at most {_most('conv-height')}"
        return Support(False, high, "conv-height")
    if height > _most("conv-square") and width > 1:
        return Support(None, f"no source speaks of a kernel of {height} x {width}")
    return None


def _max_pool(op: GraphOp) -> Support | None:
    kernel, most = op.numbers("kernel_sizes"), _most("max-pool")
    if kernel and kernel[-1] > most:
        return Support(False, f"a max pool {kernel[-1]} wide, at most {most}", "max-pool")
    if max(kernel, default=0) > most + 1:  # 9 x 1 is taken
        return Support(None, f"no source speaks of a max pool {max(kernel)} high")
    return None


def _avg_pool(op: GraphOp) -> Support | None:
    longest = max(op.numbers("kernel_sizes"), default=0)
    if longest > 14:  # the largest that was tried
        return Support(None, f"no source speaks of an average pool over {longest}")
    return None


def _matmul(op: GraphOp) -> Support | None:
    most = _most("matmul-depth")
    if op.depth > most:
        return Support(False, f"sums of {op.depth:,} terms, at most {most:,}", "matmul-depth")
    return None


def _linear(op: GraphOp) -> Support | None:
    refused = _matmul(op)
    return refused and Support(None, f"{refused.reason} in a matmul", refused.claim)


def _gather(op: GraphOp) -> Support | None:
    if "indices" in op.inputs:
        return Support(False, "indices computed at run time", "gather-computed")
    return None


def _slice(op: GraphOp) -> Support | None:
    computed = [key for key in ("begin", "end", "stride") if key in op.inputs]
    if not computed:
        return None
    known = False if op.type == "slice_by_size" else None  # of slice_by_index nobody says
    return Support(known, f"{computed[0]} computed at run time", "slice-dynamic")


FORMS: dict[str, Callable[[GraphOp], Support | None]] = {
    "avg_pool": _avg_pool,
    "conv": _conv,
    "gather": _gather,
    "linear": _linear,
    "matmul": _matmul,
    "max_pool": _max_pool,
    "slice_by_index": _slice,
    "slice_by_size": _slice,
}
