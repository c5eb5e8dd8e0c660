"""Files that were made to hurt: each costs one clear error, no gigabytes, no seconds, no hang.

All are opened in a child process with a limit of memory (`_judge.py`).
"""

from collections.abc import Iterator
import json
import os
from pathlib import Path
import shutil
import struct
import subprocess
import sys
import tempfile

from _judge import Judge
from _tiny_gguf import write_gguf
from _tiny_weights import save_folder, tiny_model
from ane_book.errors import InvalidWeights
from ane_book.weights import gguf_header, open_source
import pytest

STRING, ARRAY, UINT8, UINT32, UINT64 = 8, 9, 0, 4, 10
KEY = struct.pack("<Q", 1) + b"k"


@pytest.fixture(scope="module")
def judge():
    made = Judge()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """A folder of safetensors that lacks nothing but a tokenizer."""
    return save_folder(tmp_path_factory.mktemp("sound"), tiny_model("llama"))


@pytest.fixture
def folder(sound, tmp_path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(sound, tmp_path / "m"))


def header(tensors: int, entries: int, *body: bytes) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, entries) + b"".join(body)


def entry(kind: int, *after: bytes) -> bytes:
    return KEY + struct.pack("<I", kind) + b"".join(after)


def array(kind: int, count: int) -> bytes:
    return struct.pack("<IQ", kind, count)


def row(name: bytes, *dimensions: int, kind: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return struct.pack("<Q", len(name)) + name + sizes + struct.pack("<IQ", kind, offset)


#: What lies before 64 MB of zeros, which most lengths below pass for the file's own.
HEADERS = {
    "tensors": (header(2**62, 0), "wants byte"),
    "entries": (header(0, 2**62), "wants byte"),
    "tensors of no name": (header(2**21, 0), "is there twice"),
    "entries of no name": (header(0, 2**21), "is there twice"),
    "a long name": (header(0, 1, struct.pack("<Q", 2**63)), "wants byte"),
    "a long text": (header(0, 1, entry(STRING, struct.pack("<Q", 2**40))), "wants byte"),
    "many texts": (header(0, 1, entry(ARRAY, array(STRING, 2**60))), "wants byte"),
    "many empty texts": (header(0, 1, entry(ARRAY, array(STRING, 1_000_000))), "architecture None"),
    "many numbers": (header(0, 1, entry(ARRAY, array(UINT64, 2**60))), "wants byte"),
    "more numbers than any header has": (
        header(0, 1, entry(ARRAY, array(UINT8, 60_000_000))),
        "a header of 60,000,001 values",
    ),
    "an array of arrays": (
        header(0, 1, entry(ARRAY, array(ARRAY, 2**40))),
        "k is of unknown type 9",
    ),
    "an unknown type": (header(0, 1, entry(77)), "k is of unknown type 77"),
    "two entries of a name": (
        header(0, 2, entry(UINT8, b"\1"), entry(UINT8, b"\2")), "'k' is there twice",
    ),
    "two tensors of a name": (header(2, 0, row(b"t", 32), row(b"t", 32)), "'t' is there twice"),
    "dimensions": (header(1, 0, row(b"t", *[2**63] * 4)), "t ends at byte"),
    "an offset": (header(1, 0, row(b"t", 32, offset=2**64 - 32)), "t ends at byte"),
    "no whole block": (header(1, 0, row(b"t", 33, kind=8)), "no whole number of blocks"),
    "tensors that overlap": (
        header(2, 0, row(b"t", 32), row(b"u", 32, offset=64)),
        "tensor u begins inside of tensor t",
    ),
    "an alignment of 0": (
        header(0, 1, struct.pack("<Q", 17), b"general.alignment", struct.pack("<II", UINT32, 0)),
        "general.alignment is 0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", HEADERS)
def test_a_header_takes_no_more_than_its_file(tmp_path, judge, kind):
    """In a file as large as a model, where a length that is damaged may well fit."""
    content, message = HEADERS[kind]
    path = tmp_path / "m.gguf"
    with path.open("wb") as file:
        file.write(content)
        file.truncate(64_000_000)
    found = judge(path)
    assert found["outcome"] in ("InvalidWeights", "UnsupportedModel"), found
    assert message in found["message"]


def test_a_header_has_an_end(tmp_path, monkeypatch):
    """What is true of 64 MB is true of a terabyte, which costs nothing to claim."""
    path = tmp_path / "m.gguf"
    with path.open("wb") as file:
        file.write(header(0, 1, entry(STRING, struct.pack("<Q", 2**39))))
        file.truncate(2**40)
    with pytest.raises(InvalidWeights, match="the header wants byte"):
        open_source(path)
    assert gguf_header.HEADER_BYTES < 2**39


SPECIAL = {
    "a folder": Path.mkdir, "a pipe": os.mkfifo, "a device": lambda p: p.symlink_to("/dev/zero"),
}  # fmt: skip


@pytest.mark.parametrize("what", SPECIAL)
@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "config.json", "tokenizer.json", "generation_config.json",
     "chat_template.jinja", "model.safetensors.index.json", "other.gguf"],
)  # fmt: skip
def test_what_is_no_file_is_not_read(folder, judge, name, what):
    (folder / "tokenizer.json").write_text("{}")
    path = folder / name
    path.unlink(missing_ok=True)
    SPECIAL[what](path)
    if name == "other.gguf":
        folder = path
    found = judge(folder)
    expected = "WeightsNotFound" if (name, what) == ("other.gguf", "a folder") else "InvalidWeights"
    assert found["outcome"] == expected, found
    assert str(path) in found["message"]


@pytest.mark.parametrize(
    "name",
    ["../secret.safetensors", "/etc/passwd", "..", ".", "", "sub/../x.safetensors", "a\0b",
     "x" * 5000, "config.json", "\ud800"],
    ids=lambda name: ascii(name[:30]),
)  # fmt: skip
def test_an_index_names_files_of_its_folder_alone(tmp_path, folder, judge, name):
    (folder / "model.safetensors").rename(tmp_path / "secret.safetensors")
    (folder / "sub").mkdir()
    index = {"weight_map": {"model.norm.weight": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert judge(folder)["outcome"] == "InvalidWeights"


def test_a_link_within_the_cache_of_the_hub_is_followed(tmp_path, folder):
    """Its folders hold nothing else."""
    (folder / "model.safetensors").rename(tmp_path / "blob")
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    assert open_source(folder).kind == "safetensors"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, b"\xff\xfe", b"", '{"a": 1' + "0" * 5000 + "}"],
    ids=lambda text: repr(text[:6]),
)  # fmt: skip
def test_json_that_no_parser_likes(folder, judge, name, text):
    (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    found = judge(folder)
    assert found["outcome"] == "InvalidWeights" and str(folder / name) in found["message"], found


def test_json_of_gigabytes(folder, judge):
    with (folder / "config.json").open("wb") as file:
        file.truncate(2**32)
    assert judge(folder)["message"].endswith("config.json: larger than 100 MB")


UNREADABLE = """
import os, sys
from ane_book.errors import InvalidWeights
from ane_book.weights import open_source
import ane_book.weights.gguf, ane_book.weights.onnx, ane_book.weights.safetensors, mmap, torch
folder, user = sys.argv[1], os.geteuid()
for line in sys.argv[2:]:
    name, asked = line.split()
    os.chmod(f"{folder}/{name}", 0)
    os.seteuid(user or 65534)
    try:
        open_source(f"{folder}/{asked}").fingerprint()
    except InvalidWeights as error:
        print(error)
    os.seteuid(user)
    os.chmod(f"{folder}/{name}", 0o755)
"""


@pytest.fixture
def public(sound) -> Iterator[Path]:
    """A copy that another user may read, which pytest's own folders forbid."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(shutil.copytree(sound, Path(made) / "m"))
        (folder / "tokenizer.json").write_text("{}")
        write_gguf(folder / "m.gguf", tiny_model("llama"))
        (folder / "closed").mkdir()
        for path in (folder.parent, folder, *folder.iterdir()):
            path.chmod(0o755)
        yield folder


def test_files_that_may_not_be_read(public):
    asked = [
        "m.gguf m.gguf", "model.safetensors .", "config.json .", "tokenizer.json .",
        "closed closed/m.gguf",
    ]  # fmt: skip
    command = [sys.executable, "-c", UNREADABLE, str(public), *asked]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line, said in zip(asked, done.stdout.splitlines(), strict=True):
        assert str(public / line.split()[0]) in said and "ermission denied" in said, line
