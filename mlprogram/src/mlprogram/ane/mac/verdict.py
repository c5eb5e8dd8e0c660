"""Judge what a child reported about residency: a verdict in one word, and a sentence that says why.

In the order in which they are checked; the first that holds is the verdict:

    crashed     the process died, or could not do what it was asked
    hung        it was not done in its time
    memory      it took more memory than it may
    refused     the compiler said no, whatever the exit status
    numbers     a state that lost what a call wrote, NaN, or too far from what the executor makes of
                the same package (L1)
    elsewhere   Core ML plans most of it on the CPU or the GPU, and says so
    silent      planned on the engine, but results to the bit and speed are another unit's
    leaking     it holds more with every prediction
    drifting    after many equal predictions it gives other numbers than at first
    resident    none of these: most of the estimated time is planned on the engine, the numbers are
                right, results or speed are its own, and a soak neither leaked nor drifted
    unmeasured  nobody asked a Mac with an engine

Exit status alone says nothing: compilers exit 0 while everything runs on the GPU (coreai-models
#205), and a plan alone is a plan (NVMAI #7). A program may be resident and slower than the CPU:
that is said beside the verdict, and the figure `speed_to_cpu` has it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
import signal

from mlprogram.ane.claims.known_errors import explain
from mlprogram.ane.mac.child import Outcome
from mlprogram.ane.mac.compiler import read_failures
from mlprogram.ane.mac.plan import CoreMLPlan
import numpy as np

RESIDENT = 0.9  # the share of the estimated time that has to be planned on the engine
COSINE = 0.97  # the least cosine of every output to the executor's
ALIKE = 0.15  # times that differ by less than this share count as equal
LEAK = 32 << 20  # bytes that the process may grow by in the soak, after its first fifth

#: Entries of the index of errors that mean: the engine did not take the program, or gave it up.
REFUSALS = frozenset(
    (
        "ane-status-1d", "anecf-error", "compiler-failed", "compiler-internal-error", "no-predict",
        "offline-compile-failed", "plan-failed", "program-inference-error",
        "program-inference-overflow", "program-load-failure", "program-load-no-memory",
        "recompile-bundle",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Residency:
    """The result for one function. figures: for evidence.json. plan: Core ML's. outputs: those on
    the judged compute units, if it got that far."""

    verdict: str
    reason: str
    figures: dict = field(default_factory=dict)
    plan: CoreMLPlan = field(default_factory=CoreMLPlan)
    said: list[str] = field(default_factory=list)
    outputs: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def resident(self) -> bool:
        return self.verdict == "resident"

    @property
    def slower(self) -> bool:
        """Whether the CPU alone was faster, by more than ALIKE."""
        return self.figures.get("speed_to_cpu", 1.0) < 1 - ALIKE

    def to_json(self) -> dict:
        """The result in plain JSON values."""
        return {
            "verdict": self.verdict,
            "reason": self.reason,
            "figures": self.figures,
            "ops": [asdict(op) for op in self.plan.ops],
            "said": self.said,
        }


@dataclass(frozen=True)
class _Account:
    """What a child that measured `units` left behind.

    expected: the executor's outputs. rows: those of its states after two calls, (n, K, 2T, D).
    """

    outcome: Outcome
    folder: Path
    units: str
    expected: dict[str, np.ndarray]
    rows: dict[str, np.ndarray]

    @cached_property
    def plan(self) -> CoreMLPlan:
        return CoreMLPlan.from_outcome(self.outcome)

    @cached_property
    def said(self) -> list[str]:
        return messages(self.outcome.said)

    def outputs(self, name: str) -> dict[str, np.ndarray]:
        """The outputs on some compute units, or at the end of the "soak"; {} if there are none."""
        path = self.folder / f"{name}.npz"
        if not path.exists():
            return {}
        with np.load(path) as file:
            return dict(file)


def judge(
    outcome: Outcome,
    folder: Path,
    units: str,
    expected: dict[str, np.ndarray],
    inputs: str,
    rows: dict[str, np.ndarray] | None = None,
) -> Residency:
    """Judge what a child that measured `units` left in `folder`.

    expected: the executor's outputs. inputs: the word for the inputs, such as "golden". rows: of
    the executor's states (n, K, 2T, D) after two calls that wrote T rows each.
    """
    account = _Account(outcome, folder, units, expected, rows or {})
    facts = {"inputs": inputs} | figures(outcome, account.plan, units)
    verdict, reason = next(filter(None, (check(account) for check in CHECKS)), None) or (
        "resident",
        f"{account.plan.ane_share:.0%} of the estimated time is planned on the ANE, and numbers on "
        f"{inputs} inputs, speed and a soak of {facts.get('soaked', 0)} predictions agree with "
        "that",
    )
    found = Residency(verdict, reason, facts, account.plan, account.said, account.outputs(units))
    if not found.slower:
        return found
    slower = f"; the CPU alone is {1 / facts['speed_to_cpu']:.3g} times as fast"
    return replace(found, reason=reason + slower)


def messages(text: str) -> list[str]:
    """The lines in which a compiler reports that it failed."""
    lines = [line.strip()[:300] for line in text.splitlines()]
    return [line for line in lines if REFUSALS.intersection(one.id for one in explain(line))][:20]


def figures(outcome: Outcome, plan: CoreMLPlan, units: str) -> dict:
    """The figures of a record: share by device, seconds by compute units, memory.

    UNITS_cold is the first load of a copy that was compiled for this child, UNITS_warm the second;
    speed_to_cpu is the speed of the judged units relative to the CPU alone.
    """
    found: dict = {"seconds": round(outcome.seconds, 2), "peak_bytes": outcome.peak}
    for device, entry in plan.by_device().items():
        found |= {f"{device}_ops": entry["ops"], f"{device}_cost": round(entry["cost"], 4)}
    for step, names in (("loaded", ("cold", "warm")), ("predicted", ("first", "median"))):
        for event in outcome.find(step):
            found |= {f"{event['units']}_{name}": event[name] for name in names if name in event}
    for event in outcome.find("soak"):
        found["soaked"] = event["done"]
    mine, cpu = (found.get(f"{name}_median") for name in (units, "CPU_ONLY"))
    return found | ({"speed_to_cpu": round(cpu / mine, 3)} if mine and cpu else {})


def _ended(account: _Account) -> tuple[str, str] | None:
    outcome = account.outcome
    if outcome.ended == "timeout":
        return "hung", f"not done after {outcome.seconds:.0f} s, while {outcome.reached}"
    if outcome.ended == "memory":
        return "memory", f"took {outcome.peak / 1e9:.1f} GB, while {outcome.reached}"
    if outcome.code < 0:
        name = signal.Signals(-outcome.code).name
        return "crashed", f"ended by {name}, while {outcome.reached}"
    if outcome.code and not account.said:
        last = next((line for line in reversed(outcome.said.splitlines()) if line.strip()), "")
        return (
            "crashed",
            f"exit status {outcome.code}, while {outcome.reached}: {last.strip()[:200]}",
        )
    if not outcome.code and not account.said and not list(outcome.find("done")):
        return "crashed", f"ended with status 0, but not done: while {outcome.reached}"
    return None


def _refused(account: _Account) -> tuple[str, str] | None:
    if not account.said:
        return None
    code, reached = account.outcome.code, account.outcome.reached
    said = account.said[0][:200]
    reason = f"the compiler gave up (exit status {code}), while {reached}: {said}"
    faults = [fault.line() for fault in read_failures(account.outcome.said)]
    return "refused", "; ".join([reason, *faults[:3]])


def _numbers(account: _Account) -> tuple[str, str] | None:
    if (lost := _lost(account)) is not None:
        return lost
    units = account.units
    for name in (units, "soak"):
        found = account.outputs(name)
        for output, wanted in account.expected.items():
            if output not in found or found[output].size != wanted.size:
                return "numbers", f"{output!r} is missing, or of another size, on {units}"
            a, b = (np.asarray(x, np.float64).ravel() for x in (found[output], wanted))
            bad = ~np.isfinite(a)
            if bad.any() and np.isfinite(b).all():
                return (
                    "numbers",
                    f"{output!r} has {bad.sum():,} values that are no numbers ({units})",
                )
            cosine = _cosine(a, b)
            if not cosine >= COSINE:
                if name == "soak":
                    continue
                text = f"cosine {cosine:.3f} to the executor's, at least {COSINE} expected"
                return "numbers", f"{output!r} on {units}: {text}"
    return None


def tokens_axis(shape: Sequence[int | None]) -> int:
    """The axis of tokens of a cache by rows (n, K, S, D), or by columns (n, K*D, 1, S)."""
    return 3 if shape[2] == 1 else 2


def tokens_at(shape: Sequence[int | None], first: int, last: int) -> tuple[slice, ...]:
    """The index of the tokens from `first` on up to `last` in a cache of this shape."""
    return (*(slice(None),) * tokens_axis(shape), slice(first, last))


def lost_write(
    found: dict[str, np.ndarray], rows: dict[str, np.ndarray]
) -> tuple[str, str] | None:
    """A state that lost, between two calls, what one of them wrote: its name, and "first" or
    "second", or "" where it was not read back; None if all hold everything.

    found: the states (n, K, S, D). rows: what the executor's hold of two calls, (n, K, 2T, D).
    """
    for name, wanted in rows.items():
        T = wanted.shape[tokens_axis(wanted.shape)] // 2
        if name not in found:
            return name, ""
        for call, at in (("first", 0), ("second", T)):
            where = tokens_at(wanted.shape, at, at + T)
            a, b = (np.asarray(x[where], np.float64).ravel() for x in (found[name], wanted))
            if not (np.isfinite(a).all() and _cosine(a, b) >= COSINE):
                return name, call
    return None


def _lost(account: _Account) -> tuple[str, str] | None:
    lost = lost_write(account.outputs("held"), account.rows)
    if lost is None:
        return None
    name, call = lost
    if not call:
        return "numbers", f"state {name!r} was not read back"
    return (
        "numbers",
        f"state {name!r} does not hold after two calls what the {call} one wrote "
        f"({account.units}); convert with --state-write select, or --kv host (claim state-slice)",
    )


def _elsewhere(account: _Account) -> tuple[str, str] | None:
    planned = account.plan.ane_share
    if planned is None:
        return "elsewhere", "Core ML's plan says of no op where it runs"
    if planned >= RESIDENT:
        return None
    dear = "; ".join(account.plan.outside())
    return "elsewhere", f"{planned:.0%} of the estimated time is planned on the ANE: {dear}"


def _silent(account: _Account) -> tuple[str, str] | None:
    """Silent fallback: equal bits and equal time mean the same device, since another device would
    round differently and take another time."""
    units, predicted = account.units, account.outcome.find("predicted")
    times = {event["units"]: event["median"] for event in predicted}
    mine = account.outputs(units)
    for other, seconds in times.items():
        alike = abs(seconds - times[units]) <= ALIKE * seconds
        theirs = account.outputs(other)
        same = mine.keys() <= theirs.keys() and all(
            np.array_equal(mine[name], theirs[name]) for name in mine
        )
        if other != units and alike and same:
            speed = f"{times[units] * 1e3:.3g} ms against {seconds * 1e3:.3g} ms"
            return (
                "silent",
                f"planned on the ANE, but results to the bit and speed ({speed}) are "
                f"those of {other}",
            )
    return None


def _soaked(account: _Account) -> tuple[str, str] | None:
    events = list(account.outcome.find("soak"))
    held = [event["resident"] for event in events if event.get("resident")]
    late = held[len(held) // 5 :]
    if len(late) > 1 and late[-1] - late[0] > LEAK:
        grown, calls = late[-1] - late[0], events[-1]["done"] - events[len(held) // 5]["done"]
        return "leaking", f"{grown / 1e6:.0f} MB more after {calls} predictions"
    first, last = account.outputs(account.units), account.outputs("soak")
    for name in first:
        a, b = (np.asarray(x[name], np.float64).ravel() for x in (last, first))
        if not _cosine(a, b) >= COSINE:
            done = events[-1]["done"]
            return "drifting", f"{name!r} has other numbers after {done} equal predictions"
    return None


#: The checks, in order; each returns a verdict and a reason, or None.
CHECKS = (_ended, _refused, _numbers, _elsewhere, _silent, _soaked)


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Cosine of two arrays, without infinities and NaN; if one is all zero, 1 for equal arrays."""
    keep = np.isfinite(a) & np.isfinite(b)
    a, b = a[keep], b[keep]
    length = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum() / length) if length else float(np.array_equal(a, b))
