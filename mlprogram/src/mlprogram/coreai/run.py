"""Functions of packages on Core AI's runtime: a third backend, on Linux's CPU.

The runtime's calls are coroutines, so one thread with an event loop of its own waits for them. On
Linux an asset is compiled in every process that opens it.
"""

import asyncio
from collections.abc import Callable
from functools import cache, partial
import hashlib
from pathlib import Path
import tempfile
import threading
from typing import Any

from mlprogram.coreai.bridge import check_installed, save_asset
from mlprogram.errors import InvalidInput
from mlprogram.files import content_hash
from mlprogram.package.asset import check_asset, check_origin
from mlprogram.package.function import Function
from mlprogram.package.reader import Package
import numpy as np

Keep = Callable[[str, dict[str, str], Callable[[Path], None]], Path]
LOCK = threading.Lock()  # of the folders that are kept for this process
VERSION = 2  # of the bridge: a change of what it writes makes cached assets anew


class CoreAIBackend:
    """Core AI, from an `.aimodel` beside each package, or else one made in the cache.

    precision: "fp32" is of assets whose half precision was widened, always in the cache. keep:
    makes a folder of a cache, once, of a name and what it is made of; without one, assets are kept
    in a temporary folder. Raises InvalidInput for another precision and where coreai-core is
    missing; `load` raises InvalidPackage for an asset that is damaged, or of another package.
    """

    name = "coreai"

    def __init__(self, precision: str = "fp16", keep: Keep | None = None):
        check_installed()
        if precision not in ("fp16", "fp32"):
            raise InvalidInput(f'Core AI has the precisions "fp16" and "fp32", not {precision!r}')
        self.precision, self._keep = precision, keep or _keep_while_it_runs
        self.dtype = np.dtype(np.float32 if precision == "fp32" else np.float16)
        self._models: dict[Path, Any] = {}
        self._packages: dict[Path, Package] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="core-ai")
        self._thread.start()

    def load(self, package: Path, function: str) -> "_Function":
        package = Path(package)
        if package not in self._packages:
            self._packages[package] = Package(package)
        functions = self._packages[package].functions
        if function not in functions:
            raise InvalidInput(
                f"{package}: no function {function!r}; it has: {', '.join(functions)}"
            )
        if any(None in type_.shape for type_ in functions[function].inputs.values()):
            raise InvalidInput(
                f"{package}, function {function!r}: a flexible size; an asset holds the functions "
                "whose sizes are fixed"
            )
        if package not in self._models:
            asset = self._asset(package)
            check_origin(asset, check_asset(asset), package, self.precision)
            self._models[package] = self._run(self._open(asset))
        loaded = self._models[package].load_function(function)
        return _Function(self._run, loaded, functions[function], self.dtype)

    def open(self, asset: Path, declared: Function) -> "_Function":
        """A function of an asset that somebody wrote, with the types of the program behind it."""
        loaded = self._run(self._open(asset)).load_function(declared.name)
        return _Function(self._run, loaded, declared, self.dtype)

    def close(self) -> None:
        """End the thread; functions that were loaded can no longer be called."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _asset(self, package: Path) -> Path:
        beside = package.with_suffix(".aimodel")
        if self.precision == "fp16" and beside.exists():
            return beside
        made_of = {
            "package": content_hash(package), "precision": self.precision, "bridge": str(VERSION),
        }  # fmt: skip
        write = partial(self._write, package)
        return self._keep(package.stem, made_of, write) / beside.name

    def _write(self, package: Path, folder: Path) -> None:
        save_asset(package, folder / f"{package.stem}.aimodel", self.precision)

    async def _open(self, asset: Path) -> Any:
        """The model of an asset. On Linux it was compiled into a temporary folder, which is gone by
        now, its file still mapped, so that a process that is killed later leaves nothing."""
        from coreai.authoring import AIModelAsset

        async with AIModelAsset.load(asset).executable() as model:
            return model

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()


class _RuntimeState:
    """Tensors that calls change in place, by name, as `MLProgram`'s State has them."""

    def __init__(self, arrays: dict[str, np.ndarray]):
        from coreai.runtime import NDArray

        self.tensors = {name: NDArray(array) for name, array in arrays.items()}

    def read_state(self, name: str) -> np.ndarray:
        return np.array(self.tensors[name].numpy())

    def write_state(self, name: str, value: np.ndarray) -> None:
        from coreai.runtime import NDArray

        dtype = self.tensors[name].numpy().dtype
        self.tensors[name] = NDArray(np.array(value, dtype, order="C"))


class _Function:
    """One function of an asset, with the types that its package declares."""

    def __init__(self, run: Any, loaded: Any, declared: Function, dtype: np.dtype):
        self._run, self._loaded, self._dtype = run, loaded, dtype
        self.inputs, self.outputs, self.states = declared.inputs, declared.outputs, declared.states
        described = loaded.desc
        self._kinds = {n: described.input_descriptor(n).dtype for n in described.input_names}
        self._kept = described.state_names

    def predict(
        self, inputs: dict[str, np.ndarray], state: Any = None, *, used: int = 0
    ) -> dict[str, np.ndarray]:
        from coreai.runtime import NDArray

        given = {
            name: state.tensors[name]  # a state that no call changes is an input like others
            if name in self.states
            else NDArray(np.array(inputs[name], kind, order="C"))
            for name, kind in self._kinds.items()
        }
        kept = {name: state.tensors[name] for name in self._kept} if self._kept else None
        found = self._run(self._loaded(given, kept))
        return {name: np.array(found[name].numpy()) for name in self.outputs}

    def make_state(self) -> _RuntimeState:
        sizes = {name: type_.sizes for name, type_ in self.states.items()}
        return _RuntimeState({name: np.zeros(size, self._dtype) for name, size in sizes.items()})


@cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="mlprogram-coreai-")


def _keep_while_it_runs(name: str, made_of: dict[str, str], make: Callable[[Path], None]) -> Path:
    """Like the cache's `keep`, for this process alone."""
    key = hashlib.sha256(repr(sorted(made_of.items())).encode()).hexdigest()[:16]
    folder = Path(_folder().name, f"{name}-{key}")
    with LOCK:
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
                whole = Path(unfinished, "whole")
                whole.mkdir()
                make(whole)
                whole.rename(folder)
    return folder
