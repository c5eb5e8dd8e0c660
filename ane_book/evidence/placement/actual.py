"""What Core ML itself plans, on a Mac: `MLComputePlan`, held beside a prediction.

    python -m ane_book.evidence.placement.actual REQUEST.json     # the child, which asks

A child process asks, with the means of `residency`: asking for a plan compiles for the ANE, which
took 212 to 229 s and 11.7 GB for one 16 x 16 convolution (751K's study of the M6,
`notes/coreml_dispatch.md`). Off a Mac nothing can be asked, and that is what is said.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
import json
from pathlib import Path
import sys
import tempfile

from ane_book import device
from ane_book.evidence.placement.placed import Placement

__all__ = ["CoreMLPlan", "ask", "read_plan"]

COMMAND = (sys.executable, "-m", "ane_book.evidence.placement.actual")
UNITS = "CPU_AND_NE"  # as in the graphs whose estimates are published
TIMEOUT = 1800.0  # seconds


@dataclass(frozen=True)
class CoreMLPlan:
    """Core ML's choice of device by the name of an op's first output.

    preferred: "ANE", "CPU" or "GPU". costs: shares of the estimated time. reason: why there is no
    plan.
    """

    preferred: dict[str, str] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    reason: str = ""

    @classmethod
    def of(cls, ops: Iterable[dict]) -> "CoreMLPlan":
        """A plan from the fields of `residency.plan.PlannedOp`; constants have no device."""
        planned = [op for op in ops if op["preferred"] is not None]
        return cls(
            {op["name"]: op["preferred"].upper() for op in planned},
            {op["name"]: op["cost"] for op in planned if op["cost"] is not None},
        )

    def devices(self, placement: Placement) -> list[str]:
        """The planned device of each op, "" where Core ML names none."""
        return [self.preferred.get(placed.op.name, "") for placed in placement.placed]

    def agreement(self, placement: Placement) -> tuple[int, int]:
        """Ops planned as predicted, and all that are planned and predicted for sure."""
        pairs = zip(self.devices(placement), placement.devices, strict=True)
        same = [
            (planned == "ANE") == (predicted == "ANE")
            for planned, predicted in pairs
            if planned and predicted != "depends"
        ]
        return sum(same), len(same)

    def line(self, placement: Placement) -> str:
        """One line for a report."""
        if self.reason:
            return f"actual: unmeasured ({self.reason})"
        same, of = self.agreement(placement)
        planned = [found for found in self.devices(placement) if found]
        return (
            f"actual: {planned.count('ANE'):,} of {len(planned):,} ops planned on the ANE; "
            f"{same:,} of {of:,} as predicted"
        )

    def facts(self, placement: Placement) -> dict:
        """As plain JSON values."""
        if self.reason:
            return {"measured": False, "reason": self.reason}
        same, of = self.agreement(placement)
        return {
            "measured": True,
            "as_predicted": same,
            "compared": of,
            "devices": self.preferred,
            "costs": self.costs,
        }


def read_plan(package: str | Path, function: str) -> CoreMLPlan:
    """Core ML's plan of a function for CPU and Neural Engine, or why there is none."""
    if device.macos_version() is None:
        return CoreMLPlan(reason="needs a Mac")
    from ane_book.evidence.residency import why_not  # which imports torch

    reason = why_not()
    return CoreMLPlan(reason=reason) if reason else ask(package, function)


def ask(
    package: str | Path, function: str, command: Sequence[str] = COMMAND, timeout: float = TIMEOUT
) -> CoreMLPlan:
    """What a child finds out; it may crash, hang or take all memory, and only it is ended."""
    from ane_book.evidence.residency.child import run

    with tempfile.TemporaryDirectory(prefix="ane-book-") as name:
        folder = Path(name)
        request = folder / "request.json"
        request.write_text(json.dumps({"package": str(package), "function": function}))
        outcome = run([*command, str(request)], folder, timeout)
    for event in outcome.find("plan"):
        return CoreMLPlan.of(event["ops"])
    how = {"exit": f"exit code {outcome.code}", "timeout": "out of time", "memory": "out of memory"}
    return CoreMLPlan(reason=f"Core ML did not answer: {how[outcome.ended]} at {outcome.reached}")


def main() -> None:
    """The child: compile, ask, and write what was said."""
    from ane_book.evidence.residency.child import own_folder, tell
    from ane_book.evidence.residency.probe import Probe

    probe = Probe(json.loads(Path(sys.argv[1]).read_text()), own_folder())
    tell("started", "compiling")
    compiled = probe.compile()
    tell("compiled", f"the plan for {UNITS}")
    tell("plan", "the end", ops=[op.fields() for op in probe.plan(compiled, UNITS)])


if __name__ == "__main__":
    main()
