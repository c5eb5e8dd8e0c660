"""Pages run side by side before Sphinx reads them, and one that fails takes no other with it.

myst-nb runs a page at the moment when Sphinx reads it: one after another, and an error ends the
build. Here every page whose outputs are not kept (one_page.py) runs first, as many at a time as the
machine has cores, and myst-nb gets the outputs and runs nothing. A page that cannot be read, or
whose cells fail, has a box that says why, the build ends with a list of such pages and exit code 1,
and the next build runs them again.

Pages that measure time run one at a time among themselves, beside others that do not.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
import json
from pathlib import Path
import re
import threading
import time

from docutils import nodes
from mlprogram.machine import cores
from myst_nb import sphinx_ as myst_nb
from myst_nb.core import utils
from myst_nb.core.execute import NotebookClientBase
from one_page import Failure, Page, PageError, failure_of, read_page, read_record, write_whole
from sphinx.errors import SphinxError
from sphinx.util import logging

logger = logging.getLogger(__name__)

LAST_TIME = "page-seconds.json"  # beside the site: how long each page took when it last ran


class Queue:
    """Pages in the order in which they begin; of those that measure time, one at a time."""

    def __init__(self, pages: list[Page]):
        # Those that wait for each other first: else they are what is left at the end.
        self._waiting = sorted(pages, key=lambda page: not page.measures)
        self._running: list[Page] = []
        self._changed = threading.Condition()

    def take(self) -> Page:
        """The next page, once one may begin."""
        with self._changed:
            self._changed.wait_for(lambda: self._next() is not None)
            page = self._next()
            self._waiting.remove(page)
            self._running.append(page)
            return page

    def done(self, page: Page) -> None:
        with self._changed:
            self._running.remove(page)
            self._changed.notify_all()

    def running(self) -> list[str]:
        with self._changed:
            return [page.name for page in self._running]

    def _next(self) -> Page | None:
        measured = any(page.measures for page in self._running)
        return next((p for p in self._waiting if not (p.measures and measured)), None)


def run_side_by_side(pages: list[Page], workers: int, told: Callable[[Page, list[str]], None]):
    """Run pages, and tell of each that ended, with the names of those that still run."""
    queue = Queue(pages)

    def work() -> Page:
        page = queue.take()
        try:
            page.run()
        finally:
            queue.done(page)
        return page

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(work) for _ in pages]
        try:
            for future in as_completed(futures):
                told(future.result(), queue.running())
        except BaseException:  # Ctrl-C too: what runs would be waited for
            pool.shutdown(wait=False, cancel_futures=True)
            for page in pages:
                page.stop()
            raise


class Progress:
    """Tells which pages run, how many are left, and the seconds of the last time."""

    def __init__(self, pages: list[Page], workers: int, kept: Path):
        self._pages, self._kept, self._began, self._ended = pages, kept, time.monotonic(), 0
        last = read_record(kept).items()
        self._last = {name: took for name, took in last if isinstance(took, int | float)}
        minutes = sum(self._last.get(page.name, 0) for page in pages) / workers / 60
        estimate = f"; last time some {minutes:.0f} min" if minutes > 1 else ""
        logger.info(f"running {_count(pages)}, {workers} at a time{estimate}")

    def told(self, page: Page, running: list[str]) -> None:
        self._ended += 1
        before = f" ({self._last[page.name]:.0f} s last time)" if page.name in self._last else ""
        self._last[page.name] = page.seconds
        how = "FAILED after" if page.failure else "ran in"
        beside = f"; running: {', '.join(running)}" if running else ""
        count = f"[{self._ended}/{len(self._pages)}]"
        logger.info(f"{count} {page.name} {how} {page.seconds:.0f} s{before}{beside}")

    def end(self) -> None:
        minutes = (time.monotonic() - self._began) / 60
        logger.info(f"{_count(self._pages)} ran in {minutes:.1f} min")
        with suppress(OSError):  # an estimate is not worth a build
            write_whole(self._kept, json.dumps(self._last, indent=1, sort_keys=True))


def run_pages(app, env, docnames: list[str]) -> None:
    """Before Sphinx reads pages: run those whose outputs are not kept."""
    read = {name: read_page(env, name) for name in docnames}
    pages = [page for page in read.values() if isinstance(page, Page)]
    app.book_pages.clear()
    app.book_pages.update({str(page.path): page for page in pages})
    # Those that failed the last time are read, and so run, each time.
    env.failed_pages = {name: why for name, why in read.items() if isinstance(why, Failure)}
    kept = Path(env.mystnb_config.execution_cache_path)
    todo = [page for page in pages if not page.recall(kept)]
    if not todo:
        return
    workers = min(len(todo), cores())
    progress = Progress(todo, workers, Path(app.outdir).parent / LAST_TIME)
    not_kept: list[OSError] = []

    def told(page: Page, running: list[str]) -> None:
        progress.told(page, running)
        if page.failure:
            env.failed_pages[page.name] = page.failure
            return
        try:
            page.keep(kept)
        except OSError as error:
            not_kept.append(error)

    run_side_by_side(todo, workers, told)
    progress.end()
    if not_kept:
        said = f"the outputs of {_count(not_kept)} could not be kept ({not_kept[0]}): this build"
        logger.warning(f"{said} shows them, and the next one runs those pages again")


def _count(pages) -> str:
    return f"{len(pages)} page{'s' * (len(pages) != 1)}"


class Parser(myst_nb.Parser):
    """myst-nb's, to which a page that it cannot read is a failed page and not the build's end."""

    def parse(self, inputstring: str, document: nodes.document) -> None:
        name = self.env.docname
        failure = self.env.failed_pages.get(name)
        could_be_read = failure is None or self.env.doc2path(name) in self.env.app.book_pages
        try:
            if could_be_read:
                return super().parse(inputstring, document)
        except SphinxError:  # a warning, where the build is to end with one
            raise
        except Exception as error:
            file = str(self.env.doc2path(name, base=False))
            self.env.failed_pages[name] = failure or failure_of(file, error)
        for left in ("nb_renderer", "nb_js_files"):  # by myst-nb, where it stopped in between
            document.attributes.pop(left, None)
        document.children = []
        title = nodes.title(name, name)
        document += nodes.section("", title, ids=[nodes.make_id(name)])


def outputs_of(pages: dict[str, Page]) -> Callable:
    """What myst-nb calls to run a page: here it gets the outputs that the page has by now."""

    def create_client(notebook, source, nb_config, logger, read_fmt=None) -> NotebookClientBase:
        page = pages.get(source)
        if page is None:  # it has no cells, or says that they are not to run
            return NotebookClientBase(notebook, Path(source), nb_config, logger)
        if [cell.source for cell in notebook.cells] != [c.source for c in page.notebook.cells]:
            raise PageError("was changed while the book was built: build it again")
        client = NotebookClientBase(page.notebook, page.path, nb_config, logger)
        client.exec_metadata = {
            "mtime": page.ran_at,
            "runtime": page.seconds,
            "method": nb_config.execution_mode,
            "succeeded": page.failure is None,
            "error": page.failure and page.failure.error,
            "traceback": None,
        }
        return client

    return create_client


def failed_again(app, env, added, changed, removed) -> list[str]:
    """Pages that failed when they last ran: they are read, and so run, in each build."""
    return [name for name in getattr(env, "failed_pages", {}) if name in env.found_docs]


def show_failure(app, doctree) -> None:
    """A box at the top of a page that failed: its cells may be hidden, and the error with them."""
    failure = app.builder.env.failed_pages.get(app.builder.env.docname)
    if failure is None:
        return
    said = f"{failure.page} could not be run, so there are no results here."
    if failure.cell:
        said = f"This page stopped at its code cell {failure.cell} (line {failure.line} of "
        said += f"{failure.page}): what comes after has no results."
    box = nodes.admonition("", nodes.title("", "This page did not run to its end"))
    box += [nodes.paragraph("", said), nodes.literal_block(failure.details, failure.details)]
    box["classes"] += ["danger", "failed-page"]
    section = next(iter(doctree.findall(nodes.section)), doctree)
    section.insert(1, box)


def list_failures(app, error) -> None:
    """The last thing that a build says; its exit code is 1 where a page failed."""
    failures = getattr(app.builder.env, "failed_pages", {}).values()
    if error or not failures:
        return
    for failure in failures:
        logger.warning(str(failure), type="book", subtype="failed-page")
    count = _count(failures)
    logger.info(f"{count} of the book failed; the others are whole, and each failed one says why.")
    app.statuscode = 1


def setup(app):
    app.setup_extension("myst_nb")
    app.setup_extension("whole_site")
    app.add_source_parser(Parser, override=True)
    app.book_pages = {}
    myst_nb.create_client = outputs_of(app.book_pages)
    # The same lines as without the ^, but not looked for from each character of a long line.
    utils._RGX_CARRIAGERETURN = re.compile(r"^.*\r(?=[^\n])", re.MULTILINE)
    app.connect("env-get-outdated", failed_again)
    app.connect("env-before-read-docs", run_pages)
    app.connect("doctree-read", show_failure)
    app.connect("build-finished", list_failures)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
