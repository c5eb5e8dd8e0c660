"""What a comparison with a source found, as text and as plain JSON values."""

from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

from mlprogram.compare import Gap, percent
from mlprogram.onnx.source.graph import SourceNode
from mlprogram.onnx.source.match import PackageValue, ValueMatch
from mlprogram.onnx.source.suppression import SuppressionVerdict
from mlprogram.terminal import plain


@dataclass(frozen=True)
class Parting:
    """The first place at which a package parts from its source.

    node: of the source. value: the package's there, None if it has none. gap: their difference, of
    the package's value from the source's. agreeing: what the node reads, which agrees. kind, cause:
    a word and a sentence, "" where nothing explains it.
    """

    node: SourceNode
    value: PackageValue | None
    gap: Gap | None
    agreeing: list[ValueMatch]
    kind: str = ""
    cause: str = ""

    def __str__(self) -> str:
        lines = [f"first apart: {self.node}"]
        if self.value is not None:
            lines.append(f"  MIL       {self.value}")
        if self.gap is not None:
            lines.append(f"  error     {self.gap.cells()[0]}")
        if self.gap is not None and self.gap.worst:
            ours, theirs = self.gap.elements
            lines.append(f"  worst     {ours:.6g} at {self.gap.worst}, the source has {theirs:.6g}")
        for match in self.agreeing:
            how = f", {match.layout}" if match.layout else ""
            error = percent(match.error) if match.error else "exact"
            lines.append(f"  agreed    {match.source!r} ({error}): {match.package}{how}")
        if self.cause:
            lines.append(f"  cause     {self.kind}: {self.cause}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        gap = None if self.gap is None else asdict(self.gap)
        if gap:
            del gap["inputs"]
        value = self.value and {"name": self.value.name, "op": self.value.op,
                                "shape": list(self.value.array.shape)}  # fmt: skip
        node = {"name": self.node.name, "op": self.node.op, "where": self.node.where}
        agreed = [
            {"source": m.source, "package": m.package.name, "op": m.package.op,
             "layout": m.layout, "error": m.error}
            for m in self.agreeing
        ]  # fmt: skip
        return plain({"node": node, "mil": value, "gap": gap, "agreed": agreed,
                      "kind": self.kind, "cause": self.cause})  # fmt: skip


@dataclass
class SourceDifference:
    """The result of a comparison.

    matched: values of the source that the package has, of `values`; package_values: those that the
    package has. errors: of each output, end to end and in single precision; half: of each in half
    precision, as far from single precision. made: the package's name of each value of the source
    that it has.
    """

    tolerance: float
    matched: int
    values: int
    package_values: int
    first: Parting | None = None
    suppression: SuppressionVerdict | None = None
    notes: list[str] = field(default_factory=list)
    errors: dict[str, float] = field(default_factory=dict)
    half: dict[str, float] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)
    sides: dict[str, str] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether nothing parts."""
        return self.first is None

    def __str__(self) -> str:
        lines = [f"{side:8} {text}" for side, text in self.sides.items()]
        lines.append(
            f"{self.matched:,} of the source's {self.values:,} values found among the package's "
            f"{self.package_values:,}; tolerance {percent(self.tolerance)} an op"
        )
        lines += self.notes
        if self.suppression is not None:
            lines.append(self.suppression.text)
        parts = ["\n".join(lines)]
        if self.first is not None:
            parts.append(str(self.first))
        parts.append("\n".join(self._outputs()))
        return "\n\n".join(parts)

    def _outputs(self) -> list[str]:
        rows = [f"output {name!r}: {_said(error)}" for name, error in self.errors.items()]
        rows += [
            f"half precision takes {name!r} {percent(error)} away from single precision"
            for name, error in self.half.items()
        ]
        return [*rows, self._verdict()]

    def _verdict(self) -> str:
        count = f"{self.matched:,} of its {self.values:,} values are in the package"
        if not self.equal:
            return f"the package and its source part; {count}"
        if self.matched < self.values:
            count += ", and what follows the others agrees"
        return f"the package computes what its source computes: {count}"

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = dict(self.sides)
        found |= {"equal": self.equal, "tolerance": self.tolerance, "matched": self.matched,
                  "values": self.values, "package_values": self.package_values,
                  "notes": self.notes}  # fmt: skip
        found["first"] = self.first.to_json() if self.first else None
        found["suppression"] = self.suppression and asdict(self.suppression)
        found["outputs"], found["half"] = self.errors, self.half
        return plain(found)


def _said(error: float) -> str:
    if not error:
        return "equal"
    if not isfinite(error):
        return "not found, or of another shape"
    return f"off by {percent(error)} of its largest value, end to end"
