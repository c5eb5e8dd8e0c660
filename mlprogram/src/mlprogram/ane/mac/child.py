"""Run what may crash, hang or take all memory (Core ML compiling for the ANE) in a child process.

Loading a model for the engine has killed the process that did it (coremltools #2758), has hung
(coremltools #2660; half an hour on a machine without an engine: soniqo/speech-swift #286) and has
taken 11.7 GB for one convolution (M6 study, notes/coreml_dispatch.md). The child appends its
results to a file as lines of JSON, so those from before a crash are not lost.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
import json
import os
from pathlib import Path
import signal
import subprocess
import sys
import time

from mlprogram.machine import memory_bytes

PROBE = [sys.executable, "-m", "mlprogram.ane.mac.probe"]

PERIOD = 0.05  # seconds between two looks at a child
MOST_TEXT = 200_000  # the last characters of a child's output that are kept
MEMORY = 0.8  # the child's share of the machine's memory, without Apple's compiler service
FOLDER = "MLPROGRAM_FOLDER"  # the environment variable with the child's folder
EVENTS = "events.jsonl"  # the file in that folder with its results


@dataclass(frozen=True)
class Outcome:
    """How a child ended, and what it reported.

    ended: "exit", or the limit that it was killed for: "timeout" or "memory". code: its exit
    status, negative for a signal. events: what it passed to `tell`, in order. said: its stderr and
    stdout. peak: the most resident bytes that were observed.
    """

    ended: str
    code: int
    events: list[dict] = field(default_factory=list)
    said: str = ""
    seconds: float = 0.0
    peak: int = 0

    def find(self, step: str) -> Iterator[dict]:
        """The events with this `step`."""
        return (event for event in self.events if event.get("step") == step)

    @property
    def reached(self) -> str:
        """What it was doing when it ended, in words."""
        return self.events[-1].get("next", "the end") if self.events else "its start"


def ask(
    request: dict,
    folder: Path,
    timeout: float,
    memory: int | None = None,
    command: Sequence[str] | None = None,
) -> Outcome:
    """`run` the probe, or `command`, with a file that holds the request as its last argument."""
    file = folder / "request.json"
    file.write_text(json.dumps(request))
    return run([*(command or PROBE), str(file)], folder, timeout, memory)


def run(command: list[str], folder: Path, timeout: float, memory: int | None = None) -> Outcome:
    """Run a command until it ends, or exceeds its time (seconds) or memory (bytes).

    memory: by default four fifths of the machine's. folder: where `tell` writes in the child.
    Processes that the command started are killed with it.
    """
    memory = memory or int(MEMORY * (memory_bytes() or 16 << 30))
    said = folder / "said.txt"
    environment = os.environ | {FOLDER: str(folder)}
    started, peak, ended = time.monotonic(), 0, "exit"
    with said.open("wb") as stream:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            while child.poll() is None:
                peak = max(peak, resident_bytes(child.pid) or 0)
                if time.monotonic() - started > timeout:
                    ended = "timeout"
                elif peak > memory:
                    ended = "memory"
                if ended != "exit":
                    break
                time.sleep(PERIOD)
        finally:
            _end(child)
    seconds = time.monotonic() - started
    text = said.read_text("utf-8", errors="replace")[-MOST_TEXT:]
    events = list(_lines(folder / EVENTS))
    return Outcome(ended, child.returncode, events, text, seconds, peak)


def own_folder() -> Path:
    """Called in a child: its folder."""
    return Path(os.environ[FOLDER])


def tell(step: str, then: str, **facts) -> None:
    """Called in a child: report the result of a step, and what comes next."""
    with (own_folder() / EVENTS).open("a", encoding="utf-8") as events:
        events.write(json.dumps({"step": step, "next": then} | facts) + "\n")


def _end(child: subprocess.Popen) -> None:
    """Kill a child and all processes that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _lines(path: Path) -> Iterator[dict]:
    """The complete lines of a file of events; a child that died may leave half a line."""
    if not path.exists():
        return
    for line in path.read_text("utf-8", errors="replace").splitlines():
        with suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict):
                yield event


def resident_bytes(pid: int | None = None) -> int | None:
    """The resident memory of a process, by default this one; None if the system does not say."""
    pid = pid or os.getpid()
    status = Path(f"/proc/{pid}/statm")
    with suppress(OSError, ValueError, IndexError):
        if status.exists():
            return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        command = ["ps", "-o", "rss=", "-p", str(pid)]
        return int(subprocess.run(command, capture_output=True, check=False).stdout) * 1024
    return None
