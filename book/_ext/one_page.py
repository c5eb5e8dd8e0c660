"""One page with cells: can it be run, what does it give, and is what is kept of it good?

What a page gave is kept as one notebook, named after the page, its cells, its kernel and the parts
of the libraries that its cells name. A page that failed is not kept, so it runs again, and a
damaged file counts as none.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
import hashlib
import json
import os
from pathlib import Path
import re
import signal
import time

from book_ext import parts_named
from mlprogram.files import written_whole
from myst_nb.core.config import NbParserConfig
from myst_nb.core.read import NbReader, create_nb_reader
from myst_parser.config.main import TopmatterReadError, read_topmatter
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError
import nbformat
from nbformat import NotebookNode
from nbformat.validator import NotebookValidationError

#: What a cell says that measures time.
CLOCK = re.compile(r"\b(perf_counter|process_time|monotonic|timeit)\b")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class PageError(Exception):
    """What is wrong with a page, in words that follow its name."""


@dataclass(frozen=True)
class Failure:
    """Why a page failed. cell: counted from 1, 0 where none began; line: of the page's file."""

    page: str
    error: str
    details: str
    cell: int = 0
    line: int = 0

    def __str__(self) -> str:
        where = f", cell {self.cell}, line {self.line}" if self.cell else ""
        return f"{self.page}{where}: {self.error}"


def failure_of(file: str, error: Exception) -> Failure:
    """An error that no cell made."""
    said = str(error) if isinstance(error, PageError) else f"{type(error).__name__}: {error}"
    return Failure(file, _first_line(said), said)


def read_page(env, name: str) -> "Page | Failure | None":
    """A document as a page to run; None where it has no cells, or says that they are not to run."""
    path, file = Path(env.doc2path(name)), str(env.doc2path(name, base=False))
    try:
        text = _read_text(path)
        reader = create_nb_reader(str(path), env.myst_config, env.mystnb_config, text)
        if reader is None:
            return None
        notebook = _read_notebook(reader, text)
        config = _config(notebook, env.mystnb_config)
        page = Page(name, file=file, path=path, text=text, notebook=notebook, config=config)
    except Exception as error:  # whatever is wrong with a page, the others are built
        return failure_of(file, error)
    return page if page.cells and config.execution_mode == "cache" else None


def _read_text(path: Path) -> str:
    try:
        text = path.read_text("utf-8")
        if path.suffix == ".md":  # where this is broken, myst-nb takes cells for text
            read_topmatter(text)
    except UnicodeDecodeError as error:
        raise PageError(f"is not UTF-8 at its byte {error.start}: save it as UTF-8") from error
    except TopmatterReadError as error:
        why = " ".join(str(error.__cause__ or error).split())
        raise PageError(f"has front matter that is not valid YAML: {why}") from error
    return text


def _read_notebook(reader: NbReader, text: str) -> NotebookNode:
    try:
        notebook = reader.read(text)
        nbformat.validate(notebook)
    except NotebookValidationError as error:
        where = ".".join(str(part) for part in error.relative_path)
        raise PageError(f"has no valid {where}: {error.message}") from error
    return notebook


def _config(notebook: NotebookNode, config: NbParserConfig) -> NbParserConfig:
    """The book's settings with the page's own."""
    own = notebook.metadata.get(config.metadata_key, {})
    mode = own.get("execution_mode", config.execution_mode)
    if mode not in ("cache", "off"):
        said = f"has execution_mode: {mode}, which this book does not know"
        raise PageError(f'{said}: leave it out, or write "off", quoted, and no cell runs')
    return config.copy(**own)


class Page:
    """A page with cells, and what running it gave: outputs, seconds, and a failure or None."""

    def __init__(
        self,
        name: str,
        file: str,  # as messages name it
        path: Path,
        text: str,
        notebook: NotebookNode,
        config: NbParserConfig,
    ):
        self.name, self.file, self.path, self.notebook = name, file, path, notebook
        self._text = text
        self.cells = _code_cells(notebook)
        self.measures = any(CLOCK.search(cell.source) for cell in self.cells)
        self.failure: Failure | None = None
        self.seconds, self.ran_at = 0.0, time.time()
        self._begun: list[NotebookNode] = []
        self._stopped = False
        kernel = notebook.metadata.get("kernelspec")
        cells = [[cell.source, cell.metadata] for cell in self.cells]
        parts = parts_named("\n".join(cell.source for cell in self.cells))
        known_by = json.dumps([kernel, config.execution_allow_errors, cells, parts], sort_keys=True)
        self._key = hashlib.sha256(known_by.encode()).hexdigest()[:16]
        self._client = NotebookClient(
            notebook,
            timeout=config.execution_timeout,
            allow_errors=config.execution_allow_errors,
            resources={"metadata": {"path": str(path.parent)}},
            record_timing=False,
            extra_arguments=["--log-level=ERROR"],
            on_cell_start=self._begin,
        )

    def run(self) -> None:
        """Run the cells in a kernel of their own. Whatever goes wrong becomes `failure`."""
        began = time.monotonic()
        try:
            asyncio.run(self._client.async_execute())
        except Exception as error:
            self.failure = self._failure(error)
        finally:
            self._end_processes()
        self.seconds, self.ran_at = time.monotonic() - began, time.time()

    def stop(self) -> None:
        """Begin no other cell, and end the kernel and what it started at once."""
        self._stopped = True
        self._end_processes()

    def keep(self, folder: Path) -> None:
        """Keep the outputs for the next build."""
        metadata = {**_by_the_kernel(self.notebook), "seconds": self.seconds}
        kept = nbformat.v4.new_notebook(cells=self.cells, metadata=metadata)
        write_whole(self._kept(folder), nbformat.writes(kept))

    def recall(self, folder: Path) -> bool:
        """Take the outputs that are kept for these cells; False where none are, or not whole."""
        file = self._kept(folder)
        try:
            kept = nbformat.reads(file.read_text("utf-8"), as_version=4)
            nbformat.validate(kept)
            for cell, with_outputs in zip(self.cells, _code_cells(kept), strict=True):
                cell.update(
                    outputs=with_outputs.outputs, execution_count=with_outputs.execution_count
                )
            self.seconds, self.ran_at = kept.metadata.seconds, file.stat().st_mtime
        except Exception:  # what cannot be read counts as missing, and is made again
            for cell in self.cells:
                cell.update(outputs=[], execution_count=None)
            return False
        self.notebook.metadata.update(_by_the_kernel(kept))
        return True

    def _kept(self, folder: Path) -> Path:
        return folder / f"{self.name}-{self._key}.ipynb"

    def _begin(self, cell: NotebookNode, cell_index: int) -> None:
        if self._stopped:
            raise PageError("was stopped")
        if cell.cell_type == "code":
            self._begun.append(cell)

    def _end_processes(self) -> None:
        """End the kernel, and what its cells started: both are in the group that it leads."""
        kernel = getattr(self._client.km, "provisioner", None)
        if group := getattr(kernel, "pgid", None):
            with suppress(ProcessLookupError):  # all have ended
                os.killpg(group, signal.SIGKILL)
        elif process := getattr(kernel, "process", None):  # Windows has no groups
            process.kill()

    def _failure(self, error: Exception) -> Failure:
        if not self._begun:
            return failure_of(self.file, error)
        cell = self._begun[-1]
        errors = [output for output in cell.outputs if output.output_type == "error"]
        if isinstance(error, CellTimeoutError):
            said = details = f"took longer than {self._client.timeout} s"
        elif errors:
            said = f"{errors[-1].ename}: {_first_line(errors[-1].evalue)}".removesuffix(": ")
            details = COLOURS.sub("", "\n".join(errors[-1].traceback))
        else:  # its kernel died
            said = details = f"{type(error).__name__}: {error}"
        within = re.search(r"In\[\d+\], line (\d+)", details)
        before = self._text.partition(cell.source)[0].count("\n")
        line = before + (int(within[1]) if within else 1)
        return Failure(self.file, said, details, cell=len(self._begun), line=line)


def _code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _by_the_kernel(notebook: NotebookNode) -> dict:
    """What running a notebook adds to its metadata."""
    added = notebook.metadata.keys() & {"language_info", "widgets"}
    return {name: notebook.metadata[name] for name in added}


def _first_line(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def write_whole(path: Path, text: str) -> None:
    """Write a file, and the folders above it, so that nobody finds a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as part:
        part.write_text(text, "utf-8")


def read_record(path: Path) -> dict:
    """What a JSON file holds by name; nothing where it is missing or damaged."""
    try:
        record = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
