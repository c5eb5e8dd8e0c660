"""The command `swift-tables`, and `python -m swift_tables`; exit codes as those of `ane-book`."""

from argparse import ArgumentParser
import sys

from mlprogram import terminal


def main() -> None:
    """The entry point: run the command and exit with its code."""
    terminal.run(_command)


def _command() -> None:
    parser = ArgumentParser("swift-tables", description="Add what the Swift package reads.")
    parser.add_argument("bundle", help="the folder that `ane-book convert` wrote")
    folder = parser.parse_args().bundle
    from ane_book.bundle import Bundle
    from swift_tables import add_tables

    bundle = add_tables(Bundle.open(folder))
    for why in bundle.manifest.tokenizer.refused.values():
        print(f"{why}; so an app lays out prompts itself, and gives token ids", file=sys.stderr)
    print(bundle.path)


if __name__ == "__main__":
    main()
