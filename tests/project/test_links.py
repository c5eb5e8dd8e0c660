"""The files and pages of this repository that notes, READMEs, pages and code name are there."""

from pathlib import Path
import re
import subprocess

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = "https://github.com/ane-book/ane-book"
OURS = re.compile(rf"{SITE}/(?:blob|tree)/main/([\w./-]+)")
LINK = re.compile(r"\]\(([^)\s:#]+)(?:#[^)\s]*)?\)")
#: What a note calls a page: its title, or the title's beginning up to a colon.
PAGE = re.compile(r"\b(?:page|chapter) (?:\"([^\"]+)\"|\*([^*]+)\*)", re.I)


def titles() -> set[str]:
    pages = [path.read_text("utf-8") for path in (ROOT / "book").glob("*.md")]
    found = [re.search(r"^# (.+)$", page, re.M)[1] for page in pages]
    return {name for title in found for name in (title, title.partition(":")[0])}


def missing(path: Path, text: str, pages: set[str]) -> list[str]:
    """What a file names that is not there."""
    gone = [to for to in OURS.findall(text) if not (ROOT / to).exists()]
    if path.suffix == ".md" and path.parent != ROOT / "book":  # whose links Sphinx follows
        gone += [to for to in LINK.findall(text) if not (path.parent / to).exists()]
    if path.is_relative_to(ROOT / "research"):
        gone += {quoted or italic for quoted, italic in PAGE.findall(text)} - pages
    return gone


def test_what_is_named_is_there():
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command, pages = ["git", "ls-files", "*.md", "*.py", "*.toml"], titles()
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    texts = {ROOT / name: (ROOT / name).read_text("utf-8") for name in listed.split()}
    gone = {path: missing(path, text, pages) for path, text in texts.items()}
    assert not {path: names for path, names in gone.items() if names}


@pytest.mark.parametrize(
    "said", ["[a](gone.md#b)", 'page "Gone"', "Chapter *Gone*", f"{SITE}/blob/main/gone.md"]
)
def test_what_is_gone_is_found(said):
    assert len(missing(ROOT / "research" / "scaling.md", said, {"Here"})) == 1
