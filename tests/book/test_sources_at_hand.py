"""Citations against a clone: what is found, and each thing that may be missing."""

import subprocess

from ane_book_pages import sources_at_hand
from mlprogram.ane.claims import Citation
import pytest


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A repository whose default branch has one commit, and a request beside it another."""
    folder = tmp_path_factory.mktemp("clones") / "owner" / "name"
    folder.mkdir(parents=True)

    def git(*line):
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", *who, *line], cwd=folder, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q", "-b", "main")
    (folder / "notes.md").write_text("a mask of -1e4; 1,250 operations in 30.44 ms\n")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    main = git("rev-parse", "HEAD")
    git("checkout", "-q", "-b", "request")
    git("commit", "-q", "--allow-empty", "-m", "two")
    request = git("rev-parse", "HEAD")
    git("checkout", "-q", "main")
    return folder, main, request


@pytest.mark.parametrize(
    ("says", "found"),
    [
        ("1250 operations", True),
        ("30.4 ms", True),
        ("-10,000", True),
        ("no number", True),
        ("31 ms", False),
        ("30.5 ms, and 7", False),
    ],
)
def test_a_number_occurs_as_it_is_rounded_in_the_claim(clone, says, found):
    folder, main, _ = clone
    answer = sources_at_hand.answer(folder, main, "notes.md", says)
    assert (answer == sources_at_hand.FOUND) is found


def test_what_is_missing_is_named(clone):
    folder, main, request = clone
    ask = sources_at_hand.answer
    assert ask(folder, main, "other.md", "") == "no such path at the commit"
    assert ask(folder, "0123456", "notes.md", "") == "the clone lacks the commit"
    assert "default branch" in ask(folder, request, "notes.md", "")


def test_the_record_counts_and_names_what_is_not_found(clone):
    cited = Citation("owner/name@0123456 notes.md", "7 ms")
    made = [
        sources_at_hand.Asked("one", cited, "owner/name", sources_at_hand.FOUND),
        sources_at_hand.Asked("two", cited, "owner/name", "no such path at the commit"),
    ]
    text = sources_at_hand.record(made)
    assert "Of 2 citations" in text and "| owner/name | 2 | 1 |" in text
    assert text.endswith("- `two`, owner/name@0123456 notes.md: no such path at the commit\n")
