"""The notebooks as a reader has them: the library from its wheel, an empty folder, no checkout.

    python tests/elsewhere/run.py                       # all of them, minutes each
    python tests/elsewhere/run.py status on-a-mac       # some

The wheel is built of a copy of the sources and installed in an environment of its own, which
borrows every other package from the one that runs this; an editable install there is not seen.
"""

import argparse
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
PARTS = ("ane_book", "research", "pyproject.toml", "README.md", "LICENSE")
EXECUTE = """
import sys
from nbclient import NotebookClient
import nbformat

NotebookClient(nbformat.read(sys.argv[1], 4), timeout=1800, kernel_name="python3").execute()
"""


def wheel(folder: Path) -> Path:
    """Build the wheel without touching the checkout."""
    copy = folder / "sources"
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / part)
    run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, copy])
    shutil.rmtree(copy)
    (made,) = folder.glob("*.whl")
    return made


def environment(folder: Path) -> Path:
    """Python of a new environment with the wheel in it."""
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(subprocess.check_output([python, "-c", asked], text=True).strip())
    made = wheel(folder)
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", made]
    run(install)
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (own / "borrowed.pth").write_text("\n".join(sorted(borrowed)))
    return python


def run(command: list, **options) -> None:
    subprocess.run([str(part) for part in command], check=True, **options)


def clean(python: Path) -> dict[str, str]:
    """The environment's variables, without what leads back to the checkout."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return kept | {"PATH": f"{python.parent}{os.pathsep}{kept['PATH']}"}


def elsewhere(python: Path, notebook: Path, folder: Path) -> tuple[bool, float, str]:
    """Run one notebook in an empty folder: whether it ended, seconds, the last of what it said."""
    empty = folder / notebook.stem
    empty.mkdir()
    shutil.copy(notebook, empty)
    start = time.perf_counter()
    done = subprocess.run(
        [str(python), "-c", EXECUTE, notebook.name], cwd=empty, env=clean(python),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode == 0, time.perf_counter() - start, done.stderr[-1500:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="notebooks, without their ending")
    names = parser.parse_args().names
    books = [ROOT / "notebooks" / f"{name}.ipynb" for name in names]
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        python = environment(Path(name))
        for book in books or sorted((ROOT / "notebooks").glob("*.ipynb")):
            ended, seconds, said = elsewhere(python, book, Path(name))
            failed += not ended
            print(f"{book.stem:36}{seconds / 60:6.1f} min{'' if ended else '  FAILED'}", flush=True)
            if not ended:
                print(said)
    return failed


if __name__ == "__main__":
    sys.exit(main())
