"""Two ways to run a function of a package, behind one small interface.

`MILBackend` runs it anywhere, with the executor of `mlprogram`. `CoreMLBackend` runs it on a
Mac, through coremltools' binding to Core ML. A session sees only the interface, and one set of
contract tests holds for both.

Limits of Core ML that this file works around:
- Opening a package with `MLModel(path)` rewrites its Manifest.json, and compiles it anew in every
  process. The package is compiled from a copy instead, once for its content, this macOS and this
  coremltools. The result stays in the cache (`ane-book cache`): all functions and later processes
  load it from the same path. Whether the engine's own compiler then has less to do is not measured.
- A state is made by one function's model and used by the other's. coremltools hands it on without a
  check of its own, and ANEMLL's chat (github.com/Anemll/Anemll, tests/chat.py) relies on it: its
  state is made by `prefill` and used by `infer`. Not tried on a Mac for this book.
- coremltools widens fp16 inputs to fp32 on the way in: with kv="host" that is a copy of the whole
  cache in every call, which an app that calls Core ML itself does not pay.

Reference: coremltools 9.0, `models/_compiled_model.py` and `models/model.py`.
"""

from functools import partial
import importlib.metadata
from pathlib import Path
import shutil
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ane_book.bundle.cache import keep
from ane_book.errors import BackendUnavailable, InvalidInput, InvalidPackage
from mlprogram import machine
from mlprogram.files import content_hash
from mlprogram.progress import silent_coremltools
from mlprogram.run.precision import check_precision
import numpy as np

if TYPE_CHECKING:  # what listing models does not need
    from mlprogram.package.function import Function
    from mlprogram.package.reader import Package
    from mlprogram.package.values import TensorType


COMPUTE_UNITS = ("ALL", "CPU_AND_NE", "CPU_AND_GPU", "CPU_ONLY")


class LoadedFunction(Protocol):
    """One function of a package, ready to be called; with what it declares, by name."""

    inputs: "dict[str, TensorType]"
    outputs: "dict[str, TensorType]"
    states: "dict[str, TensorType]"

    def predict(
        self, inputs: dict[str, np.ndarray], state: Any = None, *, used: int = 0
    ) -> dict[str, np.ndarray]:
        """Run the function; `state` is updated in place. used: how many of its columns are those of
        tokens, so that others need not be computed; 0 for all."""
        ...

    def make_state(self) -> Any:
        """A zeroed state, good for every function of this function's package."""
        ...


@runtime_checkable
class Backend(Protocol):
    """Loads functions of packages.

    dtype: what the host keeps caches, tables and masks in, float16 or float32.
    """

    name: str
    dtype: np.dtype

    def load(self, package: Path, function: str) -> LoadedFunction:
        """Load one function; the functions of one package share its weights."""
        ...


class MILBackend:
    """The book's own executor, on any machine, in a precision of `MLProgram`'s."""

    name = "mil"

    def __init__(self, precision: str = "fp16"):
        self.precision = check_precision(precision)
        self.dtype = np.dtype(np.float32 if precision == "fp32" else np.float16)
        self._programs: dict[Path, Any] = {}

    def load(self, package: Path, function: str) -> LoadedFunction:
        from mlprogram import MLProgram

        package = Path(package)
        if package not in self._programs:
            self._programs[package] = MLProgram(package, function, precision=self.precision)
        program = self._programs[package].function(function)
        program.prepare()  # work and errors belong to loading, not to the first token
        return program


class CoreMLBackend:
    """Core ML on a Mac, through coremltools. Raises BackendUnavailable elsewhere, with the reason.

    compute_units: "ALL", "CPU_AND_NE", "CPU_AND_GPU" or "CPU_ONLY"; Core ML may use fewer. None:
    the engine where there is one, else the GPU.
    """

    name = "coreml"
    dtype = np.dtype(np.float16)

    def __init__(self, compute_units: str | None = None):
        if compute_units is None:  # asked for an engine it lacks, Core ML may hang
            compute_units = "CPU_AND_NE" if machine.neural_engine()[0] else "CPU_AND_GPU"
        if compute_units not in COMPUTE_UNITS:
            raise InvalidInput(
                f"compute_units must be one of {', '.join(COMPUTE_UNITS)}, not {compute_units!r}"
            )
        if not machine.CAN_PREDICT:
            raise BackendUnavailable(
                f"Core ML cannot run here: {machine.CAN_PREDICT_REASON}; "
                'the "mil" backend runs the same packages on this machine'
            )
        self.compute_units = compute_units
        self._opened: dict[Path, tuple[Package, Path]] = {}  # and what Core ML made of it

    def load(self, package: Path, function: str) -> LoadedFunction:
        with silent_coremltools():
            from coremltools import ComputeUnit
            from coremltools.models import CompiledMLModel
        from mlprogram.package.reader import Package

        package = Path(package)
        if package not in self._opened:
            declared = Package(package)  # refuses a damaged one before it is compiled
            made_of = {
                "package": content_hash(package),
                "macos": machine.macos_build(),
                "coremltools": importlib.metadata.version("coremltools"),
            }
            folder = keep(package.stem, made_of, partial(_compile_into, package))
            self._opened[package] = declared, folder / f"{package.stem}.mlmodelc"
        declared, made = self._opened[package]
        if function not in declared.functions:
            raise InvalidInput(
                f"{package}: no function {function!r}; it has: {', '.join(declared.functions)}"
            )
        try:
            units = ComputeUnit[self.compute_units]
            model = CompiledMLModel(str(made), units, function_name=function)
        except RuntimeError as error:
            raise InvalidPackage(
                f"{package}: Core ML cannot load its function {function!r}: {error}"
            ) from None
        return _CoreMLFunction(model, declared.functions[function])


def _compile_into(package: Path, folder: Path) -> None:
    """Compile a copy of a package into a folder, as STEM.mlmodelc."""
    from coremltools.models.utils import compile_model

    copy = folder / package.name
    shutil.copytree(package, copy)
    try:
        compile_model(str(copy), str(folder / f"{package.stem}.mlmodelc"))
    except RuntimeError as error:
        raise InvalidPackage(f"{package}: Core ML cannot compile it: {error}") from None
    finally:
        shutil.rmtree(copy)


class _CoreMLFunction:
    """A function of a compiled package."""

    def __init__(self, model, declared: "Function"):
        self._model = model
        self.inputs, self.outputs = declared.inputs, declared.outputs
        self.states = declared.states

    def predict(
        self, inputs: dict[str, np.ndarray], state: Any = None, *, used: int = 0
    ) -> dict[str, np.ndarray]:
        # coremltools converts the dict that it is given in place, and the caller's has to last.
        return self._model.predict(dict(inputs), state)

    def make_state(self) -> "_CoreMLState":
        return _CoreMLState(self._model.make_state())


class _CoreMLState:
    """coremltools' state, which may be written in half precision, too: coremltools widens inputs,
    but not what is written to a state, and its binding has no half precision."""

    def __init__(self, state: Any):
        self.__proxy__ = state.__proxy__  # which `predict` hands on
        self.read_state = state.read_state
        self._write = state.write_state

    def write_state(self, name: str, value: np.ndarray) -> None:
        self._write(name, value.astype(np.float32))


def choose_backend(name: Backend | str | None = None, precision: str = "fp16") -> Backend:
    """The backend "mil", "coreml" or "coreai"; None takes Core ML where it can run, else the
    executor.

    A backend object is taken as it is, with a precision of its own. precision="fp32" is not Core
    ML's. Raises InvalidInput for another name or precision, and BackendUnavailable when Core ML is
    asked for by name and cannot run.
    """
    if isinstance(name, Backend):
        return name
    if name not in (None, "mil", "coreml", "coreai"):
        raise InvalidInput(f'backend must be "mil", "coreml" or "coreai", not {name!r}')
    if name == "coreai":
        from mlprogram.coreai.run import CoreAIBackend

        return CoreAIBackend(precision, keep)
    if name == "coreml" and precision != "fp16":
        raise InvalidInput(
            f'precision {precision!r} needs the "mil" backend: Core ML computes in the precision '
            "that the package declares, fp16"
        )
    if name == "coreml" or (name is None and precision == "fp16" and machine.CAN_PREDICT):
        return CoreMLBackend()
    return MILBackend(precision)
