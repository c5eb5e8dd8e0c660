"""Damage to the files of a `.mlpackage`: bytes, the manifest, and what stands in a file's place."""

from collections.abc import Callable
import json
import os
from pathlib import Path
from random import Random

#: What a manifest may say that the model's file is.
PATHS = ["", ".", "..", "/", "../" * 9 + "etc/hostname", "com.apple.CoreML", "a\x00b", "x" * 5000,
         "com.apple.CoreML/weights/weight.bin", 7, None, [], {}]  # fmt: skip


def model_file(package: Path) -> Path:
    return package / "Data" / "com.apple.CoreML" / "model.mlmodel"


def bytewise(package: Path, other: Path, outside: Path, rng: Random) -> str:
    found = sorted(file for file in package.rglob("*") if file.is_file())
    file = rng.choice(found)
    donors = sorted(donor for donor in other.rglob("*") if donor.name == file.name)
    data, donor = file.read_bytes(), (donors[0] if donors else model_file(other)).read_bytes()
    if file.suffix == ".bin" and rng.random() < 0.7:  # a record's header: mostly data otherwise
        at = 64 * rng.randrange(len(data) // 64)
        data = data[:at] + mangle(data[at : at + 32], donor[:32], rng) + data[at + 32 :]
    else:
        data = mangle(data, donor, rng)
    file.write_bytes(data)
    return f"bytes of {file.name}"


def mangle(data: bytes, donor: bytes, rng: Random) -> bytes:
    """The bytes with bits flipped, or parts cut, doubled or replaced."""
    if not data:
        return donor[:8]
    start = rng.randrange(len(data))
    length = min(len(data) - start, rng.choice([1, 4, 8, 64, len(data)]))
    match rng.randrange(5):
        case 0:
            changed = bytearray(data)
            for _ in range(rng.choice([1, 1, 4, 16])):
                changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            return bytes(changed)
        case 1:
            return data[:start]
        case 2:
            return data[:start] + data[start + length :]
        case 3:
            return data[: start + length] + data[start:]
        case _:
            taken = rng.randrange(len(donor))
            return data[:start] + donor[taken : taken + length] + data[start + length :]


def manifest(package: Path, other: Path, outside: Path, rng: Random) -> str:
    file = package / "Manifest.json"
    content = json.loads(file.read_text())
    entries = content["itemInfoEntries"]
    root = content["rootModelIdentifier"]
    path = rng.choice([*PATHS, str(outside)])
    values = [path, None, [], {}, 1, "x", {"path": path}, [[[]]] * 9]
    match rng.randrange(4):
        case 0:
            entries[root]["path"] = path
        case 1:
            entries[root] = rng.choice(values)
        case 2:
            content[rng.choice(["itemInfoEntries", "rootModelIdentifier"])] = rng.choice(values)
        case _:
            file.write_text("[" * rng.choice([10, 100_000]))
            return "deep Manifest.json"
    file.write_text(json.dumps(content))
    return f"Manifest.json: {path!r:.60}"


def files(package: Path, other: Path, outside: Path, rng: Random) -> str:
    """A file or folder of the package becomes something else."""
    inside = sorted(package.rglob("*"))
    path = rng.choice(inside)
    moved = package.parent / "moved"
    path.rename(moved)
    makers: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "a folder": path.mkdir,
        "a pipe": lambda: os.mkfifo(path),
        "an empty file": path.touch,
        "a large file": lambda: (path.touch(), os.truncate(path, 2**42)),
        "a link to itself": lambda: path.symlink_to(path.name),
        "a link to a file outside": lambda: path.symlink_to(outside),
        "a link to its like outside": lambda: path.symlink_to(moved),
        "a link to a device": lambda: path.symlink_to("/dev/zero"),
    }
    name = rng.choice(sorted(makers))
    makers[name]()
    return f"{path.name} is {name}"
