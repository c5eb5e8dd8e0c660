"""Books of a few one-cell pages, under the settings and the extensions of the real one."""

from pathlib import Path
import shutil
import subprocess
import sys

ROOT = Path(__file__).resolve().parents[2]
HEADER = (ROOT / "book" / "reports.md").read_text().split("# Reports")[0]


def small_book(root: Path, code: str, text: str = "") -> None:
    """A book of one page, index."""
    (root / "book").mkdir()
    (root / "book" / "index.md").write_text(
        f"{HEADER}# Small\n\n{text}\n\n```{{code-cell}} ipython3\n{code}\n```\n"
    )
    (root / "book" / "_toc.yml").write_text("format: jb-book\nroot: index\n")
    parts = ("_ext", "_static", "_templates", "references.bib")
    for name in ("_config.yml", *(f"book/{part}" for part in parts)):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, root / name)


def add_page(root: Path, name: str, code: str, options: str = "", header: str = HEADER) -> Path:
    """Another page, in the contents too. options: what the cell says before its code."""
    cell = f"```{{code-cell}} ipython3\n{options}{code}\n```\n"
    page = root / "book" / f"{name}.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(f"{header}# {name}\n\n{cell}")
    toc = root / "book" / "_toc.yml"
    text = toc.read_text()
    chapters = "" if "chapters:" in text else "chapters:\n"
    toc.write_text(f"{text}{chapters}  - file: {name}\n")
    return page


def header_with(settings: str) -> str:
    """A front matter with settings of the page's own."""
    return HEADER.replace("kernelspec:", f"mystnb:\n  {settings}\nkernelspec:", 1)


def build(root: Path, *flags: str) -> subprocess.CompletedProcess:
    program = Path(sys.executable).with_name("jupyter-book")
    command = [program, "build", "book", *flags]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def shown(root: Path, name: str = "index") -> str:
    """A page of the site that was built."""
    return (root / "_build" / "html" / f"{name}.html").read_text()
