"""Whether the ANE takes an op: yes, no or unknown, with the reason and the claim behind it.

This is what the segmenter allows, not yet where it places an op: see `path`. An op, a dtype or a
size that no source mentions is unknown, and stays so.

Source of what the ANE takes: 751K/Apple-Neural-Engine-Microarchitecture-Study-M6@5cb462b
data/03_compile/opdispatch/ana, M4, macOS 27.0.1. Limits and refusals: the registry of claims.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
import tomllib

from mlprogram.ane import claims
from mlprogram.ane.placement.graph import BLOCKS, GraphOp
from mlprogram.package.values import TensorType

CONFLICT = "reports on states conflict"
#: Dtypes that no op of the ANE reads or writes, except that a cast may read or write fp32.
REFUSED, WIDE = frozenset(["int32", "uint32", "int64", "uint64", "fp64"]), "fp32"


@dataclass(frozen=True)
class Support:
    """Whether the ANE takes an op: True, False, or None for unknown.

    claim: the id of the claim behind it, "" if there is none; several have a space between.
    """

    ane: bool | None
    reason: str = ""
    claim: str = ""

    @property
    def word(self) -> str:
        return {True: "yes", False: "no", None: "unknown"}[self.ane]

    def within(self, whole: "Support") -> "Support":
        """The support of an op of a program of which `whole` is known."""
        if whole.ane is True or self.ane is False or (whole.ane is None and self.ane is None):
            return self
        return whole


@cache
def table() -> dict:
    """The contents of `support.toml`, with each of its `relatives` among the chips."""
    found = tomllib.loads(Path(__file__).with_name("support.toml").read_text())
    for known, names in found["relatives"].items():
        own = found["chips"][known]
        whose = "" if known == "any" else f"as {known}: "
        lent = {
            "figures": own.get("figures", known),
            "stands_on": f"{whose}{own['stands_on']}",
        }
        found["chips"] |= {name: own | lent for name in names}
    return found


def support(op: GraphOp, chip: str = "m4") -> Support:
    """Whether the ANE of a chip takes an op, by the first rule that applies to it."""
    facts = table()["chips"].get(chip, {})
    limits = table()["limits"].get(facts.get("limits"))
    for rule in (_by_name, _by_dtype, _by_shape, FORMS.get(op.type)):
        if rule and (found := rule(op)):
            return found
    if op.type in facts.get("refused", ()):
        return Support(False, f"the {chip.upper()} does not take {op.type}", "topk")
    found = (_by_generation(op, limits) if limits else None) or _by_tried(op)
    if found:
        return found
    if op.type in table()["taken"]:
        return Support(True)
    return Support(None, f"no source speaks of {op.type}")


def whole_program(ops: Sequence[GraphOp], weight_file: int = 0) -> Support:
    """Whether the ANE takes anything of a program. weight_file: the bytes of its largest one."""
    most, types = table()["whole"], [op.type for op in ops]
    if weight_file > most["weight_file"]:
        size = f"a weight file of {weight_file / 2**30:.2f} GiB, at most 2"
        return Support(False, size, "program-2gb")
    reports = []
    if weight_file > _most("program-1gb"):
        size = f"reports on one weight file of {weight_file / 1e9:.2f} GB conflict"
        reports.append((size, "program-2gb"))
    count = types.count("scaled_dot_product_attention")
    if count > most["attentions"]:
        fused = f"{count} fused attentions: two fail on macOS 26.5, on 27.0 one was tried"
        reports.append((fused, "fused-attention"))
    if not {"read_state", "write_state", "coreml_update_state"}.isdisjoint(types):
        reports.append((CONFLICT, "state-writes"))
    if not reports:
        return Support(True)
    reasons, names = zip(*reports, strict=True)
    return Support(None, "; ".join(reasons), " ".join(names))


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
        return Support(None, CONFLICT, "state-writes")
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


def _by_generation(op: GraphOp, limits: dict) -> Support | None:
    """The limits of a generation, where they are below those of an M4."""
    refused = False if limits["refused"] else None
    spatial = [size for type_ in op.values for size in type_.sizes[_spatial(type_) :]]
    if max(spatial, default=0) > limits["spatial"]:
        long = f"an axis of {max(spatial):,}, before the M4 at most {limits['spatial']:,}"
        return Support(refused, long, "axis-habit")
    weight = op.operand("weight") if op.type == "conv" else None
    if weight is not None and len(weight.shape) == 4 and weight.sizes[3] > limits["kernel"]:
        return Support(None, f"a kernel {weight.sizes[3]} wide, before the M4", "conv-width")
    depth = weight.sizes[1] if weight is not None and len(weight.shape) > 1 else op.depth
    if op.type in ("conv", "linear", "matmul") and depth > limits["depth"]:
        deep = f"sums of {depth:,} terms, before the M4 at most {limits['depth']:,}"
        return Support(refused, deep, "axis-habit")
    return None


def _spatial(type_: TensorType) -> int:
    """The first axis of a value that is one of its width, height and depth."""
    return 2 if len(type_.shape) > 3 else 0 if len(type_.shape) == 1 else -1


def _by_tried(op: GraphOp) -> Support | None:
    """Parameters beyond what was tried."""
    tried, weight = dict(table()["tried"].get(op.type, {})), op.operand("weight")
    kernel = tried.pop("kernel", {})
    values = {name: (_largest(op.attributes.get(name)), most) for name, most in tried.items()}
    if weight is not None and str(len(weight.shape)) in kernel:
        values["kernel"] = max(weight.sizes[2:]), kernel[str(len(weight.shape))]
    for name, (value, most) in values.items():
        if value > most:
            return Support(None, f"{name} of {value:,}, tried up to {most:,}")
    return None


def _largest(value: object) -> float:
    """The largest number in a value of an attribute; 0 if there is none."""
    if isinstance(value, list):
        return max(map(_largest, value), default=0)
    return value if isinstance(value, int | float) else 0


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
    if weight.sizes[1] > _most("matmul-depth"):
        return Support(None, f"sums of {weight.sizes[1]:,} terms in a convolution", "matmul-depth")
    return None


def _max_pool(op: GraphOp) -> Support | None:
    kernel, most = op.numbers("kernel_sizes"), _most("max-pool")
    if kernel and kernel[-1] > most:
        return Support(False, f"a max pool {kernel[-1]} wide, at most {most}", "max-pool")
    return None


def _einsum(op: GraphOp) -> Support | None:
    equation = op.attributes.get("equation")
    known = equation in table()["einsum"]
    return None if known else Support(None, f"no source speaks of the einsum {equation}")


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
    "conv": _conv,
    "einsum": _einsum,
    "gather": _gather,
    "linear": _linear,
    "matmul": _matmul,
    "max_pool": _max_pool,
    "slice_by_index": _slice,
    "slice_by_size": _slice,
}
