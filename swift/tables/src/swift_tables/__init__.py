"""What AneBook, the Swift package, reads of a bundle's tokenizer and chat template.

shapes.py      which tokenizers there are tables for
characters.py  the tables of characters
packed.py      a tokenizer as one file of tables, tokenizer.bin
segments.py    a chat template as the texts around contents
recording.py   what a session passes to its programs, for the tests of an app
"""

from ane_book.bundle import Bundle
from ane_book.errors import AneBookError
from ane_book.text.process import TextProcess
from mlprogram.files import telling, written_whole
from swift_tables.packed import packed_tokenizer
from swift_tables.segments import find_segments

__all__ = ["add_tables"]
__version__ = "0.2.0"

FILE = "tokenizer.bin"


def add_tables(bundle: Bundle) -> Bundle:
    """Write a bundle's tokenizer.bin, put the texts of its chat template into the manifest, and
    open it anew. A bundle that has them stays as it is.

    Raises UnsupportedModel for a tokenizer that has no tables, and changes nothing then. Why a
    template has no texts, the manifest says in `tokenizer.refused`.
    """
    says = bundle.manifest.tokenizer
    if says.packed is not None:
        return bundle
    packed = packed_tokenizer((bundle.path / says.file).read_text("utf-8"))
    found: dict = {"packed": FILE}
    if template := says.chat_template:
        try:
            segments = find_segments(template, TextProcess(), says.bos_token, says.eos_token)
            found["segments"] = segments.model_dump()
        except AneBookError as error:
            found["refused"] = {"segments": str(error)}
    path = bundle.path / FILE
    with telling(path), written_whole(path) as unfinished:
        unfinished.write_bytes(packed)
    bundle.add_files([FILE], tokenizer=says.model_dump() | found)
    return Bundle.open(bundle.path)
