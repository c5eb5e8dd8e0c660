"""Opens model files in a process with a limit of memory, and says what came of each.

An error that is none of this library's is a finding; so is one of more than a line, or of endless
length.

    python _judge.py        then paths on standard input; a line of JSON for each
"""

from contextlib import suppress
import json
import os
from pathlib import Path
import resource
import selectors
import subprocess
import sys
import time
import traceback

from ane_book.errors import AneBookError
from ane_book.models import read_config
from ane_book.weights import open_source
import torch  # noqa: F401 - `safetensors` would import it when the limit holds

TIMEOUT = 30.0  # seconds that a case may take, most of them for a machine that is busy
STARTUP = 120.0
MEMORY = 1 << 29  # bytes beyond what the process has once everything is imported


def check(path: Path) -> None:
    """All that a conversion reads of a source."""
    source = open_source(path)
    read_config(source.config())
    for name in source.names():
        source.tensor(name)
    source.fingerprint()
    source.tokenizer()


def judge(path: Path) -> dict:
    """The outcome of one file: "ran", the name of an error, or "finding"; with seconds."""
    started = time.perf_counter()
    try:
        check(path)
        outcome, message = "ran", ""
    except AneBookError as error:
        outcome, message = type(error).__name__, str(error)
        if str(path) not in message or "\n" in message or len(message) > 2010:
            outcome, message = "finding", f"no clean error: {message[:3000]}"
    except BaseException as error:  # a panic of Rust is no Exception
        outcome = "finding"
        message = "".join(traceback.format_exception(error))[-3000:]
    seconds = round(time.perf_counter() - started, 3)
    return {"outcome": outcome, "message": message, "seconds": seconds}


class Judge:
    """The child process; started anew when a case has ended it."""

    def __init__(self):
        self.process: subprocess.Popen | None = None

    def __call__(self, path: Path, seconds: float = TIMEOUT) -> dict:
        """What came of opening `path`."""
        if self.process is None:
            self._start()
        with suppress(BrokenPipeError):  # it died meanwhile, and the answer will say so
            print(json.dumps(str(path)), file=self.process.stdin, flush=True)
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            answer = self.process.stdout.readline() if selector.select(seconds) else None
        if answer:
            return json.loads(answer)
        code = self.stop()
        what = f"hang: more than {seconds:g} s" if answer is None else f"crash: exit code {code}"
        return {"outcome": "finding", "message": what, "seconds": seconds}

    def _start(self) -> None:
        script = Path(__file__)
        self.process = subprocess.Popen(
            [sys.executable, str(script)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        if self(Path("/nowhere"), STARTUP)["outcome"] != "WeightsNotFound":
            raise RuntimeError(f"{script} does not run: run it by hand to see why")

    def stop(self) -> int:
        """End the process; its exit code, where it had ended itself."""
        process, self.process = self.process, None
        if process is None:
            return 0
        for stream in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):
                stream.close()
        try:
            return process.wait(1)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def main() -> None:
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)  # of its children each sets a limit itself
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, most))
    for line in sys.stdin:
        print(json.dumps(judge(Path(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
