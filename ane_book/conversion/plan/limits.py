"""What is said about the size of a program on the Neural Engine, as data: value, grade, source.

Nobody at Apple has said any of it, and no two sources agree, so nothing here is enforced: a plan
that touches one says so. No machine of this project has measured them.

Grades: "measured" by the source named, on its own machine; "claimed" by it without figures.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = ["AXIS", "CALLS", "LOADED", "SMALL", "WEIGHTS", "Limit"]


@dataclass(frozen=True)
class Limit:
    """A bound, what is said to happen beyond it, how sure one may be, and who says so."""

    value: int
    says: str
    grade: Literal["measured", "claimed"]
    source: str

    def note(self, where: str) -> str:
        """One line of a plan: what of it touches the limit, and the limit with its evidence."""
        return f"{where}: {self.says} ({self.grade}: {self.source})"


#: Bytes of weights in one program, from below.
WEIGHTS = (
    Limit(
        250_000_000,
        "over 250 MB the compiler is said to end in error -14; the same authors' journal has "
        "shards of 0.77 to 2.0 GB wholly on the engine",
        "claimed",
        "videlalvaro/ane-book, law 4",
    ),
    Limit(
        1_000_000_000,
        "over 1 GB a file is not for iPhones, where programs of 1.0 to 1.4 GB go to the GPU "
        "without a word",
        "claimed",
        "ANEMLL's and CoreML-LLM's documentation",
    ),
    Limit(
        2_015_800_000,
        "over about 2 GB a Mac runs it on the CPU: 2,015.8 MB was wholly on the engine, 2.3 GB "
        "not at all",
        "measured",
        "videlalvaro/ane-book, Phi-4-mini, M4 Max; ANEForge cuts at 2 GB",
    ),
)

SMALL = Limit(
    14_000_000,
    "under about 14 MB of weights a program stays on the CPU; one of 19 MB was on the engine",
    "measured",
    "videlalvaro/ane-book, experiment 27",
)

LOADED = Limit(
    3_000_000_000,
    "with about 3 GB of programs loaded in one process, loading more ended in error -14",
    "measured",
    "videlalvaro/ane-book, experiments 28 and 34",
)

#: The longest axis of a tensor, from below.
AXIS = (
    Limit(
        16_384,
        "converters cut axes over 16,384",
        "claimed",
        "ANEMLL, 0seba/coremlmodels; a depth of up to 16,384 measured in larql, pull request 312",
    ),
    Limit(
        65_536,
        "an axis over 65,536 is refused by the engine's compiler",
        "measured",
        "ANEForge, op-quirks; maderix/ANE, pull request 26",
    ),
)

CALLS = Limit(
    100,
    "a call through Core ML takes 0.1 to 0.23 ms before any work is done",
    "measured",
    "aosama/astronomical, issue 540",
)
