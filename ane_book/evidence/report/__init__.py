"""A report: what one machine makes of the default model and of a reader's packages.

    report = gather(["bundle", "mine.mlpackage"], Settings())
    write(report, Path("ane-book-report"))

One JSON file, held to a schema and without anything personal, and a page to look at.
"""

from pathlib import Path

from ane_book.evidence.report.gather import Settings, gather
from ane_book.evidence.report.page import page
from ane_book.evidence.report.private import check
from ane_book.evidence.report.schema import Report, read_report
from mlprogram.files import written_whole

__all__ = ["Report", "Settings", "gather", "page", "read_report", "write"]


def write(report: Report, folder: Path) -> tuple[Path, Path]:
    """Write report.json and report.html into a folder, each whole or not at all.

    Raises InvalidInput where the report would tell a path or a name.
    """
    text, files = report.text(), []
    check(text)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("report.json", text), ("report.html", page([report]))):
        files.append(folder / name)
        with written_whole(files[-1]) as unfinished:
            unfinished.write_text(content, encoding="utf-8")
    return files[0], files[1]
