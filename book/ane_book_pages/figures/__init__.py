"""The book's figures: their look, its tables and bars, and the diagrams that are drawn by hand."""

from ane_book_pages.figures.diagrams import (
    blocks,
    calls,
    engine,
    experts,
    families,
    faults,
    package,
    padding,
    residency,
    shards,
    stamping,
    stream,
    way,
)
from ane_book_pages.figures.lanes import Lanes, lanes
from ane_book_pages.figures.layer import layer
from ane_book_pages.figures.style import COLORS, bars, table

__all__ = [
    "COLORS",
    "Lanes",
    "bars",
    "blocks",
    "calls",
    "engine",
    "experts",
    "families",
    "faults",
    "lanes",
    "layer",
    "package",
    "padding",
    "residency",
    "shards",
    "stamping",
    "stream",
    "table",
    "way",
]
