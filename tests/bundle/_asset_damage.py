"""Ways in which a bundle's assets of Core AI, and what the manifest says of them, are damaged."""

from collections.abc import Callable
import json
from pathlib import Path
from random import Random
import shutil

ASSET, OTHER = "head.aimodel", "layers_00-03.aimodel"
FILES = ("main.mlirb", "main.hash", "metadata.json")
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


def flip(path: Path, random: Random) -> None:
    content = bytearray(path.read_bytes())
    content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def cut(path: Path, random: Random) -> None:
    path.write_bytes((content := path.read_bytes())[: random.randrange(len(content))])


def zeros(path: Path, random: Random) -> None:
    content = bytearray(path.read_bytes())
    start = random.randrange(len(content))
    content[start : start + 64] = bytes(len(content[start : start + 64]))
    path.write_bytes(content)


def missing(path: Path, random: Random) -> None:
    path.unlink()


def a_folder(path: Path, random: Random) -> None:
    path.unlink()
    path.mkdir()


def a_link(path: Path, random: Random) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def a_pointer(path: Path, random: Random) -> None:
    path.write_bytes(POINTER)


def of_the_other(path: Path, random: Random) -> None:
    shutil.copy(path.parents[1] / OTHER / path.name, path)


HARM = (flip, cut, zeros, missing, a_folder, a_link, a_pointer, of_the_other)
FIELDS = (
    {}, {"assetVersion": 2.0}, {"assetVersion": "3.0"}, {"assetVersion": None}, [], None, "2.0",
    {"assetVersion": "2.0", "producer": 5},
    {"assetVersion": "2.0", "creatorDefinedMetadata": []},
    {"assetVersion": "2.0", "creatorDefinedMetadata": {"ane-book": "fp16"}},
    {"assetVersion": "2.0", "creatorDefinedMetadata": {"ane-book": {"package": 1}}},
)  # fmt: skip
TEXTS = (b"", b"\xff\xfe", b"[" * 100_000, b'{"assetVersion": "2.0"', b" " * (1 << 21), b"NaN")


def other_fields(folder: Path, random: Random) -> None:
    (folder / ASSET / "metadata.json").write_text(json.dumps(random.choice(FIELDS)))


def other_text(folder: Path, random: Random) -> None:
    (folder / ASSET / "metadata.json").write_bytes(random.choice(TEXTS))


def swapped(folder: Path, random: Random) -> None:
    (folder / ASSET).rename(folder / "aside")
    (folder / OTHER).rename(folder / ASSET)
    (folder / "aside").rename(folder / OTHER)


def no_folder(folder: Path, random: Random) -> None:
    shutil.rmtree(folder / ASSET)
    (folder / ASSET).write_bytes(b"asset")


def another_package(folder: Path, random: Random) -> None:
    """Other weights, as after a conversion anew, beside the asset of before."""
    flip(next((folder / "head.mlpackage").rglob("weight.bin")), random)


def manifest_bit(folder: Path, random: Random) -> None:
    flip(folder / "manifest.json", random)


def manifest_cut(folder: Path, random: Random) -> None:
    cut(folder / "manifest.json", random)


def manifest_of_assets(folder: Path, random: Random) -> None:
    """Another size or no digest for one of the files, or one that is not there."""
    path = folder / "manifest.json"
    fields = json.loads(path.read_bytes())
    files, name = fields["files"], f"{ASSET}/{random.choice(FILES)}"
    files[random.choice([name, f"{ASSET}/more", "../x", "tail.aimodel/main.mlirb"])] = (
        random.choice([-1, "many", None, 10**30, 7])
    )
    path.write_text(json.dumps(fields))


def _of_file(harm: Callable, name: str) -> Callable:
    return lambda folder, random: harm(folder / ASSET / name, random)


KINDS = {f"{harm.__name__}, {name}": _of_file(harm, name) for harm in HARM for name in FILES}
KINDS |= {
    kind.__name__: kind
    for kind in (
        other_fields, other_text, swapped, no_folder, another_package, manifest_bit, manifest_cut,
        manifest_of_assets,
    )
}  # fmt: skip
#: What may change nothing that is read: a date, a space, a word for the record.
HARMLESS = {"flip, metadata.json", "of_the_other, metadata.json", "manifest_bit"}
