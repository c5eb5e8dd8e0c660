"""A report: all measurements of the default model and of a reader's packages on one machine.

It is a JSON file with a schema, without anything personal, and an HTML page of the same.
"""

from pathlib import Path

from ane_book.evidence.report.gather import Settings, gather
from ane_book.evidence.report.page import page
from ane_book.evidence.report.private import check
from ane_book.evidence.report.schema import Report, read_report
from mlprogram.files import written_whole

__all__ = ["Report", "Settings", "gather", "page", "read_report", "write"]


def write(report: Report, folder: Path) -> tuple[Path, Path]:
    """Write report.json and report.html into a folder, each atomically.

    Raises InvalidInput if the report contains a path, or the name of the user or the machine.
    """
    text, files = report.text(), []
    check(text)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("report.json", text), ("report.html", page([report]))):
        files.append(folder / name)
        with written_whole(files[-1]) as unfinished:
            unfinished.write_text(content, encoding="utf-8")
    return files[0], files[1]
