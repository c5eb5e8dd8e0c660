"""Hold the citations of the claims against clones of their repositories, where those are at hand.

    python -m ane_book_pages.sources_at_hand FOLDER > research/sources.md

FOLDER has a clone of each repository at `owner/name`. A citation `owner/name@commit path` is asked
three things: can the commit be reached from the default branch, is the path there, and does a
number of what the citation says occur in the file? A number that follows from two of the source's
own does not, so a miss is a reason to look and not yet an error.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
import re
import subprocess
import sys

from ane_book_pages import sources
from mlprogram.ane import cost
from mlprogram.ane.claims import FILE, Citation

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
FOUND = "found"


@dataclass(frozen=True)
class Asked:
    """A citation and what became of it: "found", or what is missing."""

    claim: str
    citation: Citation
    repository: str
    answer: str


def git(clone: Path, *line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", "-C", str(clone), *line], capture_output=True, text=True, errors="replace"
    )


def clone_of(repository: str, folder: Path) -> Path | None:
    """The clone of `owner/name`, or None."""
    clone = folder / repository
    return clone if clone.is_dir() else None


def answer(clone: Path, commit: str, path: str, says: str) -> str:
    """What a citation lacks in a clone, or "found"."""
    if git(clone, "cat-file", "-e", f"{commit}^{{commit}}").returncode:
        return "the clone lacks the commit"
    if git(clone, "merge-base", "--is-ancestor", commit, "HEAD").returncode:
        return "the default branch does not lead to the commit"
    file = git(clone, "show", f"{commit}:{path}")
    if file.returncode:
        return "no such path at the commit"
    cited, theirs = NUMBER.findall(says), {plain(text) for text in NUMBER.findall(file.stdout)}
    if cited and not any(occurs(text, theirs) for text in cited):
        return "none of its numbers stands in the file"
    return FOUND


def plain(number: str) -> float:
    return float(number.replace(",", ""))


def occurs(number: str, among: set[float]) -> bool:
    """Whether one of these numbers is this one, as it is rounded here."""
    decimals = len(number.partition(".")[2])
    return plain(number) in {round(one, decimals) for one in among}


def asked(folder: Path) -> Iterable[Asked]:
    """Every citation of a repository that has a clone, with its answer."""
    known = {**sources.everything(), **cost.chips()}
    for name, claim in known.items():
        for citation in (*claim.support, *claim.against):
            file = FILE.fullmatch(citation.source)
            if file and (clone := clone_of(file[1], folder)):
                yield Asked(name, citation, file[1], answer(clone, file[2], file[3], citation.says))


def record(all_asked: list[Asked]) -> str:
    """The text of research/sources.md."""
    lines = [
        "# Citations held against their sources",
        "",
        "Written by `python -m ane_book_pages.sources_at_hand FOLDER`, which says what is asked.",
        f"Of {len(all_asked)} citations of files in repositories that were at hand, "
        f"{sum(one.answer == FOUND for one in all_asked)} were found as cited. The others of the "
        "registry are of threads, of pages, or of repositories that were not at hand.",
        "",
        "| repository | citations | found |",
        "|---|---|---|",
    ]
    for repository in sorted({one.repository for one in all_asked}):
        own = [one.answer for one in all_asked if one.repository == repository]
        lines.append(f"| {repository} | {len(own)} | {own.count(FOUND)} |")
    lines += ["", "## Not found", ""]
    lines += [
        f"- `{one.claim}`, {one.citation.source}: {one.answer}"
        for one in all_asked
        if one.answer != FOUND
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(record(list(asked(Path(sys.argv[1])))), end="")
