"""Published times of decode: how prices fit them, which ranges they are in, and the planner."""

from ane_book_pages.decode.fitting import (
    asked,
    by_model,
    bytes_ms,
    columns,
    constant,
    fit,
    impossible,
    judged,
    least_ms,
    left_out,
    median_error,
    within,
)
from ane_book_pages.decode.published import figures_of, read_rows
from ane_book_pages.decode.ranges import TEST_GRAPHS, beside, by_bytes, predictable, width
from ane_book_pages.planner import planner

__all__ = [
    "TEST_GRAPHS",
    "asked",
    "beside",
    "by_bytes",
    "by_model",
    "bytes_ms",
    "columns",
    "constant",
    "figures_of",
    "fit",
    "impossible",
    "judged",
    "least_ms",
    "left_out",
    "median_error",
    "planner",
    "predictable",
    "read_rows",
    "width",
    "within",
]
