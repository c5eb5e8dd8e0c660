"""Opens and runs damaged packages, one a line of standard input, and says what came of each.

A case is a number; together with the seed it says which package, which damage and which call. What
runs with every shortcut has to give what it gives with none, see `check`. The process has a limit
of memory, so that whoever allocates what a file asks for fails here, and it watches which files are
opened, so that nobody reads outside of the package.

    python _worker.py CORPUS SEED        then numbers on standard input; a line of JSON for each
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
import json
import os
from pathlib import Path
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings

from _mutate import damage
from mlprogram import MLProgram
from mlprogram import inspect as inspect_package
from mlprogram.compare.packages import compare_packages
from mlprogram.errors import MLProgramError
from mlprogram.execute import execute, execution_report
from mlprogram.machine import cache_folder
from mlprogram.package.reader import Package
from mlprogram.run import failures
import numpy as np

MEMORY = 2 << 30  # bytes beyond what the process has once everything is imported
TURNS = 1 << 12  # of loops; the library's own bound, 8 times as many, has a test of its own
LARGE = 1 << 20  # elements of an input that the fuzzer does not make


class Watch:
    """The files that were opened outside of a folder while it looked."""

    #: the interpreter, its packages, this library and its cache, what the C library looks up by
    #: itself, and how much memory the process may have
    EXPECTED = (
        sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]), f"{cache_folder().resolve()}/",
        f"/proc/{os.getpid()}/", "/proc/self/", "/sys/fs/cgroup/",
    )  # fmt: skip

    def __init__(self):
        self.folder: Path | None = None
        self.outside: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple) -> None:
        if event != "open" or self.folder is None or not isinstance(arguments[0], str | bytes):
            return
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if not path.startswith((f"{self.folder}/", *self.EXPECTED)):
            self.outside.append(path)

    @contextmanager
    def over(self, folder: Path) -> Iterator[None]:
        self.folder, self.outside = folder, []
        try:
            yield
        finally:
            self.folder = None


class Corpus:
    """The sound packages, with what each function of them answers to one fixed input."""

    def __init__(self, folder: Path):
        self.paths = sorted(folder.iterdir())
        self.calls: dict[tuple[str, str], tuple[dict, dict]] = {}
        for path in self.paths:
            for name in (package := Package(path)).functions:
                program = MLProgram(package, name)
                inputs = program.random_inputs()
                answer = predict(program, inputs)
                self.calls[path.name, name] = inputs, answer


def run(package_path: Path, name: str, corpus: Corpus, rng: random.Random) -> str:
    """Open a package and call every function: "same" as the sound one answers, or "ran"."""
    inspect_package(package_path)
    package, same = Package(package_path), True
    precision, optimize = rng.choice([("fp16", True), ("fp16", True), ("fp16", False),
                                      ("fp32", True)])  # fmt: skip
    for function in package.functions:
        program = MLProgram(package, function, precision, optimize=optimize)
        inputs, answer = corpus.calls.get((name, function), ({}, None))
        sizes = [np.prod(f.shape, dtype=float) for f in program.features.values()]
        if answer is None or (rng.random() < 0.3 and max(sizes, default=0) < LARGE):
            inputs, answer = program.random_inputs(), None
        found = predict(program, inputs)
        check_again(program, inputs, found)
        if optimize:
            check(program, inputs, found)
        if rng.random() < 0.2:
            for _ in program.trace(inputs, program.make_state()):
                pass
        same = same and answer is not None and equal(found, answer)
    if rng.random() < 0.1 and max(sizes, default=0) < LARGE:  # the tools on what the library runs
        execution_report(execute(package_path))
        compare_packages(package_path)
    return "same" if same else "ran"


def predict(program: MLProgram, inputs: dict) -> dict:
    """The outputs of a function, and the states that it leaves."""
    found = program.predict(inputs, state := program.make_state())
    return found | {f"state {name}": state.read_state(name) for name in program.states}


def check(program: MLProgram, inputs: dict, found: dict) -> None:
    """Raises AssertionError where the plain ops, one by one, give another answer, or none.

    Where numbers are damaged, sums may cancel, and then no answer is better than another: what the
    plain ops give in the other precision says how much of theirs is rounding.
    """
    try:
        plain = predict(program.plain(), inputs)
    except MLProgramError as error:
        raise AssertionError(f"runs with shortcuts only: {error}") from error
    if kinds(found) == kinds(plain) and equal(found, plain):
        return
    try:
        other = predict(program.plain({"fp16": "fp32", "fp32": "fp16"}[program.precision]), inputs)
    except MLProgramError:
        return
    if kinds(found) != kinds(plain) or not equal(found, plain, other):
        raise AssertionError(f"shortcuts give {found}, the plain ops {plain}")


def check_again(program: MLProgram, inputs: dict, found: dict) -> None:
    """Raises AssertionError where the next call gives something else, once an answer was filled."""
    given, kept = deepcopy(inputs), deepcopy(found)
    for value in found.values():
        if isinstance(value, np.ndarray):
            value.fill(1)
    again = predict(program, inputs)
    if not (same(inputs, given) and same(again, kept)):
        raise AssertionError(f"the second call gives {again}, the first one gave {kept}")
    found |= kept


def same(a: object, b: object) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    a, b = np.asarray(a), np.asarray(b)
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def kinds(found: dict) -> dict:
    return {name: getattr(value, "dtype", type(value)) for name, value in found.items()}


def equal(found: dict, answer: dict, other: dict | None = None) -> bool:
    """Whether two answers agree, to 2 % and four times what a third is off."""
    third = answer if other is None else other
    return found.keys() == answer.keys() and all(
        agree(value, answer[key], third[key]) for key, value in found.items()
    )


def agree(a: object, b: object, third: object) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(agree(a[k], b[k], third[k]) for k in a)
    if type(a) is not type(b) or isinstance(a, str):
        return type(a) is type(b) and (a == b or b != third)
    a, b, third = np.asarray(a), np.asarray(b), np.asarray(third)
    if a.shape != b.shape or b.shape != third.shape:
        return False
    a, b, third = (x.astype(np.float64) for x in (a, b, third))
    known = np.isfinite(b) & np.isfinite(third)
    off = np.abs(b[known] - third[known]).max(initial=0)
    near = 0.02 * np.abs(b[known]).max(initial=0) + 4 * off + 1e-6
    alike = (b == third) | (np.isnan(b) & np.isnan(third))  # infinite or NaN in both precisions
    odd = alike & ~np.isfinite(b)
    numbers = np.all(np.abs(a[known] - b[known]) <= near)
    return bool(numbers) and np.array_equal(a[odd], b[odd], equal_nan=True)


def attempt(number: int, seed: int, corpus: Corpus, watch: Watch, folder: Path) -> dict:
    """One case. "finding" is set where something else than an answer or a clear error came."""
    rng = random.Random(f"{seed}/{number}")
    source, other = rng.choice(corpus.paths), rng.choice(corpus.paths)
    package, outside = folder / "case.mlpackage", folder / "outside"
    shutil.copytree(source, package)
    outside.write_bytes(b"secret")
    case = {"case": number, "package": source.stem, "damage": damage(package, other, outside, rng)}
    started = time.perf_counter()
    try:
        with watch.over(package):
            case["outcome"] = run(package, source.name, corpus, rng)
    except MLProgramError as error:
        case["outcome"], case["message"] = type(error).__name__, str(error)
    except BaseException as error:
        case["outcome"] = "finding"
        case["message"] = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    case["seconds"] = round(time.perf_counter() - started, 4)
    if watch.outside:
        case["outcome"], case["message"] = "finding", f"read outside: {watch.outside}"
    return case


def main(folder: str, seed: str) -> None:
    # Answers go to what standard output was; nothing that a library prints may come between.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    failures.MAX_TURNS = TURNS
    warnings.simplefilter("ignore")  # numpy's of overflow and NaN: damaged numbers have them
    corpus, watch = Corpus(Path(folder)), Watch()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    print("ready", file=answers)
    for line in sys.stdin:
        with tempfile.TemporaryDirectory() as scratch:
            case = attempt(int(line), int(seed), corpus, watch, Path(scratch).resolve())
        print(json.dumps(case), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
