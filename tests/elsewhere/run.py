"""The notebooks as a reader has them: the libraries from wheels, an empty folder, no checkout.

    python tests/elsewhere/run.py                       # all of them, as `make elsewhere` does
    python tests/elsewhere/run.py numbers reports       # some
    python tests/elsewhere/run.py reports --cpu-only    # on a Mac, Core ML on its CPU alone

Prints a line for each notebook with its seconds, then how many ran to their end. All of them take
about as long as the book's own clean run; models are converted into the reader's cache, as always.
The wheels are built of a copy of the sources and installed in an environment of its own, which
borrows every other package from the one that runs this; an editable install there is not seen.
What `ane-book` does not require, and the notebook's first cell does not name, cannot be imported.
"""

import argparse
import json
import os
from pathlib import Path
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv

ROOT = Path(__file__).resolve().parents[2]
PARTS = (
    "ane_book", "ane_serve", "book/ane_book_pages", "families", "mlprogram", "research",
    "swift/tables", "pyproject.toml", "README.md", "LICENSE", "NOTICE",
)  # fmt: skip
DISTRIBUTIONS = {  # and their folders
    "mlprogram": "mlprogram",
    "ane_book": ".",
    "ane_families": "families",
    "ane_serve": "ane_serve",
    "swift_tables": "swift/tables",
}
NOT_REQUIRED = {  # by ane-book: a module, and how the first cell of a notebook names it
    **{name: name for name in ("matplotlib", "onnx", "onnxruntime", "openai", "pytest")},
    **{name: name for name in ("bs4", "jupytext", "myst_nb", "sphinx", "transformers")},
    "ane_families": "ane-families",
    "ane_serve": "ane-serve",
    "mlx_lm": "mlx-lm",
}
LEFT = shutil.ignore_patterns("__pycache__", "*.egg-info")
EXECUTE = """
import sys
from nbclient import NotebookClient
import nbformat

NotebookClient(nbformat.read(sys.argv[1], 4), timeout=1800, kernel_name="python3").execute()
"""


def sources(folder: Path) -> Path:
    """A copy of what distributions are made of, so that nothing is built in the checkout."""
    copy = folder / "sources"
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, copy / part, ignore=LEFT)
        else:
            shutil.copy(source, copy / part)
    return copy


def wheels(folder: Path) -> list[Path]:
    """Build the wheels of all distributions."""
    copy = sources(folder)
    for each in DISTRIBUTIONS.values():
        run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, copy / each])
    shutil.rmtree(copy)
    return sorted(folder.glob("*.whl"))


def environment(folder: Path, cpu_only: bool = False) -> Path:
    """Python of a new environment with the wheels in it."""
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(subprocess.check_output([python, "-c", asked], text=True).strip())
    made = wheels(folder)
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps"]
    run([*install, *made])
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (own / "borrowed.pth").write_text("\n".join(sorted(borrowed)))
    for each in ["hide", *(["cpu_only"] if cpu_only else [])]:
        shutil.copy(Path(__file__).with_name(f"{each}.py"), own)
        (own / f"{each}.pth").write_text(f"import {each}")  # in whatever process
    return python


def run(command: list, **options) -> None:
    subprocess.run([str(part) for part in command], check=True, **options)


def clean(python: Path) -> dict[str, str]:
    """The environment's variables, without what leads back to the checkout."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return kept | {"PATH": f"{python.parent}{os.pathsep}{kept['PATH']}"}


def hidden(notebook: Path) -> str:
    """Modules that nobody who reads the notebook's first cell has installed for it."""
    said = "".join(json.loads(notebook.read_text("utf-8"))["cells"][0]["source"])
    return " ".join(module for module, name in NOT_REQUIRED.items() if f"`{name}`" not in said)


def elsewhere(python: Path, notebook: Path, folder: Path) -> tuple[bool, float, str]:
    """Run one notebook in an empty folder: whether it ended, seconds, the last of what it said."""
    empty = folder / notebook.stem
    empty.mkdir()
    shutil.copy(notebook, empty)
    start = time.perf_counter()
    done = subprocess.run(
        [str(python), "-c", EXECUTE, notebook.name], cwd=empty, capture_output=True, text=True,
        env=clean(python) | {"HIDDEN": hidden(notebook)}, check=False,
    )  # fmt: skip
    return done.returncode == 0, time.perf_counter() - start, done.stderr[-1500:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="notebooks, without their ending; all by default")
    parser.add_argument("--cpu-only", action="store_true", help="keep Core ML on the CPU")
    arguments = parser.parse_args()
    names = [*dict.fromkeys(arguments.names)]
    known = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no notebook is called {unknown[0]!r}; there are {', '.join(known)}")
    failed, total = [], 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = environment(folder, arguments.cpu_only)
        for title in names or known:
            ended, seconds, said = elsewhere(python, known[title], folder)
            total += seconds
            print(f"{title:36}{seconds:6.0f} s{'' if ended else '  FAILED'}", flush=True)
            if not ended:
                failed.append(title)
                print(said, flush=True)
    asked = len(names or known)
    print(f"{asked - len(failed)} of {asked} notebooks ran to their end, in {total:.0f} s")
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
