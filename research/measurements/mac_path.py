"""Which lines of the Mac's half run where no Mac is: of the modules below, by the tests below.

    python research/measurements/mac_path.py

Every process that the tests start is traced, and each line is written down when it first runs, so
that those of a child that is killed count too. Results: research/measurements/mac_path.json, which
`book/reports.md` shows. A line counts if Python has code for it; those that only a type checker
reads do not.
"""

import ast
from collections.abc import Iterator
import os
from pathlib import Path
import subprocess
import sys
import tempfile
from types import CodeType

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

from _common import record

NAME = "mac_path"
MAC = "mlprogram/src/mlprogram/ane/mac"
MODULES = (
    *(f"{MAC}/{name}.py" for name in ("child", "compiler", "plan", "probe", "residency")),
    f"{MAC}/verdict.py",
    *(f"{MAC}/row/{name}.py" for name in ("__init__", "form", "measure", "packages")),
    "mlprogram/src/mlprogram/cli/residency.py",
    "mlprogram/src/mlprogram/cli/row.py",
    "mlprogram/src/mlprogram/machine.py",
    "ane_book/runtime/backends.py",
    "ane_book/evidence/residency.py",
    "ane_book/cli/residency.py",
    "ane_book/device.py",
)
WHOLE = "tests/evidence/test_as_a_mac.py"  # the commands, as on a Mac
TESTS = (
    "tests/ane/mac/test_residency.py",
    "tests/ane/mac/test_coreml_plan.py",
    "tests/ane/mac/test_compiler_lines.py",
    "tests/ane/mac/test_played_mac.py",
    "tests/ane/mac/test_row.py",
    "tests/ane/mac/test_row_form.py",
    "tests/evidence/test_residency_of_bundles.py",
    "tests/evidence/test_experiments.py",
    "tests/runtime/test_backends.py",
)

#: Every call whose answer a Mac alone can give; what gives one here; and what that leaves open.
PLAYED = (
    {
        "call": "coremltools.models.utils.compile_model",
        "here": "the executor writes a copy",
        "open": "what Core ML's compiler refuses, and how long it takes",
    },
    {
        "call": "CompiledMLModel(path, ComputeUnit[units], function_name)",
        "here": "the executor opens the function, whatever the units are",
        "open": "whether the engine takes it, for how long it compiles and what memory it needs; "
        "whether compute units are obeyed",
    },
    {
        "call": "CompiledMLModel.predict",
        "here": "the executor computes; for the engine its outputs are scaled by 1.001",
        "open": "the engine's numbers, times and crashes",
    },
    {
        "call": "CompiledMLModel.make_state",
        "here": "a state of the executor",
        "open": "whether one function's state serves another's, and keeps what was written",
    },
    {
        "call": "MLState.read_state(name)",
        "here": "the executor's state, as float32",
        "open": "whether it gives what the program would read",
    },
    {
        "call": "anemon --json --interval 1 --count 2",
        "here": "a script of that name, with fields that its README names",
        "open": "what it gives without root, and on which chips",
    },
    {
        "call": "MLComputePlan.load_from_path",
        "here": "coremltools' own records, filled from an M4's plan, or with all ops on the engine",
        "open": "the plan; the name under which it has a function; ops inside of blocks",
    },
    {
        "call": "sysctl -n kern.osversion, machdep.cpu.brand_string, kern.hv_vmm_present",
        "here": "a script of that name, with an M4's answers",
        "open": "whether a given Mac has these names",
    },
    {
        "call": "platform.mac_ver",
        "here": "26.1",
        "open": "nothing: it is Python's",
    },
    {
        "call": "ps -o rss= -p PID",
        "here": "Linux' ps, which has the same options",
        "open": "that Apple's compiler service is no child of ours: its memory is not counted, and "
        "it may go on after a child was killed",
    },
)

#: In a folder on PYTHONPATH, Python runs this at its start.
TRACER = """
import os, sys, threading
wanted = dict.fromkeys(os.environ["TRACED"].split(os.pathsep))
lines = os.open(os.environ["TRACED_INTO"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
seen = set()

def trace(frame, event, _):
    file = frame.f_code.co_filename
    if file not in wanted:
        return None
    found = file, frame.f_lineno
    if found not in seen:
        seen.add(found)
        os.write(lines, f"{file}:{frame.f_lineno}\\n".encode())
    return trace

sys.settrace(trace)
threading.settrace(trace)
"""


def lines_of(source: str) -> set[int]:
    """The lines that Python has code for and may run."""
    tree = ast.parse(source)
    unread = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            unread |= {line for one in node.body for line in _span(one)}
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            unread |= _span(node)  # a docstring, or ...
    code = compile(tree, "", "exec")
    return {line for one in _codes(code) for *_, line in one.co_lines() if line} - unread


def _span(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def traced(tests: tuple[str, ...]) -> dict[str, set[int]]:
    """The lines that ran, by module."""
    paths = {str(ROOT / name): name for name in MODULES}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(TRACER)
        into = Path(folder) / "lines"
        search = [folder, str(ROOT / "mlprogram" / "src"), str(ROOT)]
        environment = os.environ | {
            "TRACED": os.pathsep.join(paths),
            "TRACED_INTO": str(into),
            "PYTHONPATH": os.pathsep.join(search),
        }
        command = [sys.executable, "-m", "pytest", "-q", "--long", "all", *tests]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
        if done.returncode:
            raise SystemExit("a test failed, so what ran says little")
        found: dict[str, set[int]] = {name: set() for name in MODULES}
        for line in into.read_text().splitlines():
            path, _, number = line.rpartition(":")
            found[paths[path]].add(int(number))
    return found


def main() -> None:
    before, whole = traced(TESTS), traced((WHOLE,))
    rows = {}
    for name in MODULES:
        source = (ROOT / name).read_text("utf-8")
        has, text = lines_of(source), source.splitlines()
        ran = before[name] | whole[name]
        rows[name] = {
            "lines": len(has),
            "without_whole_commands": len(has & before[name]),
            "whole_commands": len(has & whole[name]),
            "run": len(has & ran),
            "left": [text[line - 1].strip() for line in sorted(has - ran)],
        }
        print(name, {key: value for key, value in rows[name].items() if key != "left"})
    keys = ("lines", "without_whole_commands", "run")
    total = {key: sum(row[key] for row in rows.values()) for key in keys}
    record(NAME, {"tests": [*TESTS, WHOLE], "all": total, "modules": rows, "played": PLAYED})


if __name__ == "__main__":
    main()
