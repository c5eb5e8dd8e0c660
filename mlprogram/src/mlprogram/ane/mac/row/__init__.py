"""A device row: what one Mac makes of a few small packages, in 4 KB that its owner may hand in.

    from mlprogram.ane.mac.row import measure_row, read_row, text

`packages` makes the packages, `measure` asks Core ML of them, in child processes, and holds its
answers beside the executor's and beside what `mlprogram place` predicts; `form` says what a row
may hold, and checks those that are filed.
"""

from mlprogram.ane.mac.row.form import check_row, link, read_row, read_rows, text

__all__ = ["check_row", "link", "read_row", "read_rows", "text"]
