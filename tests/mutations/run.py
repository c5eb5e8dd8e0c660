"""Put faults into the library, one at a time, and see which test finds each.

    make mutations                       40 faults -> research/measurements/mutations.json
    python tests/mutations/run.py --only cold-draws-nothing
                                         some of them anew; what is known of the others stays

Each fault of `faults.toml` goes into a checkout of HEAD that is made for it, with a cache of its
own, which has compiled kernels at most. Test files run until a test fails, those nearest to the
fault first: the quick suite, and the long tests where that finds nothing. A test that fails without
the fault as well finds nothing, and is passed over. No site is built, so tests of its pages are
skipped; how the sources are written is not tested, for a slip of the hand need not be ugly.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
import json
import os
from pathlib import Path
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

from mlprogram.machine import cache_folder

ROOT = Path(__file__).resolve().parents[2]
FAULTS = tomllib.loads(Path(__file__).with_name("faults.toml").read_text("utf-8"))
RECORD = ROOT / "research" / "measurements" / "mutations.json"
SUITES = {"quick": [], "long": ["-m", "long", "--long", "all"]}
LEFT_OUT = {"test_project.py"}
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


@contextmanager
def checkout(fault: dict | None = None) -> Iterator[Path]:
    """A checkout of HEAD with a fault in it, or with none."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "checkout"
        git("worktree", "add", "--quiet", "--detach", str(root), "HEAD")
        if (kernels := cache_folder() / "kernels").is_dir():  # of these sources, by their names
            shutil.copytree(kernels, Path(folder) / "cache" / "kernels")
        try:
            if fault:
                sound = (root / fault["file"]).read_text("utf-8")
                if sound.count(fault["before"]) != 1:
                    raise ValueError(f"{fault['file']}: a change of it carries its fault along")
                faulty = sound.replace(fault["before"], fault["after"])
                (root / fault["file"]).write_text(faulty, "utf-8")
            yield root
        finally:
            git("worktree", "remove", "--force", str(root))


def failing(root: Path, *arguments: str) -> list[str]:
    """Run pytest in a checkout: the tests that fail, or the one that hangs."""
    command = [sys.executable, "-m", "pytest", "-v", "--tb=no", "-p", "no:cacheprovider"]
    cache = str(root.parent / "cache")
    folders = ("mlprogram/src", "ane_serve/src", "families/src", "book", "")
    own = {"ANE_BOOK_CACHE": cache, "MLPROGRAM_CACHE": cache}
    own["PYTHONPATH"] = os.pathsep.join(str(root / folder) for folder in folders)
    environment = os.environ | own | {"OMP_NUM_THREADS": "1", "COLUMNS": "1000"}
    with tempfile.TemporaryFile("w+") as said:
        try:
            code = subprocess.run(
                [*command, *arguments], cwd=root, env=environment, stdout=said,
                stderr=subprocess.STDOUT, timeout=LIMIT, check=False,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            code = 1
        said.seek(0)
        text = said.read()
    if code in (0, 5):  # 5: no test of this suite
        return []
    failed = re.findall(r"^(?:FAILED|ERROR) (tests/.*?\.py(?:::.*?)?)(?: - .*)?$", text, re.M)
    begun = re.findall(r"^(tests/\S+\.py::\S+)", text, re.M)
    if not failed and not begun:
        raise RuntimeError(f"pytest ended with code {code}: {text[-2000:]}")
    return failed or begun[-1:]


def tried(name: str, passed_over: set[str]) -> dict:
    """What finds a fault: suite, test, and how many files were looked through before."""
    fault, left = FAULTS[name], [f"--deselect={test}" for test in sorted(passed_over)]
    row = {"file": fault["file"], "goes wrong": fault["goes_wrong"], "from": fault["from"]}
    day, commit = git("log", "-1", "--format=%cs %h", "--abbrev=8").split()
    row |= {"date": day, "commit": commit, "found by": None, "test": None}
    with checkout(fault) as root:
        files = ordered(fault, root)
        for suite, options in SUITES.items():
            for some in (files[:2], files[2:8], files[8:]):  # to read all of them takes a minute
                if failed := failing(root, "-x", *options, *left, *some):
                    before = files.index(failed[0].partition("::")[0])
                    return row | {"found by": suite, "test": failed[0], "files before": before}
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description="Faults put in, and the tests that find them.")
    parser.add_argument("--only", nargs="+", choices=FAULTS, metavar="NAME", help="these faults")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="at a time")
    options = parser.parse_args()
    known = json.loads(RECORD.read_text())["faults"] if RECORD.exists() else {}
    todo, passed_over = options.only or list(FAULTS), set()
    with ThreadPoolExecutor(options.jobs) as pool:
        while todo:
            running = {pool.submit(tried, name, passed_over): name for name in todo}
            for done in as_completed(running):
                name = running[done]
                known[name] = row = done.result()
                print(f"{name:32}{row['found by'] or 'NOTHING':9}{row['test'] or ''}", flush=True)
                write(known)
            with checkout() as root:
                passed_over |= {*failing(root, *sorted({known[n]["test"] for n in todo} - {None}))}
            todo = [name for name in todo if known[name]["test"] in passed_over]
    record = write(known)
    print_table(record)
    return 1 if record["found by"]["nothing"] else 0


def write(known: dict) -> dict:
    """Write the record of what is known of the faults, in their order."""
    rows = {name: known[name] for name in FAULTS if name in known}
    found = [row["found by"] for row in rows.values()]
    counts = {suite: found.count(suite) for suite in SUITES} | {"nothing": found.count(None)}
    record = {"seeded": len(rows), "found by": counts, "faults": rows}
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    return record


def print_table(record: dict) -> None:
    for name, row in record["faults"].items():
        after = f" after {row['files before']} files" if row.get("files before") else ""
        print(f"{name:32}{row['from']:10}{row['found by'] or 'NOT FOUND':10}{row['test']}{after}")
    print(f"{record['found by']}; written: research/measurements/{RECORD.name}")


if __name__ == "__main__":
    sys.exit(main())
