"""Core ML's segmenter as others published it: its estimates, its choices, and predictions of it."""

from ane_book_pages.segmenter.held_out import halves
from ane_book_pages.segmenter.published import projection, read_graphs, read_reports, refused

__all__ = ["halves", "projection", "read_graphs", "read_reports", "refused"]
