"""One build of a site at a time, and a site that is what its sources are.

Sphinx remembers what it read. A build that ends early, as by Ctrl-C, has read pages that it did not
write; one with another builder has too. Here each page that was read later than it was written
counts as outdated. And what a source made leaves the site with the source.
"""

from contextlib import suppress
import json
from pathlib import Path

from filelock import FileLock, Timeout
from one_page import read_record, write_whole


def one_at_a_time(app, config) -> None:
    """End this build in one sentence where another one writes to the same folder."""
    lock = FileLock(Path(app.outdir).parent / "build.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise SystemExit(
            "This book is being built already, by another process: wait until that has ended."
        ) from None
    except (OSError, NotImplementedError):  # a folder or a file system that knows no locks
        return
    app.book_lock = lock  # until this process ends


def not_written(app, env, added, changed, removed) -> list[str]:
    """Pages that this builder has not written since they were read the last time.

    The first page is among them where a style sheet is newer than the site: Sphinx copies those
    only in a build that writes a page.
    """
    record = _record(app)
    written = read_record(record)
    names = [name for name in env.all_docs if written.get(name) != env.all_docs[name]]
    folders = [Path(app.srcdir, folder) for folder in app.config.html_static_path]
    sheets = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    is_newer = written and any(path.stat().st_mtime > record.stat().st_mtime for path in sheets)
    return names or ([app.config.root_doc] if is_newer else [])


def remove_the_gone(app, env, docnames) -> None:
    """Remove the pages of sources that were removed, renamed or taken out of the contents."""
    if app.builder.format != "html":
        return
    for name in read_record(_record(app)).keys() - env.found_docs:
        Path(app.builder.get_outfilename(name)).unlink(missing_ok=True)
        source = Path(app.outdir, "_sources", name)
        for shown in source.parent.glob(f"{source.name}.*"):
            if shown.stem == source.name:  # not what belongs to a page "name.more"
                shown.unlink()


def remember(app, error) -> None:
    """The last thing that a build does."""
    if error is None:
        with suppress(OSError):  # without it the next build writes each page again
            write_whole(_record(app), json.dumps(app.env.all_docs))


def _record(app) -> Path:
    """When each page was read that was written: Sphinx has the time in `env.all_docs`."""
    return Path(app.outdir).parent / f"written-{app.builder.name}.json"


def setup(app):
    app.connect("config-inited", one_at_a_time)
    app.connect("env-get-outdated", not_written)
    app.connect("env-before-read-docs", remove_the_gone)
    app.connect("build-finished", remember, priority=1000)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
