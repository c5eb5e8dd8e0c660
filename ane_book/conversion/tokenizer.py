"""What a bundle has of its tokenizer and chat template for hosts that are not Python."""

from functools import lru_cache, partial
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from ane_book.bundle.cache import keep
from ane_book.bundle.parts import Tokenizer
from ane_book.conversion.target.key import CONVERTER
from ane_book.errors import AneBookError
from ane_book.text.layout import ChatSegments
from ane_book.text.packed import packed_tokenizer
from ane_book.text.process import TextProcess
from ane_book.text.segments import find_segments
from ane_book.weights.source import TokenizerFiles

FILE = "tokenizer.bin"


@lru_cache(maxsize=8)  # several bundles of one model
def packed_or_refused(json_text: str) -> tuple[bytes | None, str | None]:
    """The bytes of tokenizer.bin for a tokenizer.json; or None, and why there are none."""
    try:
        return _packed(json_text), None
    except AneBookError as error:
        return None, str(error)


def _packed(json_text: str) -> bytes:
    """The bytes, from the cache: making them takes seconds, in which a library is asked about
    characters. Raises UnsupportedModel."""
    made_of = {
        "tokenizer.json": sha256(json_text.encode()).hexdigest(),
        "tokenizers": version("tokenizers"),
        "converter": str(CONVERTER),
    }
    try:
        return (keep("tokenizer", made_of, partial(_pack_into, json_text)) / FILE).read_bytes()
    except OSError:  # a cache that may only be read, or is full
        return packed_tokenizer(json_text)


def _pack_into(json_text: str, folder: Path) -> None:
    (folder / FILE).write_bytes(packed_tokenizer(json_text))


@lru_cache(maxsize=8)
def _segments_or_refused(
    template: str, bos_token: str | None, eos_token: str | None
) -> tuple[ChatSegments | None, str | None]:
    try:
        return find_segments(template, TextProcess(), bos_token, eos_token), None
    except AneBookError as error:
        return None, str(error)


def tokenizer_entry(files: TokenizerFiles) -> Tokenizer:
    """The manifest's entry of a tokenizer, with what was refused of it and why."""
    segments, unsegmented, template = None, None, files.chat_template
    if template is not None:
        segments, unsegmented = _segments_or_refused(template, files.bos_token, files.eos_token)
    packed, unpacked = packed_or_refused(files.json)
    refused: dict[Literal["packed", "segments"], str] = {}
    if unpacked is not None:
        refused["packed"] = unpacked
    if unsegmented is not None:
        refused["segments"] = unsegmented
    return Tokenizer(
        chat_template=template,
        eos_token_ids=list(files.eos_token_ids),
        bos_token_id=files.bos_token_id,
        bos_token=files.bos_token,
        eos_token=files.eos_token,
        packed=None if packed is None else FILE,
        segments=segments,
        refused=refused,
    )
