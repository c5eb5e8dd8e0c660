"""What the page "Reports and reference models" lists: experiments, rows that Macs sent, and why a
first load takes long."""

from ane_book_pages.reports.experiments import for_a_mac, listed, own, published
from ane_book_pages.reports.loads import long_loads
from ane_book_pages.reports.rows import APART, filed, judged

__all__ = ["APART", "filed", "for_a_mac", "judged", "listed", "long_loads", "own", "published"]
