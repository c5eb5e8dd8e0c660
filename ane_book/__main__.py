"""The command `ane-book`, and `python -m ane_book`.

Exit codes: 0; 1 where `diff` finds a difference, or `check` a broken law; 2 for what the user can
mend; 130 and 141 as `mlprogram.terminal` has them.

Everything else is imported inside, so that Ctrl-C is quiet from the first moment.
"""

import sys

from mlprogram import terminal


def main() -> None:
    """The entry point: run a command and exit with its code."""
    terminal.run(_command)


def _command() -> None:
    if {*sys.argv[1:2]} & {"run", "chat"} and not {*sys.argv} & {"-h", "--help"}:
        from ane_book.text.process import start_ahead

        start_ahead()  # which takes as long as the imports of this process
    from ane_book.cli import app

    app(prog_name="ane-book")


if __name__ == "__main__":
    main()
