"""What the engine's compiler said, read out of its lines: what it did, its status, the causes.

    failures = read_failures(text)
    failures[0].line()  # "failed to compile for the engine: CompilationFailure (status 11)"

Core ML has no call that tells this. It prints to stderr, in forms that are documented nowhere.
Those that are read here were reported in public:

    _ANECompiler : ANECCompile() FAILED (11)               apple/coremltools#2247
    failed to load ANE model FILE Error=ANECCompile(FOLDER) FAILED: err=(
        CompilationFailure
    )                                                      apple/coremltools#2247
    Error plan build: -1.                                  apple/coremltools#1106
    Failed to build the model execution plan [...]
    with error code: -14.                                  finnvoor/CoreMLPipelines#4
    ANECCompile(FILE) FAILED: err=(CompilationFailure)     christopherkarani/Espresso#18

None of them names an op, and none says how long it took: `residency` times its loads itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
import re

#: What failed, in words, by what is said of it; where several fit, the first.
STAGES = {
    r"failed to load ANE model": "load for the engine",
    r"ANECCompile\(|MILCompilerForANE": "compile for the engine",
    r"plan build|build the model execution plan": "build the plan",
}
FAILED = re.compile(
    r"ANECCompile\((?P<of>[^)\n]*)\) FAILED"
    r"(?: \((?P<status>-?\d+)\)|:? *err=\((?P<causes>[^)]*)\))?"
)
PLAN = re.compile(
    r"(?:Error plan build|model execution plan[^\n]* with error code): *(?P<status>-?\d+)"
)


@dataclass(frozen=True)
class Failure:
    """One failure. stage: what could not be done, in words. status: the number that was said, or
    None. causes: the compiler's own words, such as CompilationFailure."""

    stage: str
    status: int | None = None
    causes: tuple[str, ...] = ()

    def line(self) -> str:
        """It as a clause."""
        causes = f": {', '.join(self.causes)}" if self.causes else ""
        status = "" if self.status is None else f" (status {self.status})"
        return f"failed to {self.stage}{causes}{status}"


def read_failures(text: str) -> list[Failure]:
    """The faults in what a process printed, each once, in the order in which they were printed."""
    return list(dict.fromkeys(_failures(text)))


def _failures(text: str) -> Iterator[Failure]:
    found = [*FAILED.finditer(text), *PLAN.finditer(text)]
    for one in sorted(found, key=re.Match.start):
        before = text[text.rfind("\n", 0, one.start()) + 1 : one.end()]
        stage = next(words for said, words in STAGES.items() if re.search(said, before))
        groups = one.groupdict()
        causes = re.findall(r"\w+", groups.get("causes") or "")
        status = groups["status"]
        yield Failure(stage, int(status) if status else None, tuple(causes))
