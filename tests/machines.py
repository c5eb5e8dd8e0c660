"""Run the two commands on machines of other kinds, and write down on which of them they hold.

    make machines                                 their quick parts, on every kind: an hour
    make machines KINDS="umask no-network"        on some; the other rows stay as they were
    python tests/machines.py --whole              `make book` and `make test` as they are: a day

Each kind is made of this machine (`_kinds.py`): a clone of what is committed, a HOME in which
nothing is yet, and the real `make`, called through something that takes away a core, the network or
a compiler. Where the kind has to do with set-up, a clone of its own is set up on it; the others
share one. What cannot be made here is "not tried", with the reason. The result goes to
research/measurements/machines.json, and research/machines.md is made of that.
"""

import argparse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
import json
import os
from pathlib import Path
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from _kinds import KINDS, Kind, NotTried, Way
from mlprogram.machine import chip, cores, memory_bytes

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "research" / "measurements" / "machines.json"
PAGE = ROOT / "research" / "machines.md"

ROOM = 15  # GB of disk before a clone is set up: torch's builds for a GPU are large
HANGING = {False: 3 * 3600, True: 24 * 3600}  # seconds for a quick part, and a whole command

#: Between them they read, convert, execute, compile kernels, serve, talk, start processes and keep
#: temporary files.
TESTS = [
    "tests/mlprogram/run/test_executor.py",
    "tests/mlprogram/kernels/test_native.py",
    "tests/mlprogram/foreign/test_foreign_states.py",
    "tests/weights/test_safetensors.py",
    "tests/conversion/test_full_disk.py",
    "tests/runtime/test_session.py",
    "tests/serve/test_serve.py",
    "tests/test_progress.py",
    "tests/cli/test_chat_commands.py",
    "tests/runtime/test_streaming.py",
    "tests/text/test_process.py",
    "tests/mlprogram/test_machine.py",
]
#: The first and the third convert and talk, the second measures time, the last draws.
PAGES = ["index", "ten-minutes", "families", "inside-the-engine"]

PASSED = re.compile(r"PATH|LANG|LC_\w+|TERM|PIP_\w+|SSL_\w+|REQUESTS_CA_BUNDLE|\w+_proxy", re.I)
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
#: What tells most in what a failed command said, before what tells less. Lists of failures count
#: from their first, all else from its last.
LISTS = [r"^(FAILED|ERROR) ", r"\.md, cell \d+, line \d+: "]
ELSE = [r"\b\w*(Error|ERROR): \S", r"(?i)\berror\b", r"\S"]


class Failed(Exception):
    """A command failed; str: which and why, in a line."""


def reason(said: str) -> str:
    """The line of what a failed command said that tells why."""
    lines = [line.strip() for line in COLOURS.sub("", said).splitlines()]
    lines = [line for line in lines if not re.match(r"make(\[\d+\])?: ", line)] or lines
    for pattern in LISTS + ELSE:
        if found := [line for line in lines if re.search(pattern, line)]:
            return found[0 if pattern in LISTS else -1][:240]
    return "it said nothing"


def run(command: list[str], folder: Path, way: Way, variables: dict, limit: float) -> float:
    """Run a command in a folder: the seconds that it took. Raises Failed."""
    began, name = time.monotonic(), " ".join(command[:2])
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [*way.prefix, *command], cwd=folder, env=variables, stdin=subprocess.DEVNULL,
            stdout=said, stderr=subprocess.STDOUT, process_group=0,
        )  # fmt: skip
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"{name}: not done after {limit:.0f} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        said.seek(0)
        text = said.read().decode(errors="replace")
    if process.returncode:
        print(text[-6000:], file=sys.stderr, flush=True)
        raise Failed(f"{name}: {reason(text)}")
    return time.monotonic() - began


class Machines:
    """What runs on kinds of machine, in clones that are made in a folder and set up once."""

    def __init__(self, folder: Path, whole: bool):
        self._folder, self._whole, self._limit = folder, whole, HANGING[whole]
        self._made: set[str] = set()
        self._moment = moment()

    def row(self, name: str) -> dict:
        """What the record says of a kind."""
        seconds: dict[str, float] = {}
        row = {"name": name, "words": KINDS[name].words, "result": "holds", "reason": None}
        try:
            self._run(name, KINDS[name], seconds)
        except (Failed, NotTried) as error:
            result = "fails" if isinstance(error, Failed) else "not tried"
            row |= {"result": result, "reason": str(error)}
        finally:
            for folder in self._folder.glob(f"* of {name}"):
                shutil.rmtree(folder, ignore_errors=True)  # what was converted into its HOME
        rounded = {word: round(taken) for word, taken in seconds.items()}
        return row | {"seconds": rounded, "whole": self._whole} | self._moment

    def _run(self, name: str, kind: Kind, seconds: dict[str, float]) -> None:
        with kind.make(self._folder) as way:
            if subprocess.run([*way.prefix, "true"], capture_output=True).returncode:
                raise NotTried(f"`{' '.join(way.prefix)}` does not work here")
            clone = self._clone(kind.clone, way if kind.clone != "usual" else Way(), seconds)
            other = self._clone("usual", Way(), {}) if way.beside else None
            variables = self._environment(name, way)
            for word, command in self._commands(way).items():
                if word == "book":
                    for folder in filter(None, (clone, other)):
                        shutil.rmtree(folder / "_build", ignore_errors=True)
                run_in = partial(run, command, way=way, variables=variables, limit=self._limit)
                with ThreadPoolExecutor() as pool:
                    beside = pool.submit(run_in, folder=other) if other else None
                    seconds[word] = run_in(folder=clone)
                    if beside:
                        seconds[word] = max(seconds[word], beside.result())

    def _commands(self, way: Way) -> dict[str, list[str]]:
        """The two, or their quick parts: word -> command."""
        if self._whole:
            return {
                "book": ["make", "book"],
                "test": ["make", "test", f"PYTEST_FLAGS={way.pytest}"],
            }
        tests = " ".join([*TESTS, way.pytest])
        return {"book": ["make", "book"], "unit": ["make", "unit", f"PYTEST_FLAGS={tests}"]}

    def _environment(self, name: str, way: Way) -> dict[str, str]:
        """The variables of a user who has just come: little of ours, and an empty HOME."""
        home, temporary = (self._folder / f"{what} of {name}" for what in ("home", "tmp"))
        for folder in (home, temporary):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            if way.owner is not None:
                os.chown(folder, way.owner, way.owner)
        passed = {name: value for name, value in os.environ.items() if PASSED.fullmatch(name)}
        own = {"HOME": home, "TMPDIR": temporary, "PIP_CACHE_DIR": self._folder / "pip"}
        every = passed | {key: str(path) for key, path in own.items()} | way.environment
        return {name: value for name, value in every.items() if value is not None}

    def _clone(self, name: str, way: Way, seconds: dict[str, float]) -> Path:
        """A clone that is set up, and the seconds of that; one that is of this run already."""
        clone, variables = self._folder / name, self._environment(f"set-up of {name}", way)
        if name in self._made:
            return clone
        if shutil.disk_usage(self._folder).free < ROOM * 1e9:
            raise NotTried(f"a set-up wants {ROOM} GB of disk")
        installed, kept = clone / ".venv", self._folder / f"environment of {name}"
        if installed.exists():  # of an earlier run in this folder; `make` brings it up to date
            installed.replace(kept)
        shutil.rmtree(clone, ignore_errors=True)
        by = way if way.owner is None else Way()  # git does not read others' repositories
        run(["git", "clone", "--quiet", str(ROOT), str(clone)], self._folder, by, variables, 600)
        run(["git", "checkout", "--quiet", self._moment["commit"]], clone, by, variables, 600)
        word = "set-up"
        if kept.exists():
            kept.replace(installed)
            word = "set-up renewed"
        if not self._whole:
            chapters = [{"file": page} for page in PAGES[1:]]
            parts = [{"caption": "Quick", "chapters": chapters}]
            toc = {"format": "jb-book", "root": PAGES[0], "parts": parts}
            (clone / "book" / "_toc.yml").write_text(json.dumps(toc))  # which is YAML too
        if way.owner is not None:
            run(["chown", "-R", f"{way.owner}", str(clone)], self._folder, Way(), variables, 600)
        command = ["make", ".venv/.installed", f"PYTHON={way.python}"]
        seconds[word] = run(command, clone, way, variables, self._limit)
        self._made.add(name)
        return clone


def moment() -> dict[str, str]:
    """The day, and the commit that is cloned."""
    git = ["git", "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {"date": datetime.now(UTC).date().isoformat(), "commit": commit.strip()}


def machine() -> str:
    memory = (memory_bytes() or 0) / 2**30
    kind = f"{platform.system()}, {platform.machine()}"
    return f"{chip()}, {cores()} cores, {memory:.0f} GB of memory, {kind}"


def page(record: dict) -> str:
    """research/machines.md, of the record."""
    rows = ["| machine | result | minutes | what ran |", "|---|---|---|---|"]
    for row in record["rows"]:
        why = f": {row['reason']}".replace("|", "\\|") if row["reason"] else ""
        minutes = ", ".join(f"{word} {s / 60:.1f}" for word, s in row["seconds"].items())
        what = f"{'whole' if row['whole'] else 'quick parts'} at {row['commit']}, {row['date']}"
        rows.append(f"| {row['words']} | {row['result']}{why} | {minutes} | {what} |")
    results = [row["result"] for row in record["rows"]]
    words = {"holds": "hold", "fails": "fail", "not tried": "could not be tried"}
    counts = ", ".join(f"{results.count(one)} {word}" for one, word in words.items())
    tests, pages = ("\n".join(f"- `{one}`" for one in record[key]) for key in ("tests", "pages"))
    return f"""# Where `make book` and `make test` hold

`make machines` writes this page, of `measurements/machines.json`. It makes kinds of machine out of
one, and runs the two commands on each. "Quick parts" are a few pages and a dozen files of tests,
listed below; "whole" are the two commands as they are.

- the machine: {record["machine"]}, of which all kinds were made
- of {len(results)} kinds, {counts}

{chr(10).join(rows)}

Every run began with an empty HOME. A kind with minutes of set-up was set up on that kind of machine
too, in a clone of its own; "renewed" is an environment of an older commit that was brought up to
date. The others share one, which "this machine as it is" set up. The machine had other work
meanwhile: minutes say nothing of speed.

The quick part of `make book` is these pages:

{pages}

and that of `make unit` these files, at the newest of the commits:

{tests}
"""


def write(rows: list[dict]) -> None:
    """Put these rows into the record, in place of theirs, and write the page anew."""
    old = json.loads(RECORD.read_text())["rows"] if RECORD.exists() else []
    known = {row["name"]: row for row in [*old, *rows]}
    every = [known[name] for name in KINDS if name in known]
    record = {"machine": machine(), "tests": TESTS, "pages": PAGES, "rows": every}
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(page(record), "utf-8")


@contextmanager
def temporary_folder() -> Iterator[str]:
    """One that another user may go through."""
    with tempfile.TemporaryDirectory(prefix="machines-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        yield folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"kinds; all by default: {', '.join(KINDS)}")
    parser.add_argument("--whole", action="store_true", help="the two commands, not quick parts")
    parser.add_argument("--folder", type=Path, help="has the clones, and keeps them")
    options = parser.parse_args()
    names = options.names or [*KINDS]
    if unknown := [name for name in names if name not in KINDS]:
        parser.error(f"no kind of machine is called {unknown[0]!r}; there are {', '.join(KINDS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was begun ends with this
    rows = []
    with ExitStack() as stack:
        folder = options.folder or stack.enter_context(temporary_folder())
        machines = Machines(Path(folder).resolve(), options.whole)
        for number, name in enumerate(names):
            rows.append(machines.row(name))
            write(rows)
            took = sum(rows[-1]["seconds"].values()) / 60
            told = f"{name:14}{rows[-1]['result']:10}{took:6.1f} min  {rows[-1]['reason'] or ''}"
            print(told, flush=True)
            clones = {KINDS[other].clone for other in names[number + 1 :]}
            if not options.folder and KINDS[name].clone not in {"usual", *clones}:
                shutil.rmtree(Path(folder) / KINDS[name].clone)  # its environment has gigabytes
    return int(any(row["result"] == "fails" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
