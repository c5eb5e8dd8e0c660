"""Pages run side by side before Sphinx reads them, and one that fails takes no other with it.

myst-nb runs a page at the moment when Sphinx reads it: one after another, and an error ends the
build. Here every page that has no outputs in the cache runs first, as many at a time as the machine
has cores, and its outputs go into the cache, where myst-nb finds them. Outputs that end in an error
are kept too, marked as such: the page shows them under a box that says what failed, the build ends
with a list and exit code 1, and the next build runs that page again.

Pages that measure time run one at a time among themselves, beside others that do not.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
import json
import os
from pathlib import Path
import re
import threading
import time

from docutils import nodes
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from myst_nb.core.read import create_nb_reader
from nbclient import NotebookClient
from nbclient.exceptions import CellControlSignal, DeadKernelError
from nbformat import NotebookNode
from sphinx.util import logging

logger = logging.getLogger(__name__)

#: What a cell says that measures time.
CLOCK = re.compile(r"\b(perf_counter|process_time|monotonic|timeit)\b")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
LAST_TIME = "page-seconds.json"  # beside the site: how long each page took when it last ran


@dataclass(frozen=True)
class Failure:
    """Where a page stopped. cell: counted from 1 among code cells; line: of the page's file."""

    page: str
    cell: int
    line: int
    error: str
    traceback: str

    def __str__(self) -> str:
        return f"{self.page}, cell {self.cell}, line {self.line}: {self.error}"


class Page:
    """A page with cells, and what running it gave: outputs, seconds, and a failure or None."""

    def __init__(self, name: str, path: Path, notebook: NotebookNode, timeout: int):
        self.name, self.path, self.notebook = name, path, notebook
        self.measures = any(CLOCK.search(c.source) for c in notebook.cells if _is_code(c))
        self.failure: Failure | None = None
        self.seconds = 0.0
        self._begun: list[NotebookNode] = []
        where = {"metadata": {"path": str(path.parent)}}
        # No times in the cells: what the cache knows a page by is its cells and their metadata.
        settings = {"record_timing": False, "extra_arguments": ["--log-level=ERROR"]}
        self._client = NotebookClient(notebook, timeout=timeout, resources=where, **settings)
        self._client.on_cell_start = lambda cell, cell_index: self._begun.append(cell)

    def run(self) -> None:
        """Run the cells in a kernel of their own. An error of theirs becomes `failure`."""
        began = time.monotonic()
        try:
            asyncio.run(self._client.async_execute())
        except (CellControlSignal, DeadKernelError) as error:
            self.failure = self._failure(error)
        self.seconds = time.monotonic() - began

    def stop(self) -> None:
        """End the kernel at once, where one runs."""
        provisioner = getattr(self._client.km, "provisioner", None)
        if process := getattr(provisioner, "process", None):
            process.kill()

    def _failure(self, error: Exception) -> Failure:
        begun = [cell for cell in self._begun if _is_code(cell)]
        cell = begun[-1] if begun else next(c for c in self.notebook.cells if _is_code(c))
        errors = [output for output in cell.outputs if output.output_type == "error"]
        if errors:
            said = f"{errors[-1].ename}: {errors[-1].evalue}"
            traceback = COLOURS.sub("", "\n".join(errors[-1].traceback))
        else:  # it took too long, or its kernel died
            said = traceback = f"{type(error).__name__}: {error}"
        within = re.search(r"In\[\d+\], line (\d+)", traceback)
        before = self.path.read_text("utf-8").partition(cell.source)[0].count("\n")
        line = before + (int(within[1]) if within else 1)
        first = said.strip().rstrip(":").splitlines()[0]
        return Failure(self.path.name, max(1, len(begun)), line, first, traceback)


def _is_code(cell: NotebookNode) -> bool:
    return cell.cell_type == "code"


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
        self._kept, self._began, self._ended, self._all = kept, time.monotonic(), 0, len(pages)
        self._last = json.loads(kept.read_text()) if kept.exists() else {}
        minutes = sum(self._last.get(page.name, 0) for page in pages) / workers / 60
        estimate = f"; last time some {minutes:.0f} min" if minutes > 1 else ""
        logger.info(f"running {self._all} pages, {workers} at a time{estimate}")

    def told(self, page: Page, running: list[str]) -> None:
        self._ended += 1
        before = f" ({self._last[page.name]:.0f} s last time)" if page.name in self._last else ""
        self._last[page.name] = page.seconds
        how = "FAILED after" if page.failure else "ran in"
        beside = f"; running: {', '.join(running)}" if running else ""
        count = f"[{self._ended}/{self._all}]"
        logger.info(f"{count} {page.name} {how} {page.seconds:.0f} s{before}{beside}")

    def end(self) -> None:
        minutes = (time.monotonic() - self._began) / 60
        count = f"{self._all} page{'s' * (self._all > 1)}"
        logger.info(f"{count} ran in {minutes:.1f} min")
        self._kept.parent.mkdir(parents=True, exist_ok=True)
        self._kept.write_text(json.dumps(self._last, indent=1, sort_keys=True))


def run_pages(app, env, docnames: list[str]) -> None:
    """Before Sphinx reads pages: run those that the cache does not have, or has with an error."""
    cache = get_cache(env.mystnb_config.execution_cache_path)
    pages = [page for name in docnames if (page := _page(env, name))]
    todo = [page for page in pages if _is_to_run(cache, page)]
    env.failed_pages = {}  # those that failed the last time are read, and so run, each time
    if not todo:
        return
    workers = min(len(todo), _cores())
    progress = Progress(todo, workers, Path(app.outdir).parent / LAST_TIME)

    def told(page: Page, running: list[str]) -> None:
        data = {"execution_seconds": page.seconds}
        if page.failure:
            data["failure"] = asdict(page.failure)
            env.failed_pages[page.name] = page.failure
        bundle = CacheBundleIn(page.notebook, str(page.path), data=data)
        cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)
        progress.told(page, running)

    run_side_by_side(todo, workers, told)
    progress.end()


def _page(env, name: str) -> Page | None:
    """A document's cells as myst-nb reads them; None where it has none."""
    path = Path(env.doc2path(name))
    text, config = path.read_text("utf-8"), env.mystnb_config
    reader = create_nb_reader(str(path), env.myst_config, config, text)
    if reader is None:
        return None
    notebook = reader.read(text)
    if not any(_is_code(cell) for cell in notebook.cells):
        return None
    own = notebook.metadata.get(config.metadata_key, {})
    return Page(name, path, notebook, own.get("execution_timeout", config.execution_timeout))


def _is_to_run(cache, page: Page) -> bool:
    try:
        return "failure" in cache.match_cache_notebook(page.notebook).data
    except KeyError:
        return True


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def failed_again(app, env, added, changed, removed) -> list[str]:
    """Pages that failed when they last ran: they are read, and so run, in each build."""
    return [name for name in getattr(env, "failed_pages", {}) if name in env.found_docs]


def show_failure(app, doctree) -> None:
    """A box at the top of a page that failed: its cells may be hidden, and the error with them."""
    env = app.builder.env
    failure = env.failed_pages.get(env.docname)
    if failure is None:
        return
    said = f"This page stopped at its code cell {failure.cell} (line {failure.line} of "
    said += f"{failure.page}): what comes after has no results."
    box = nodes.admonition("", nodes.title("", "This page did not run to its end"))
    box += [nodes.paragraph("", said), nodes.literal_block(failure.traceback, failure.traceback)]
    box["classes"] += ["danger", "failed-page"]
    section = next(iter(doctree.findall(nodes.section)), doctree)
    section.insert(1, box)
    env.nb_metadata[env.docname]["exec_data"] |= {"succeeded": False, "error": failure.error}


def list_failures(app, error) -> None:
    """The last thing that a build says; its exit code is 1 where a page failed."""
    failures = getattr(app.builder.env, "failed_pages", {}).values()
    if error or not failures:
        return
    for failure in failures:
        logger.warning(str(failure), type="book", subtype="failed-page")
    count = f"{len(failures)} page{'s' * (len(failures) > 1)} of the book failed"
    logger.info(f"{count}; the others are whole, and each failed one says why at its top.")
    app.statuscode = 1


def setup(app):
    app.connect("env-get-outdated", failed_again)
    app.connect("env-before-read-docs", run_pages)
    app.connect("doctree-read", show_failure)
    app.connect("build-finished", list_failures)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
