"""The command `ane-book`, and `python -m ane_book`.

Exit codes: 0; 1 where `diff` finds a difference, or `check` a broken law; 2 for what the user can
mend; 130 and 141 as `mlprogram.terminal` has them.

Everything else is imported inside, so that Ctrl-C is quiet from the first moment.
"""

from mlprogram import terminal


def main() -> None:
    """The entry point: run a command and exit with its code."""
    terminal.run(_command)


def _command() -> None:
    from ane_book.cli import app

    app(prog_name="ane-book")


if __name__ == "__main__":
    main()
