"""A range of layers on one machine: the actor that loads its packages, and keeps caches by session.

It knows nothing of Ray: `ane_serve.cluster.placement` makes an actor of it. Calls come one at a
time and in the order in which they were made.

Letters: C hidden size, R rows of a value, T tokens of a call, n of it that are no padding.
"""

from collections.abc import Iterable
from copy import copy
from pathlib import Path
import platform

from ane_book import __version__
from ane_book.bundle import Bundle
from ane_book.bundle.manifest import Manifest
from ane_book.runtime.backends import choose_backend
from ane_book.runtime.model_runner import HostInputs, check_memory, kept_bytes
from ane_book.runtime.shards import ShardRunner, Steps, load_steps
from ane_serve.cluster.files import Files
from ane_serve.cluster.layout import crossing, units
import mlprogram
import numpy as np


class Stage:
    """Some units of a bundle (`ane_serve.cluster.layout`), one after the other, on this machine."""

    def __init__(self) -> None:
        self._caches: dict[int, Steps] = {}

    def to_json(self) -> dict[str, str]:
        """Versions, which have to be the same everywhere, and how many sessions have caches."""
        return {
            "ane-book": __version__,
            "mlprogram": mlprogram.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "sessions": str(len(self._caches)),
        }

    def open(self, path: str, manifest: str, first: int, last: int) -> list[str]:
        """Take a manifest; returns the packages of units [first, last) that must be sent here."""
        self._manifest = Manifest.model_validate_json(manifest)
        self._parts = [part for parts in units(self._manifest)[first:last] for part in parts]
        self._given = list(crossing(self._manifest, last))
        check_memory(self._manifest, kept_bytes(self._manifest, self._parts))
        packages = [part.package for part in self._parts]
        self._files = Files(Path(path), manifest, self._manifest, packages)
        return self._files.missing()

    def begin(self, package: str) -> None:
        """Begin to receive a package."""
        self._files.begin(package)

    def receive(self, name: str, content: bytes) -> None:
        """Append the next bytes to one of its files."""
        self._files.receive(name, content)

    def keep(self, package: str) -> None:
        """Check and keep a package that was sent whole."""
        self._files.keep(package)

    def load(self, precision: str, backend: str | None, threads: int) -> str:
        """Load the shards, whose files have been checked; returns the backend's name."""
        bundle = Bundle(self._files.folder, self._manifest)
        chosen = choose_backend(backend, precision)
        if chosen.name == "mil":  # Ray leaves one thread to an actor
            import torch

            torch.set_num_threads(threads)
        self._loaded = load_steps(bundle, chosen, self._parts)
        self._inputs = HostInputs(bundle, chosen.dtype)
        return chosen.name

    def run(
        self,
        session: int,
        ended: Iterable[int],
        function: str,
        position: int,
        values: dict[str, np.ndarray],
    ) -> dict[str, np.ndarray]:
        """Run n tokens for slots `position` and after; returns what the next stage takes.

        values: what this stage takes, each (1, R, 1, n); for the first stage `hidden` (1, C, 1, n).
        ended: sessions whose caches are no longer needed.
        """
        for old in ended:
            self._caches.pop(old, None)
        if session not in self._caches:
            self._caches[session] = _another(self._loaded)
        n, T = next(iter(values.values())).shape[3], self._inputs.tokens(function)
        padded = {k: np.pad(v, [(0, 0)] * 3 + [(0, T - n)]) for k, v in values.items()}
        values = self._inputs.around(function, position) | padded
        for step in self._caches[session]:
            step.run(function, values, n)
        return {name: values[name][..., :n].copy() for name in self._given}


def _another(steps: Steps) -> Steps:
    """The same programs with empty caches, for another session."""
    copies = [copy(step) for step in steps]
    for step in copies:
        if isinstance(step, ShardRunner):
            step.start()
    return copies
