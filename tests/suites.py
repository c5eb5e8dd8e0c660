"""Run each suite where its own distribution is installed, and none that is built on it.

    make suites                            all of them
    python tests/suites.py executor ane    some

A suite gets a new environment in a temporary folder, of this checkout and of constraints.txt, and
runs its quick tests; a line says the minutes of both, and how large the environment is.
"""

import os
from pathlib import Path
import subprocess
import sys
from tempfile import TemporaryDirectory
import time
import venv

ROOT = Path(__file__).resolve().parents[1]
#: name -> what is installed: of this checkout, and tools of its tests; and where they are.
SUITES = {
    "executor": ("./mlprogram", "scipy", "mlprogram fuzz conformance"),
    "ane": ("./mlprogram", "", "ane"),
    "onnx": ("./mlprogram[onnx]", "onnxruntime", "onnx"),
    "coreai": ("./mlprogram[coreai]", "scipy", "coreai"),
    "ane_book": (
        "./mlprogram .[test]", "", "bundle cli conversion evidence models reference runtime sweep "
        "test_host.py test_progress.py text weights",
    ),
    "serve": ("./mlprogram .[test] ./ane_serve[cluster]", "", "serve swift"),
    "book": (
        "./mlprogram .[book,test] ./ane_serve[cluster]", "", "book project research test_extras.py"
    ),
}  # fmt: skip


def run(name: str, folder: Path) -> int:
    """Install a suite in a folder, and run it: pytest's exit code."""
    ours, tools, tests = map(str.split, SUITES[name])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    began, how = time.monotonic(), {"cwd": ROOT, "env": environment}
    venv.create(folder, with_pip=True)
    install = [folder / "bin" / "python", "-m", "pip", "install", "-q", "-c", "constraints.txt"]
    wanted = ["pytest", "pytest-xdist", *tools, *(word for each in ours for word in ("-e", each))]
    subprocess.run([*install, *wanted], check=True, **how)
    size = sum(path.lstat().st_size for path in folder.rglob("*")) / 1e6
    installed = time.monotonic()
    quick = ["-q", "-n", "2", "--dist", "loadfile", "--ignore-glob=tests/book/test_book*"]
    tests = [f"tests/{each}" for each in tests]
    code = subprocess.run([folder / "bin" / "pytest", *quick, *tests], **how).returncode
    minutes = [f"{each / 60:.1f} min" for each in (installed - began, time.monotonic() - installed)]
    print(f"{name}: exit code {code}; {minutes[0]} to install, {minutes[1]} to run; {size:,.0f} MB")
    return code


if __name__ == "__main__":
    codes = []
    for suite in sys.argv[1:] or SUITES:
        with TemporaryDirectory(prefix=f"{suite}-") as place:
            codes.append(run(suite, Path(place)))
    sys.exit(any(codes))
