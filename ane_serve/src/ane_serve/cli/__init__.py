"""The commands `serve` and `bench` of `ane-book`."""

import ane_book.cli  # noqa: F401  (it imports these commands, so it has to be there before them)
