"""Write a package again without faults that an exact rewrite mends, proven before it is written.

    from mlprogram.ane.faults.fix import fix

    report = fix("model.mlpackage", "mended.mlpackage")
    report.mended, report.left          # what was rewritten, and what was not, with the reason
    print(report.text())

    rewrites.py      the rewrites by fault; elementwise.py, windows.py, ... have them by subject
    mend.py          `Mend`: the ops that take an op's place, and what torch computes in theirs
    edit.py          new ops in a function's protobuf
    prove.py         the new ops alone on edges; whole functions, states included

A rewrite gives what was *meant*: what torch computes of the op that was converted. The package that
was given is never changed, and its weight files are copied as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlprogram.ane import laws
from mlprogram.ane.faults.fault import Fault, mendable
from mlprogram.ane.faults.fix import edit
from mlprogram.ane.faults.fix.mend import Mend, Unmended
from mlprogram.ane.faults.fix.prove import prove_alone, prove_whole
from mlprogram.ane.faults.fix.rewrites import UNSURE, mends_of, same_rewrite
from mlprogram.ane.faults.versions import makers_of
from mlprogram.ane.laws.graph import ProgramGraph
from mlprogram.ane.laws.rule import SEVERITIES, Rule, Severity
from mlprogram.errors import InvalidInput
from mlprogram.files import regular_files
from mlprogram.package.container import Container, open_container, save
from mlprogram.package.reader import Package
from mlprogram.tables import table

__all__ = ["FixReport", "Treated", "fix"]


@dataclass(frozen=True)
class Treated:
    """An op with a fault. left: why it is as it was; "" if it was rewritten."""

    fault: Rule
    function: str
    op: str
    name: str
    left: str = ""

    def to_json(self) -> dict[str, str]:
        """The op in plain JSON values."""
        own = {key: getattr(self, key) for key in ("function", "op", "name")}
        more = {"left": self.left, "instead": self.fault.instead} if self.left else {}
        return {"fault": self.fault.id, **own, **more}


@dataclass
class FixReport:
    """What `fix` did.

    out: the package that was written; None if nothing was. ops: those that compute, before and
    after; bytes: of all files. tried: sets of inputs that a function ran on; error: the largest
    difference from what was meant, in single precision, as a share of an output's largest number.
    """

    package: Path
    out: Path | None = None
    mended: list[Treated] = field(default_factory=list)
    left: list[Treated] = field(default_factory=list)
    ops: tuple[int, int] = (0, 0)
    bytes: tuple[int, int] = (0, 0)
    tried: int = 0
    error: float = 0.0
    _waiting: list[Treated] = field(default_factory=list, repr=False)

    def leave(self, treated: Treated, reason: Unmended) -> None:
        """Name an op as left; if it was before, the first reason counts."""
        if treated not in [replace(one, left="") for one in self.left]:
            self.left.append(replace(treated, left=str(reason)))

    def settle(self) -> None:
        """Count what waited, and is found no more, as mended; what is mended is not left."""
        left = {replace(one, left="") for one in self.left}
        known = {*self.mended, *left}
        self.mended += [one for one in dict.fromkeys(self._waiting) if one not in known]
        self.left = [one for one in self.left if replace(one, left="") not in {*self.mended}]

    def fails(self, level: Severity) -> bool:
        """Whether something of this severity or a higher one is left."""
        grave = SEVERITIES[: SEVERITIES.index(level) + 1]
        return any(one.fault.severity in grave for one in self.left)

    def to_json(self) -> dict[str, Any]:
        """The report in plain JSON values."""
        own = {key: getattr(self, key) for key in ("ops", "bytes", "tried", "error")}
        lists = {key: [one.to_json() for one in getattr(self, key)] for key in ("mended", "left")}
        out = None if self.out is None else str(self.out)
        return {"package": str(self.package), "out": out, **lists, **own}

    def text(self) -> str:
        """The report as text."""
        rows = [("mended", one.fault.id, f"{one.function}, {one.op} {one.name!r}")
                for one in self.mended]  # fmt: skip
        for one in self.left:
            place = f"{one.function}, {one.op} {one.name!r}".strip()
            what = f"{one.left}; instead: {one.fault.instead}"
            rows.append(("left", one.fault.id, f"{place}: {what}"))
        if self.out is None:
            none = "nothing that an exact rewrite mends" if self.left else "nothing to mend"
            head = f"{self.package}: {none}, and nothing is written"
        else:
            head = f"{self.out}: written, with {_changes(self)}"
        return "\n".join([head, table(rows, indent=2)] if rows else [head])


def _changes(report: FixReport) -> str:
    ops, size = (f"{a:,} -> {b:,}" for a, b in (report.ops, report.bytes))
    return (
        f"{ops} ops, {size} bytes; on {report.tried} sets of inputs at most "
        f"{report.error:.2g} of the largest number from what was meant"
    )


def fix(package: str | Path, out: str | Path, known: Mapping[str, Rule] | None = None) -> FixReport:
    """Write `package` to `out` (.mlpackage) with every fault mended that an exact rewrite mends.

    known: what to look for; None is `mendable()`. An op whose new form does not prove to give what
    is meant is left as it is, and `FixReport.left` says why, as of one that no rewrite is known
    for. Nothing is written where nothing can be mended, or where a whole function parts from what
    is meant.

    Raises InvalidInput for a folder of packages, and if `out` exists, cannot be written, has
    another suffix, or lies in the package; InvalidPackage for what is no ML Program.
    """
    path, out = Path(package), Path(out)
    if out.suffix != ".mlpackage" or out.exists():
        reason = "exists already" if out.exists() else "does not end in .mlpackage"
        raise InvalidInput(f"{out}: {reason}; name another place for the mended package")
    if path.is_dir() and path.suffix not in laws.MODELS:
        raise InvalidInput(f"{path}: a folder; one package is mended at a time: name it")
    if path.resolve() in out.resolve().parents:
        raise InvalidInput(f"{out}: is in the package itself; name a place outside of it")
    before = now = open_container(path)
    report, known = FixReport(path), mendable() if known is None else known
    while True:  # each round mends what none before it has
        mends = _mends(Package(now), known, report)
        if not _keep_proven(_rewritten(now, mends), mends, report):
            break
        after = _rewritten(now, mends)
        _prove(now, after, mends, report)
        now = after
    report.settle()
    if report.mended:
        save(now, out)
        report.out = out
        report.bytes = _bytes(path), _bytes(out)
        report.ops = _ops(before), _ops(now)
    return report


Mends = dict[str, list[tuple[Treated, list[Mend]]]]  # by function


def _mends(package: Package, known: Mapping[str, Rule], report: FixReport) -> Mends:
    """The mendings of each function's faults; what there is none for is left.

    An op that two rewrites are for has the first one only, and the other in the next round, if its
    fault is still found there.
    """
    mends: Mends = {}
    source = makers_of(package).source  # without it, what a converter was given is a guess
    for name, function in package.functions.items():
        graph, mends[name] = ProgramGraph(package, function), []
        claimed: dict[str, str] = {}  # ops, and the faults that they are rewritten for
        found = [(rule, seen) for rule in known.values() for seen in laws.found(rule, graph)]
        for rule, seen in found:
            op, of = (seen.operation.type, seen.operation.name) if seen.operation else ("", "")
            treated = Treated(rule, name, op, of)
            try:
                if isinstance(rule, Fault) and rule.of == "coremltools" and not source:
                    raise Unmended("the package does not say what it was converted from")
                if rule.id in UNSURE:
                    raise Unmended(UNSURE[rule.id])
                made = mends_of(rule.id, graph, seen.operation)
            except Unmended as reason:
                report.leave(treated, reason)
                continue
            if treated in report.mended:
                raise InvalidInput(
                    f"{report.package}: {rule.id} is still found in {op} {of!r} once it is "
                    "rewritten; nothing is written"
                )
            if report.mended and treated not in report._waiting:
                report.leave(treated, Unmended("a rewrite brought it about"))
                continue
            by = {claimed.setdefault(one.operation.name, rule.id) for one in made}
            if all(same_rewrite(rule.id, other) for other in by):
                mends[name].append((treated, made))
            else:
                report._waiting.append(treated)
    return mends


def _rewritten(container: Container, mends: Mends) -> Container:
    spec = type(container.spec)()
    spec.CopyFrom(container.spec)
    for name, treated in mends.items():
        new = {one.operation.name: one.operations for _, made in treated for one in made}
        edit.replace(spec.mlProgram.functions[name], new)
    return replace(container, spec=spec)


def _keep_proven(after: Container, mends: Mends, report: FixReport) -> int:
    """Drop the mendings that do not give what is meant, each tried alone; returns how many stay."""
    kept = 0
    for function, all_ in mends.items():
        mends[function] = []
        for treated, made in all_:
            try:
                for one in made:
                    prove_alone(after, function, one)
            except Unmended as reason:
                report.leave(treated, reason)
            else:
                report.mended.append(treated)
                mends[function].append((treated, made))
                kept += 1
    return kept


def _prove(before: Container, after: Container, mends: Mends, report: FixReport) -> None:
    """Hold whole functions against what is meant. Raises InvalidInput where they part."""
    for function, treated in mends.items():
        if not treated:
            continue
        try:
            proof = prove_whole(before, after, function, [one for _, m in treated for one in m])
        except Unmended as reason:
            raise InvalidInput(f"{report.package}: {reason}; nothing is written") from None
        report.tried = max(report.tried, proof.inputs)
        report.error = max(report.error, proof.error)


def _ops(container: Container) -> int:
    functions = Package(container).functions.values()
    return sum(not o.is_constant for function in functions for o in function.operations())


def _bytes(path: Path) -> int:
    return sum(regular_files(path).values()) if path.is_dir() else path.stat().st_size
