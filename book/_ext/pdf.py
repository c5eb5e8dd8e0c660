"""The whole book as one PDF, printed by Chromium from Sphinx's single page (`make pdf`).

Outputs of cells are those that the site has, if it was built before.
"""

from pathlib import Path
import shutil
import subprocess
import sys
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OF_MACOS = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",  # root has no sandbox; the page is our own
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-quic",
    "--disable-sync",
    "--no-pdf-header-footer",  # book.css numbers the pages
    "--generate-pdf-document-outline",
)


def find_browser() -> str:
    found = [path for name in BROWSERS if (path := shutil.which(name))]
    found += [str(OF_MACOS)] if OF_MACOS.exists() else []
    if not found:
        sys.exit("A PDF needs Chromium or Chrome on PATH (Debian: apt-get install chromium)")
    return found[0]


def print_page(browser: str, page: Path, pdf: Path) -> None:
    """Print a page to a file, whole or not at all; ends the process if the browser fails."""
    with TemporaryDirectory() as folder:
        made = Path(folder) / "book.pdf"
        own = (f"--user-data-dir={folder}/profile", f"--print-to-pdf={made}", page.as_uri())
        done = subprocess.run([browser, *FLAGS, *own], capture_output=True, text=True, check=False)
        if done.returncode or not made.exists():
            sys.exit(f"{browser} printed no PDF:\n{done.stderr[-2000:]}")
        shutil.move(made, pdf)


def main() -> None:
    browser = find_browser()  # before the build, which takes minutes
    jupyter_book = Path(sys.executable).with_name("jupyter-book")
    command = [jupyter_book, "build", "book", "--builder", "singlehtml", *sys.argv[1:]]
    if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
        sys.exit(code)
    pdf = ROOT / "_build" / "ane-book.pdf"
    print_page(browser, ROOT / "_build" / "singlehtml" / "index.html", pdf)
    print(f"The book as PDF: {pdf}")


if __name__ == "__main__":
    main()
