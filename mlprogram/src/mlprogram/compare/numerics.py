"""Find the ops that overflow, make NaN or lose small values in half precision.

    for finding in report(program, inputs):
        print(finding)  # mul 'x_7': 71,000 at most, beyond fp16's 65,504 (3 of 1,024 elements)

The program runs twice side by side, as declared and with half precision lifted to single, and is
compared value by value, so that only the live values of the two runs are in memory. A finding names
the op where a problem starts, not the later ops that only pass it on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mlprogram.analysis.aliases import uses
from mlprogram.package.description import by_name
from mlprogram.run.program import MLProgram, State
import numpy as np

LARGEST = float(np.finfo(np.float16).max)  # 65,504
SMALLEST_NORMAL = float(np.finfo(np.float16).smallest_normal)  # 6.1e-5; below it bits are lost

#: A value is reported if at least this share of its elements is below fp16's normal numbers.
DENORMAL_SHARE = 0.1


@dataclass(frozen=True)
class PrecisionFinding:
    """A problem of half precision, and the op where it starts.

    kind: "overflow" (infinite, where single precision is finite), "nan", or "denormal" (many
    elements so small that fp16 has fewer bits for them, or none). name: the value. op: the type of
    the op that made it, or "input". elements: how many are affected, of `size`; for "denormal",
    size counts those that are not zero. largest: their greatest magnitude in single precision; NaN
    if it has none. vanished: how many became zero.
    """

    kind: str
    name: str
    op: str
    elements: int
    size: int
    largest: float
    vanished: int = 0

    def __str__(self) -> str:
        place, count = f"{self.op} {self.name!r}", f"{self.elements:,} of {self.size:,} elements"
        if self.kind == "overflow":
            return f"{place}: {self.largest:,.0f} at most, beyond fp16's 65,504 ({count})"
        if self.kind == "nan":
            alike = ", in single precision as well" if np.isnan(self.largest) else ""
            return f"{place}: NaN appears here first ({count}){alike}"
        zero = f", {self.vanished:,} became 0" if self.vanished else ""
        return f"{place}: below 6.1e-5, where fp16 loses bits ({count} that are not zero{zero})"


def report(
    program: MLProgram, inputs: Mapping[str, object], state: State | None = None
) -> list[PrecisionFinding]:
    """Find the problems of half precision in a run on these inputs, in the order of the ops.

    state: where the run starts, zero if None; it is not changed. Both runs go op by op, whatever
    the precision and the kernels of `program`.
    """
    half, full = program.plain("fp16"), program.plain("fp32")
    inputs = by_name(inputs, half.inputs)
    reads = {name: set(uses(o)) for o in half.operations for name, _ in o.outputs}
    ops = {name: o.type for o in half.operations for name, _ in o.outputs}
    troubled: dict[str, set[str]] = {"overflow": set(), "nan": set(), "denormal": set()}
    found = []
    for name, narrow, wide in _side_by_side(half, full, inputs, state):
        for finding in _look(name, ops.get(name, "input"), narrow, wide):
            known = troubled[finding.kind]
            if known.isdisjoint(reads.get(name, ())):
                found.append(finding)
            known.add(name)
    return found


def _side_by_side(
    half: MLProgram, full: MLProgram, inputs: Mapping[str, object], state: State | None
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield (name, as declared, lifted) for each half precision input and each value of floats."""
    for name, feature in half.features.items():
        if feature.type.dtype == "fp16" and name in inputs:
            wide = feature.array(inputs[name]).astype(np.float32)
            with np.errstate(over="ignore"):
                yield name, wide.astype(np.float16), wide
    traces = [p.trace(inputs, _copy(state, p) if p.states else None) for p in (half, full)]
    for (name, narrow), (_, wide) in zip(*traces, strict=True):
        if narrow.dtype.kind == "f" and name not in half.inputs:
            yield name, narrow, wide


def _copy(state: State | None, program: MLProgram) -> State:
    """A copy of a state in the program's precision; a zero one for None."""
    own = program.make_state()
    if state is not None:
        for name in program.states:
            own.write_state(name, state.read_state(name))
    return own


def _look(name: str, op: str, narrow: np.ndarray, wide: np.ndarray) -> Iterator[PrecisionFinding]:
    """The findings of one value. narrow: as declared; wide: with half precision lifted."""
    infinite = np.isinf(narrow) & np.isfinite(wide)
    if infinite.any():
        largest = float(np.abs(wide[infinite]).max())
        yield PrecisionFinding("overflow", name, op, int(infinite.sum()), narrow.size, largest)
    missing = np.isnan(narrow)
    if missing.any():
        instead = np.abs(wide[missing & ~np.isnan(wide)])
        largest = float(instead.max(initial=0)) if instead.size else float("nan")
        yield PrecisionFinding("nan", name, op, int(missing.sum()), narrow.size, largest)
    if narrow.dtype != np.float16:
        return
    nonzero = np.count_nonzero(wide)
    small = (np.abs(wide) < SMALLEST_NORMAL) & (wide != 0)
    count = int(small.sum())
    if nonzero and count >= DENORMAL_SHARE * nonzero:
        vanished = int((narrow[small] == 0).sum())
        largest = float(np.abs(wide[small]).max())
        yield PrecisionFinding("denormal", name, op, count, int(nonzero), largest, vanished)
