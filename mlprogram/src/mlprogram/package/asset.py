"""What an `.aimodel` is on disk, and whether it is as it was written.

    main.mlirb      the program in MLIR's bytecode, weights included
    main.hash       the sha256 of main.mlirb, 32 bytes
    metadata.json   assetVersion and producer; of an asset written here also what it was made of

coreai-core compares no hash, and a damaged program ends the process that reads it (1.0.0b1 to b3 on
Linux, with SIGABRT). So files are compared here before it is given any, and a program whose maker
is not known is read by a process of its own. Comparing needs no package of Core AI.
"""

from dataclasses import dataclass
from importlib.util import find_spec
import json
import mmap
from pathlib import Path
import stat
import subprocess
import sys
from typing import Any

from mlprogram.errors import InvalidInput, InvalidPackage, refuse_pointer
from mlprogram.extras import missing
from mlprogram.files import content_hash, sha256
from mlprogram.package import asset_listing

OWN = "ane-book"  # the key of what this library says in metadata.json
MOST = {"metadata.json": 1 << 20, "main.hash": 32}  # bytes
MAGIC = b"ML\xefR"
ASSET_VERSION = "2.0"
#: The dialect of locations as coreai-core 1.0.0b1 writes them, among the names in the bytecode.
OLD_LOCATIONS = b"\0builtin\0"


def check_asset(asset: Path) -> dict:
    """Compare an asset's files with each other, and return what metadata.json says.

    Raises InvalidPackage, with what to do: for a file that is missing, too large, none, or a
    pointer of Git LFS, metadata of another shape or version, and a program that is not the one of
    which main.hash is.
    """
    if not asset.is_dir():
        raise InvalidPackage(f"{asset}: no asset of Core AI, which is a folder; {_anew(asset)}")
    for name in ("metadata.json", "main.hash", "main.mlirb"):
        _check_file(asset / name)
    metadata = _metadata(asset / "metadata.json")
    program = asset / "main.mlirb"
    with program.open("rb") as file:
        if file.read(4) != MAGIC:
            raise InvalidPackage(f"{program}: no bytecode of MLIR; {_anew(asset)}")
    if sha256(program) != (asset / "main.hash").read_bytes().hex():
        raise InvalidPackage(f"{program}: damaged, or not the one of main.hash; {_anew(asset)}")
    return metadata


def _anew(asset: Path) -> str:
    package = asset.with_suffix(".mlpackage").name
    return f"delete it, and write it anew: `mlprogram save {package} {asset.name}`"


def _check_file(path: Path) -> None:
    try:
        status = path.lstat()
    except OSError as error:
        raise InvalidPackage(f"{path}: {error.strerror}; {_anew(path.parent)}") from None
    if not stat.S_ISREG(status.st_mode):
        raise InvalidPackage(f"{path}: no regular file; {_anew(path.parent)}")
    if status.st_size > MOST.get(path.name, status.st_size):
        most = MOST[path.name]
        raise InvalidPackage(f"{path}: more than {most:,} bytes; {_anew(path.parent)}")
    refuse_pointer(path, InvalidPackage)


def _metadata(path: Path) -> dict:
    try:
        fields = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InvalidPackage(f"{path}: no JSON ({error}); {_anew(path.parent)}") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("producer", ""), str):
        raise InvalidPackage(f"{path}: not an asset's fields by name; {_anew(path.parent)}")
    if (version := fields.get("assetVersion")) != ASSET_VERSION:
        raise InvalidPackage(
            f"{path}: assetVersion {version!r}, and this version of mlprogram knows "
            f"{ASSET_VERSION!r}; {_anew(path.parent)}, or update mlprogram"
        )
    return fields


def old_locations(asset: Path) -> bool:
    """Whether the program has its places in the form of coreai-core 1.0.0b1.

    coreai-core from 1.0.0b2 on ends its process at one, on Linux as on macOS (coreai-torch #37).
    """
    with (
        (asset / "main.mlirb").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as program,
    ):
        return program.find(OLD_LOCATIONS) >= 0


# --- what an asset was made of ------------------------------------------------------------------


def origin(package: Path, precision: str) -> dict[str, Any]:
    """What an asset written here says of itself in metadata.json."""
    return {"package": content_hash(package), "precision": precision}


def check_origin(asset: Path, metadata: dict, package: Path, precision: str) -> None:
    """Raise InvalidPackage unless an asset says that it was made of this package, as it is now."""
    own = metadata.get("creatorDefinedMetadata")
    said = own.get(OWN) if isinstance(own, dict) else None
    if said != origin(package, precision):
        raise InvalidPackage(
            f"{asset}: not made of {package.name} as it is now, in {precision}; {_anew(asset)}"
        )


# --- reading an asset in a process of its own ----------------------------------------------------


@dataclass(frozen=True)
class AssetOp:
    """An op of an asset, or a function's arguments, of the type "graph".

    function: its entry point. number: among the function's `of`, from 1; of arguments 0. type: such
    as "argmax". operands: their types, such as "tensor<1x64xf16>", or a scalar constant itself,
    "dense<1.000000e+00> : tensor<f16>". results: their types.
    """

    function: str
    number: int
    of: int
    type: str
    operands: list[str]
    results: list[str]


def read_program(asset: Path) -> list[AssetOp]:
    """The ops of a whole asset, as a process of its own reads them.

    Raises InvalidPackage where coreai-core cannot read it, InvalidInput where it is missing.
    """
    check_installed()
    command = [sys.executable, asset_listing.__file__, str(asset / "main.mlirb")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1].strip()
        raise InvalidPackage(
            f"{asset}: coreai-core cannot read the program (exit status {done.returncode}: "
            f"{last}); {_anew(asset)}"
        )
    return [AssetOp(**fields) for fields in json.loads(done.stdout.splitlines()[-1])]


def check_installed() -> None:
    """Raise InvalidInput where coreai-core is missing, with what to do."""
    if find_spec("coreai") is None:
        purpose = "to make or run assets of Core AI"
        raise InvalidInput(missing(purpose, "mlprogram[coreai]", "coreai-core"))
