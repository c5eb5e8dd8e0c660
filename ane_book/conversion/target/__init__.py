"""Put a bundle into its folder: only an empty folder or another bundle is ever overwritten.

A new bundle is built beside its place, as `NAME.partial`, and takes the old one's place by two
renames. Between them the old one is `NAME.replaced`; if the process is killed there, the next
conversion puts it back (`recover`).
"""

from contextlib import suppress
import json
from pathlib import Path
import shutil
import stat

from ane_book.errors import InvalidInput
from mlprogram import files
from mlprogram.files import IGNORED, refuse_others, regular_files

UNLISTED = {"manifest.json", "evidence.json"}  # files of a bundle that its manifest does not list
ELSEWHERE = "choose another folder"


def beside(target: Path, state: str) -> Path:
    """`target.partial`, the bundle before it is finished, or `target.replaced`, the old one."""
    return target.parent / f"{target.name}.{state}"


def is_empty(folder: Path) -> bool:
    """Whether nothing is lost with this folder: it is empty, or not there."""
    if not folder.exists():
        return True
    return all(path.name in IGNORED and path.is_file() for path in folder.iterdir())


def check_place(target: Path) -> None:
    """Raise InvalidInput for a path where no bundle may be put."""
    what, here = None, None
    with suppress(OSError):  # of a folder that was deleted meanwhile
        here = Path.cwd().resolve()
    with suppress(FileNotFoundError, ValueError):  # the second of a path that is none
        target.parent.stat()  # raises OSError for a loop of links, of which `resolve` makes another
    if "\0" in str(target):
        what = f"is no path; {ELSEWHERE}"
    elif target.suffix in (".mlpackage", ".mlmodelc", ".aimodel"):
        what = f"names one program, and a bundle is a folder of several; leave {target.suffix} out"
        what += " (`mlprogram convert` makes one program, of an ONNX graph)"
    elif target.is_symlink():
        what = f"is a symbolic link; name the folder that it leads to, or {ELSEWHERE}"
    elif target.exists() and not target.is_dir():
        what = f"is not a folder; {ELSEWHERE}"
    elif target.resolve().is_mount():
        what = "is a mount point; name a folder in it"
    elif here and here.is_relative_to(target.resolve()):
        what = f"is the folder that you are in, or holds it; {ELSEWHERE}"
    elif not is_empty(target) and _listed(target) is None:
        what = f"is neither empty nor a bundle; {ELSEWHERE}"
    if what:
        raise InvalidInput(f"{target} {what}")


def check_ours(folder: Path) -> None:
    """Raise InvalidInput unless a folder is empty, or a bundle and nothing else."""
    if is_empty(folder):
        return
    listed = _listed(folder)
    if listed is None:
        raise InvalidInput(f"{folder} is neither empty nor a bundle; move it away")
    refuse_others(folder, regular_files(folder), listed.__contains__)


def _listed(folder: Path) -> set[str] | None:
    """The files of the bundle in a folder, by a manifest of any version; None without one."""
    file = folder / "manifest.json"
    try:
        fields = json.loads(file.read_bytes() if stat.S_ISREG(file.lstat().st_mode) else "")
        ours = fields["format"].startswith("ane-book bundle ")
        return {*fields["files"], *UNLISTED} if ours else None
    except (FileNotFoundError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def recover(target: Path) -> None:
    """Finish or undo an exchange that was interrupted."""
    new, old = beside(target, "partial"), beside(target, "replaced")
    for path in (new, old):
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise InvalidInput(f"{path} is in the way and not a folder; move it away")
    if not old.exists():
        return
    check_ours(old)
    if is_empty(target):  # somebody may have made the folder anew
        shutil.rmtree(target, ignore_errors=True)
        old.rename(target)
    else:
        check_ours(target)
        shutil.rmtree(old)


def exchange(new: Path, target: Path) -> None:
    """Put the bundle `new` in the place of `target`, which is not there, empty, or ours."""
    if target.exists() and _listed(target) is not None:
        check_ours(target)  # again: since the first time minutes have passed
    files.exchange(new, target)
