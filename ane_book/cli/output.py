"""What a command prints: facts, as JSON or as text."""

from typing import Annotated

from mlprogram.terminal import show
import typer

__all__ = ["AsJson", "show"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
