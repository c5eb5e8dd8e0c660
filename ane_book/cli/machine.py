"""`ane-book doctor` and `ane-book cache`: what this machine can do, and what is kept on it."""

from importlib.util import find_spec
import time
from typing import Annotated, Literal

from mlprogram.cli.options import AsJson
from mlprogram.terminal import show
import typer


def doctor_command(as_json: AsJson = False) -> None:
    """Say what this machine can do, and why not."""
    from ane_book import device
    from mlprogram.tables import table

    checks = device.describe()
    if find_spec("torch"):
        from mlprogram.kernels import native

        checks.append(("compiled kernels", *native.status()))
    words = {True: "yes", False: "no", None: ""}
    show(
        lambda: [{"check": check, "ok": ok, "detail": detail} for check, ok, detail in checks],
        lambda: table([(check, words[ok], detail) for check, ok, detail in checks]),
        as_json,
    )


def cache_command(
    action: Annotated[Literal["list", "delete"], typer.Argument(help="list or delete.")] = "list",
    names: Annotated[list[str] | None, typer.Argument(help="What to delete.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what is kept in the cache, last used first, or delete it.

    Bundles; compiled: what Core ML makes of packages, on a Mac; lowered: blocks of models, ready
    for the next conversion. ANE_BOOK_CACHE names its folder; that of compiled kernels, which is
    not listed, is MLPROGRAM_CACHE.
    """
    from ane_book.bundle import cache
    from mlprogram.tables import table

    if (action == "delete") != bool(names or everything):
        raise typer.BadParameter("delete takes names, or --all; list takes neither")
    kept = cache.entries()
    if action == "delete":
        removed = cache.delete(names or [entry.path.name for entry in kept])
        facts: dict = {"deleted": [_entry(one) for one in removed]}
        lines = [f"deleted {entry.path.name}, {entry.bytes:,} bytes" for entry in removed]
        show(lambda: facts, lambda: "\n".join(lines) or "it is empty", as_json)
        return
    facts = {"folder": str(cache.bundles()), "bundles": [], "compiled": [], "lowered": []}
    for one in kept:
        facts[one.kind].append(_entry(one))
    show(lambda: facts, lambda: table(cache.rows(kept)), as_json)


def _entry(entry) -> dict[str, str | int]:
    used = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry.used))
    return {"name": entry.path.name, "bytes": entry.bytes, "used": used, "recipe": entry.recipe}
