"""Whether the ANE takes an op: yes, no or unknown, with the reason and where it was read.

What the segmenter allows, which is not yet where it places an op: see `path`. An op, a dtype or a
size that no source speaks of is unknown, and stays so.

Sources: `support.toml`, by name.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
import tomllib

from ane_book.evidence.placement.graph import Op

__all__ = ["Support", "support", "table"]

#: Dtypes that no op of the ANE reads or writes; single precision only where it is cast.
REFUSED, WIDE = frozenset(["int32", "uint32", "int64", "uint64", "fp64"]), "fp32"


@dataclass(frozen=True)
class Support:
    """ane: True, False, or None where it is not known. source: a name in `support.toml`."""

    ane: bool | None
    reason: str
    source: str

    @property
    def word(self) -> str:
        return {True: "yes", False: "no", None: "unknown"}[self.ane]


@cache
def table() -> dict:
    """What `support.toml` says."""
    return tomllib.loads(Path(__file__).with_name("support.toml").read_text())


def support(op: Op, chip: str = "m4") -> Support:
    """Whether the ANE of a chip takes an op, by the first rule that speaks of it."""
    for rule in (_by_chip, _by_name, _by_dtype, _by_shape, _by_form):
        found = rule(op, chip)
        if found:
            return found
    known = table()["taken"]
    if op.type in known["ops"]:
        return Support(True, "", known["source"])
    return Support(None, f"no source speaks of {op.type}", "")


def _no(reason: str, source: str = "m6-study") -> Support:
    return Support(False, reason, source)


def _unknown(reason: str, source: str = "") -> Support:
    return Support(None, reason, source)


def _by_chip(op: Op, chip: str) -> Support | None:
    differs = table()["chips"].get(chip, {})
    if op.type in differs.get("refused", ()):
        return _no(f"{op.type} is not taken on the {chip.upper()}", differs["source"])
    return None


def _by_name(op: Op, chip: str) -> Support | None:
    refused, conflicting = table()["refused"], table()["conflicting"]
    if op.type in refused["ops"]:
        return _no(f"{op.type} runs on the CPU alone", refused["source"])
    if op.type in conflicting["ops"]:
        return _unknown("reports on states conflict", f"{conflicting['for']}, "
                        f"{conflicting['against']}")  # fmt: skip
    return None


def _by_dtype(op: Op, chip: str) -> Support | None:
    """Wide integers are refused; so is arithmetic in single precision, by Apple's rules."""
    found = {type_.dtype for type_ in op.values}
    refused = sorted(found & REFUSED)
    if refused:
        return _no(f"{refused[0]} values")
    if WIDE in found and op.type != "cast":
        return _no("single precision", "apple-rules")
    return None


def _by_shape(op: Op, chip: str) -> Support | None:
    limits = table()["limits"]
    if op.flexible:
        return _unknown("a size is known only at run time")
    for type_ in op.values:
        if len(type_.shape) > limits["rank"]:
            return _no(f"{len(type_.shape)} axes, at most {limits['rank']}")
        if max(type_.shape, default=1) > limits["axis"]:
            return _no(f"an axis of {max(type_.shape):,}, at most {limits['axis']:,}")
    return None


def _by_form(op: Op, chip: str) -> Support | None:
    rule = FORMS.get(op.type)
    return rule(op, table()["limits"]) if rule else None


# --- forms of single ops --------------------------------------------------------------------------


def _conv(op: Op, limits: dict) -> Support | None:
    weight = op.operand("weight")
    if weight is None or len(weight.shape) != 4:
        return None
    height, width = weight.shape[2:]
    square = height == width == limits["kernel_square"]
    if width > limits["kernel_width"] and not square:
        return _no(f"a kernel {width} wide, at most {limits['kernel_width']}")
    if height > limits["kernel_height"]:
        return _no(f"a kernel {height} high, at most {limits['kernel_height']}")
    if height > limits["kernel_square"] and width > 1:
        return _unknown(f"no source speaks of a kernel {height} x {width}")
    return None


def _max_pool(op: Op, limits: dict) -> Support | None:
    kernel = op.attributes.get("kernel_sizes", [])
    if kernel and kernel[-1] > limits["max_pool_width"]:
        return _no(f"a max pool {kernel[-1]} wide, at most {limits['max_pool_width']}")
    if any(size > limits["max_pool_width"] + 1 for size in kernel):
        return _unknown(f"no source speaks of a max pool {max(kernel)} high")
    return None


def _avg_pool(op: Op, limits: dict) -> Support | None:
    kernel = op.attributes.get("kernel_sizes", [])
    if any(size > limits["avg_pool"] for size in kernel):
        return _unknown(f"no source speaks of an average pool of {max(kernel)}")
    return None


def _matmul(op: Op, limits: dict) -> Support | None:
    x = op.operand("x")
    if x is None or not x.shape:
        return None
    depth = x.shape[-2 if op.attributes.get("transpose_x") and len(x.shape) > 1 else -1]
    if depth > limits["depth"]:
        return _no(f"a product over {depth:,} terms, at most {limits['depth']:,}")
    return None


def _constant(argument: str, what: str) -> Callable[[Op, dict], Support | None]:
    """The rule that an argument must be known before the program runs."""

    def rule(op: Op, limits: dict) -> Support | None:
        return _no(f"{what} computed at run time") if argument in op.inputs else None

    return rule


def _linear(op: Op, limits: dict) -> Support | None:
    x = op.operand("x")
    if x is not None and x.shape and x.shape[-1] > limits["depth"]:
        return _unknown(f"a product over {x.shape[-1]:,} terms; of a matmul it is refused")
    return None


def _slice(op: Op, limits: dict) -> Support | None:
    computed = [key for key in ("begin", "end", "stride") if key in op.inputs]
    return _unknown(f"{computed[0]} computed at run time") if computed else None


FORMS: dict[str, Callable[[Op, dict], Support | None]] = {
    "avg_pool": _avg_pool,
    "conv": _conv,
    "gather": _constant("indices", "indices"),
    "linear": _linear,
    "matmul": _matmul,
    "max_pool": _max_pool,
    "slice_by_index": _slice,
    "slice_by_size": _constant("begin", "begin"),
}
