"""The book's pages in one table: what each asks of its reader and of the machine that builds it.

Run on a built site, with Chromium; prints Markdown. With --sources it needs neither, and counts
what a reader reads, in the pages of this tree or of a commit:

    python tests/page_table.py
    python tests/page_table.py --sources [COMMIT]
"""

import argparse
import subprocess

from _chromium import chromium
from _reading import Reading, read
from _seen import SCREENS, Seen, see
from _site import PAGES, ROOT, SITE, served_site
from bs4 import BeautifulSoup
import yaml

HEADINGS = ["page", "lines of source", "minutes of reading", "seconds of build", "kB", "figures"]
HEADINGS += ["serious findings of axe", "widest box of 1,280 px", "widest box of 390 px"]
OF_SOURCES = ["page", "minutes", "words", "lines of code in sight", "of these print or assert"]
OF_SOURCES += ["figures", "worked by hand"]


def seconds() -> dict[str, str]:
    """How long each page's cells took when they last ran, as the site's page of reports says."""
    reports = BeautifulSoup((SITE / "reports.html").read_text("utf-8"), "html.parser")
    rows = [[cell.get_text(strip=True) for cell in row("td")] for row in reports.select("tr")]
    return {cells[0]: cells[3] for cells in rows if len(cells) == 5}


def figures(page: str) -> int:
    article = BeautifulSoup((SITE / f"{page}.html").read_text("utf-8"), "html.parser").article
    return len(article.select("figure, .cell_output img:not(figure img)"))


def row(page: str, ran: dict[str, str], seen: dict[str, Seen]) -> list:
    """Cells below HEADINGS; a page without code was not run."""
    source = (ROOT / "book" / f"{page}.md").read_text("utf-8")
    heaviest = max(sum(size for _, size in found.loaded) for found in seen.values())
    findings = sum(len(found.axe) for found in seen.values())
    widest = [found.widest for found in seen.values()]
    told = [page, len(source.splitlines()), f"{read(source).minutes:.1f}", ran.get(page, "")]
    return [*told, f"{heaviest / 1000:.0f}", figures(page), findings, *widest]


def line(cells: list) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def of_site() -> None:
    ran = seconds()
    print(f"{line(HEADINGS)}\n|:-{'|-:' * (len(HEADINGS) - 1)}|")
    with served_site() as address, chromium() as browser:
        for page in PAGES:
            seen = {screen: see(browser, address, page, screen) for screen in SCREENS}
            print(line(row(page, ran, seen)), flush=True)


def source(path: str, commit: str | None) -> str:
    """A file of the repository, as it is here or was in a commit."""
    if commit is None:
        return (ROOT / path).read_text("utf-8")
    shown = subprocess.run(["git", "show", f"{commit}:{path}"], cwd=ROOT, capture_output=True)
    if shown.returncode:
        raise SystemExit(shown.stderr.decode())
    return shown.stdout.decode()


def counted(name: str, found: list[Reading]) -> list:
    """Cells below OF_SOURCES, summed."""
    words, code, shows, drawn, by_hand = (
        sum(getattr(one, part) for one in found)
        for part in ("words", "code", "shows", "figures", "by_hand")
    )
    minutes = sum(one.minutes for one in found)
    share = f"{100 * shows / code:.0f} %" if code else ""
    return [name, f"{minutes:.1f}", f"{words:,}", code, share, drawn, by_hand]


def of_sources(commit: str | None) -> None:
    toc = yaml.safe_load(source("book/_toc.yml", commit))
    numbered = {c["file"] for part in toc["parts"] if "numbered" in part for c in part["chapters"]}
    pages = [toc["root"]] + [c["file"] for part in toc["parts"] for c in part["chapters"]]
    found = {page: read(source(f"book/{page}.md", commit)) for page in pages}
    print(f"{line(OF_SOURCES)}\n|:-{'|-:' * (len(OF_SOURCES) - 1)}|")
    for page, one in found.items():
        print(line(counted(page, [one])))
    if numbered:
        print(line(counted("the numbered chapters", [found[page] for page in numbered])))
    print(line(counted(f"all {len(pages)} pages", [*found.values()])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", nargs="?", const="", metavar="COMMIT")
    commit = parser.parse_args().sources
    of_site() if commit is None else of_sources(commit or None)


if __name__ == "__main__":
    main()
