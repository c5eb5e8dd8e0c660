"""What a command keeps in a bundle's evidence."""

import sys
from typing import TYPE_CHECKING

from ane_book.errors import InvalidBundle

if TYPE_CHECKING:
    from ane_book.bundle import Bundle
    from ane_book.bundle.evidence import Level, LevelName


def keep(bundle: "Bundle", name: "LevelName", level: "Level") -> None:
    """Record a level in a bundle's evidence.json, and say where that keeps what it has instead."""
    try:
        held = bundle.record(name, level)
    except InvalidBundle as error:
        print(f"not kept in evidence.json: {error}", file=sys.stderr)
        return
    if held is not level:
        print(
            f"evidence.json keeps the stronger measurement of {held.date}: {name} {held.status}: "
            f"{held.reason}",
            file=sys.stderr,
        )
