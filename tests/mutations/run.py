"""Put faults into the library, one at a time, and see which test finds each.

    make mutations                       40 faults -> research/measurements/mutations.json
    python tests/mutations/run.py --only cold-draws-nothing
                                         some of them anew; what is known of the others stays

Each fault of `faults.toml` goes into a checkout of HEAD that is made for it, with a cache of its
own, empty at first. Test files run until a test fails, those nearest to the fault first: the quick
suite, and the long tests where that finds nothing. A test that fails without the fault as well
finds nothing, and is left out. No site is built, so tests of its pages are skipped; tests of how
the sources are written are left out, for a slip of the hand need not be ugly.
"""

import argparse
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime
import json
import os
from pathlib import Path
import re
import subprocess
import sys
import tempfile
import tomllib

ROOT = Path(__file__).resolve().parents[2]
FAULTS = tomllib.loads(Path(__file__).with_name("faults.toml").read_text("utf-8"))
RECORD = ROOT / "research" / "measurements" / "mutations.json"
SUITES = {"quick": [], "long": ["-m", "long", "--long", "all"]}
LEFT_OUT = {"test_mutations.py", "test_project.py", "test_clock.py"}
LIMIT = 2 * 3600  # seconds of one run, against hanging


def git(*arguments: str) -> str:
    return subprocess.check_output(["git", *arguments], cwd=ROOT, text=True).strip()


def ordered(fault: dict, root: Path) -> list[str]:
    """The test files, those nearest to the fault first: by their names, by what was changed
    together with the faulty file, and by what they speak of."""
    words = [word for word in Path(fault["file"]).with_suffix("").parts if word != "__init__"]
    commits = git("log", "--follow", "--format=%h", "--", fault["file"]).split()
    together: Counter[str] = Counter()
    for files in git("show", "--format=%x00", "--name-only", *commits).split("\0"):
        together.update(dict.fromkeys(files.split(), 1 / (1 + len(files.split()))))

    def distance(path: Path) -> tuple:
        test, text = str(path.relative_to(root)), path.read_text("utf-8")
        shared = words[-1] in test
        said = sum(bool(re.search(rf"\b{word}\b", text)) for word in words[1:])
        return not shared, -together[test], -said, test

    tests = [path for path in (root / "tests").rglob("test_*.py") if path.name not in LEFT_OUT]
    return [str(path.relative_to(root)) for path in sorted(tests, key=distance)]


class Trial:
    """A checkout with a fault in it; `left_out`: tests that fail there without it."""

    def __init__(self, fault: dict, folder: Path):
        self.root, self.cache = folder / "checkout", folder / "cache"
        git("worktree", "add", "--quiet", "--detach", str(self.root), "HEAD")
        self.file, self.left_out = self.root / fault["file"], []
        self.sound = self.file.read_text("utf-8")
        self.faulty = self.sound.replace(fault["before"], fault["after"])
        self.tests = ordered(fault, self.root)

    def first_failure(self, suite: str) -> str | None:
        """The first test that the fault breaks."""
        rest = self.tests
        while rest:
            self.file.write_text(self.faulty, "utf-8")
            left = [f"--deselect={test}" for test in self.left_out]
            test = self.run("-x", *SUITES[suite], *left, *rest)
            if test is None:
                return None
            self.file.write_text(self.sound, "utf-8")
            if self.run(test) is None:
                return test
            self.left_out.append(test)
            rest = rest[rest.index(test.partition("::")[0]) :]
        return None

    def run(self, *arguments: str) -> str | None:
        """Run pytest: the test that fails, or hangs; None where all pass."""
        paths = {"PYTHONPATH": str(self.root), "ANE_BOOK_CACHE": str(self.cache)}
        command = [sys.executable, "-m", "pytest", "-v", "--tb=no", "-p", "no:cacheprovider"]
        environment = os.environ | paths | {"OMP_NUM_THREADS": "1", "COLUMNS": "1000"}
        with tempfile.TemporaryFile("w+") as said:
            try:
                code = subprocess.run(
                    [*command, *arguments], cwd=self.root, env=environment, stdout=said,
                    stderr=subprocess.STDOUT, timeout=LIMIT, check=False,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                code = 1
            said.seek(0)
            text = said.read()
        if code in (0, 5):  # 5: no test of this suite
            return None
        failed = re.findall(r"^(?:FAILED|ERROR) (tests/.*?\.py(?:::.*?)?)(?: - .*)?$", text, re.M)
        begun = re.findall(r"^(tests/\S+\.py::\S+)", text, re.M)
        if not failed and not begun:
            raise RuntimeError(f"pytest ended with code {code}: {text[-2000:]}")
        return failed[0] if failed else begun[-1]


def tried(name: str) -> dict:
    """What finds a fault: suite, test, and how many files were looked through before."""
    fault = FAULTS[name]
    found = {"commit": git("rev-parse", "--short=8", "HEAD"), "found by": None, "test": None}
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(fault, Path(folder))
        try:
            for suite in SUITES:
                if test := trial.first_failure(suite):
                    before = trial.tests.index(test.partition("::")[0])
                    found |= {"found by": suite, "test": test, "files before": before}
                    break
        finally:
            git("worktree", "remove", "--force", str(trial.root))
    about = {"file": fault["file"], "goes wrong": fault["goes_wrong"], "from": fault["from"]}
    date = datetime.now(UTC).date().isoformat()
    return about | {"date": date} | found | {"fails without": trial.left_out}


def main() -> int:
    parser = argparse.ArgumentParser(description="Faults put in, and the tests that find them.")
    parser.add_argument("--only", nargs="+", choices=FAULTS, metavar="NAME", help="these faults")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="at a time")
    options = parser.parse_args()
    known = json.loads(RECORD.read_text())["faults"] if RECORD.exists() else {}
    with ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(tried, name): name for name in options.only or FAULTS}
        for done in as_completed(running):
            name = running[done]
            known[name] = done.result()
            print(f"{name:32}{known[name]['found by'] or 'NOT FOUND':8}{known[name]['test'] or ''}")
            rows = {each: known[each] for each in FAULTS if each in known}
            RECORD.write_text(json.dumps(summary(rows), indent=1, ensure_ascii=False) + "\n")
    print_table(rows)
    return 0 if all(row["found by"] for row in rows.values()) else 1


def summary(rows: dict) -> dict:
    found = [row["found by"] for row in rows.values()]
    counts = {suite: found.count(suite) for suite in SUITES} | {"nothing": found.count(None)}
    return {"faults of": len(FAULTS), "found by": counts, "faults": rows}


def print_table(rows: dict) -> None:
    for name, row in rows.items():
        after = f" after {row['files before']} files" if row.get("files before") else ""
        print(f"{name:32}{row['from']:10}{row['found by'] or 'NOT FOUND':10}{row['test']}{after}")
    print(f"{summary(rows)['found by']}; written: research/measurements/{RECORD.name}")


if __name__ == "__main__":
    sys.exit(main())
