"""The book's pages in one table: what each asks of its reader and of the machine that builds it.

Run on a built site, with Chromium; prints Markdown:

    python tests/page_table.py
"""

import re

from _chromium import chromium
from _seen import SCREENS, Seen, see
from _site import PAGES, ROOT, SITE, served_site
from bs4 import BeautifulSoup

WORDS_PER_MINUTE = 220
#: Settings, code, comments, options of directives; what stands in a note or an exercise is prose.
NOT_PROSE = re.compile(
    r"\A---\n.*?^---$|^```(?:\w|\{code-cell|\{figure|\{image).*?^```$|<!--.*?-->|^:[\w-]+:.*?$",
    re.MULTILINE | re.DOTALL,
)
HEADINGS = ["page", "lines of source", "minutes of reading", "seconds of build", "kB", "figures"]
HEADINGS += ["serious findings of axe", "widest box of 1,280 px", "widest box of 390 px"]


def minutes(source: str) -> float:
    return len(re.findall(r"\S*\w\S*", NOT_PROSE.sub("", source))) / WORDS_PER_MINUTE


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
    told = [page, len(source.splitlines()), f"{minutes(source):.1f}", ran.get(page, "")]
    return [*told, f"{heaviest / 1000:.0f}", figures(page), findings, *widest]


def main() -> None:
    print(f"| {' | '.join(HEADINGS)} |\n|:-{'|-:' * (len(HEADINGS) - 1)}|")
    ran = seconds()
    with served_site() as address, chromium() as browser:
        for page in PAGES:
            seen = {screen: see(browser, address, page, screen) for screen in SCREENS}
            print(f"| {' | '.join(map(str, row(page, ran, seen)))} |", flush=True)


if __name__ == "__main__":
    main()
