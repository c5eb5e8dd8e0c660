"""Put the executor in Core ML's place, so that coremltools' `predict` works without a Mac.

    import mlprogram.coreml

    with mlprogram.coreml.enable():
        model = coremltools.convert(traced, inputs=[...], convert_to="mlprogram")
        model.predict({"x": x})

For a test suite that was written for a Mac: `pytest -p mlprogram`. On a Mac the plugin does
nothing, so the same command works on both.

coremltools reaches Core ML through one native class, `_MLModelProxy` (apple/coremltools 9.0,
`coremlpython/`); `Proxy` has its methods, takes the types of values that it takes, and gives what
it gives: half precision comes out as float32. `MLProgram.predict` takes and gives more. Compute
units and optimization hints are accepted but have no effect; compute plans and devices raise an
error.
"""

from collections.abc import Callable
from functools import wraps
import importlib
from pathlib import Path
import sys
import tempfile
from time import perf_counter_ns
from types import ModuleType
from typing import Any

from mlprogram.errors import InvalidInput, MLProgramError
from mlprogram.machine import CAN_PREDICT
import numpy as np

#: The arrays that the binding hands to Core ML (`CoreMLPythonArray.mm`).
ARRAYS = (np.float32, np.float64, np.int32, np.int8)

MACOS = (15, 4)  # the macOS version that coremltools gets: the newest that version 9.0 checks for
SPECIFICATION = 9  # the newest specification version that the executor reads, iOS 18's
NATIVE = "coremltools.libcoremlpython"  # the extension module that only Apple's wheels carry


def _like_core_ml(method: Callable) -> Callable:
    """Turn our errors to RuntimeError, which Core ML's binding raises for what it refuses."""

    @wraps(method)
    def translated(*arguments, **named):
        try:
            return method(*arguments, **named)
        except MLProgramError as error:
            raise RuntimeError(f"{FAILED.get(method.__name__, '')}{error}") from error

    return translated


FAILED = {
    "__init__": "Error compiling model: ",
    "compileModel": "Error compiling model: ",
    "predict": "Unable to compute the prediction using ML Program: ",
}


def _check_convertible(name: str, value: object) -> None:
    """Raise the RuntimeError of coremltools' binding for what it does not hand to Core ML."""
    if isinstance(value, np.ndarray):
        if value.dtype in ARRAYS and value.ndim and value.flags.writeable:
            return
        kind = "writable" if value.flags.writeable else "read-only"
        what = f"a {kind} array of {value.dtype} of rank {value.ndim}"
    elif isinstance(value, int | float | np.integer | str | dict) or hasattr(value, "getbands"):
        return  # a number, a text or an image; which of them an input may be is for Core ML to say
    else:
        what = f"of type {type(value).__name__}"
    raise RuntimeError(
        f"value type not convertible: {name!r} is {what}; convert it, since coremltools hands Core "
        f"ML only writable arrays of {', '.join(dtype.__name__ for dtype in ARRAYS)}, of rank 1 or "
        "more"
    )


def _as_given(value: Any) -> Any:
    """An output or state as the binding gives it: it has no half precision."""
    half = isinstance(value, np.ndarray) and value.dtype == np.float16
    return value.astype(np.float32) if half else value


class _State:
    """The methods that `coremltools.models.model.MLState` calls."""

    def __init__(self, state):
        self.state = state

    @_like_core_ml
    def read_state(self, name: str) -> np.ndarray:
        return _as_given(self.state.read_state(name))

    @_like_core_ml
    def write_state(self, name: str, value: np.ndarray) -> None:
        _check_convertible(name, value)
        self.state.write_state(name, value)


class Proxy:
    """The class that `MLModel` and `CompiledMLModel` call instead of Core ML's `_MLModelProxy`.

    path: a package, or a compiled model. function: "" is the default one.
    """

    precision = "fp16"

    @_like_core_ml
    def __init__(self, path: str, compute_units: str, function: str, hints: dict, asset=None):
        from mlprogram.run.pipeline import open_model

        if asset is not None:
            raise InvalidInput("a model asset in memory is Core ML's own; save a package instead")
        self.path = path
        self.compiled: tempfile.TemporaryDirectory | None = None
        self.predicting: int | None = None  # ns, of the last prediction
        start = perf_counter_ns()
        self.program = open_model(path, function or None, self.precision)
        self.loading = perf_counter_ns() - start

    @_like_core_ml
    def predict(self, data: dict, state: _State | None = None) -> dict:
        for name, value in data.items():
            _check_convertible(name, value)
        arrays = {name: self._as_declared(name, value) for name, value in data.items()}
        start = perf_counter_ns()
        outputs = self.program.predict(arrays, state.state if state else None)
        self.predicting = perf_counter_ns() - start
        return {name: _as_given(value) for name, value in outputs.items()}

    def batchPredict(self, batch: list[dict]) -> list[dict]:
        start = perf_counter_ns()
        outputs = [self.predict(data) for data in batch]
        self.predicting = perf_counter_ns() - start
        return outputs

    def get_load_duration_in_nano_seconds(self) -> int:
        """The time that it took to open the model."""
        return self.loading

    def get_last_predict_duration_in_nano_seconds(self) -> int | None:
        """The time of the last prediction or batch; None before the first."""
        return self.predicting

    @_like_core_ml
    def newState(self) -> _State:
        return _State(self.program.make_state())

    @_like_core_ml
    def get_compiled_model_path(self) -> str:
        """Write the model as a folder *.mlmodelc, which exists as long as this object."""
        if self.compiled is None:
            from mlprogram import save

            self.compiled = tempfile.TemporaryDirectory()
            save(self.path, Path(self.compiled.name) / "model.mlmodelc")
        return str(Path(self.compiled.name) / "model.mlmodelc")

    def _as_declared(self, name: str, value):
        """Cast a multi-array to int32 unless floats are declared, as Core ML does. Core ML's inputs
        have no rank 0, so an array of one element gets it here if the program declares that."""
        declared = self.program.inputs.get(name)
        if declared is None or not isinstance(value, np.ndarray):
            return value
        if not declared.dtype.startswith(("fp", "bf")):
            value = value.astype(np.int32)
        return value.reshape(()) if declared.shape == () and value.size == 1 else value

    @staticmethod
    def maximum_supported_specification_version() -> int:
        return SPECIFICATION

    @staticmethod
    @_like_core_ml
    def compileModel(path: str) -> str:
        """Write a folder *.mlmodelc that `Proxy` opens; as with Core ML, the caller deletes it."""
        from mlprogram import save

        compiled = Path(tempfile.mkdtemp()) / f"{Path(path).stem}.mlmodelc"
        save(path, compiled)
        return str(compiled)

    @staticmethod
    def _only_core_ml(*_) -> None:
        raise RuntimeError(
            "this needs Core ML itself; mlprogram.coreml stands for predictions only"
        )

    create_model_asset_from_path = create_model_asset_from_memory = _only_core_ml
    get_available_compute_devices = get_all_compute_devices = _only_core_ml
    get_compute_plan = get_model_structure = _only_core_ml


class enable:
    """Put the executor in Core ML's place in coremltools; as a context manager, until its end.

    precision: "fp16" as packages declare, or "fp32" (`mlprogram.MLProgram`). It affects models that
    are created meanwhile, not those that were created before.
    """

    def __init__(self, precision: str = "fp16"):
        importlib.import_module("coremltools.models")
        proxy = type("Proxy", (Proxy,), {"precision": precision})
        native = ModuleType(NATIVE)
        vars(native).update(_MLModelProxy=proxy, _MLModelAssetProxy=type("NoAsset", (), {}))
        self._new = {
            "_MLModelProxy": proxy,
            "_is_macos": lambda: True,
            "_macos_version": lambda: MACOS,
            "_IS_MACOS": True,
        }
        utils = importlib.import_module("coremltools.models.utils")
        self._old = {
            "_MLModelProxy": importlib.import_module("coremltools.models.model")._MLModelProxy,
            "_is_macos": utils._is_macos,
            "_macos_version": utils._macos_version,
            "_IS_MACOS": importlib.import_module("coremltools._deps")._IS_MACOS,
        }
        self._native = sys.modules.get(NATIVE)
        _set_native(native)
        _exchange(self._old, self._new)

    def disable(self) -> None:
        """Restore coremltools."""
        _exchange(self._new, self._old)
        _set_native(self._native)

    def __enter__(self) -> "enable":
        return self

    def __exit__(self, *_) -> None:
        self.disable()


def _set_native(module: ModuleType | None) -> None:
    """Set what `import coremltools.libcoremlpython` finds; None removes it."""
    package, _, name = NATIVE.partition(".")
    if module is None:
        sys.modules.pop(NATIVE, None)
        vars(sys.modules[package]).pop(name, None)
    else:
        sys.modules[NATIVE] = module
        setattr(sys.modules[package], name, module)


def _exchange(old: dict[str, object], new: dict[str, object]) -> None:
    """Replace the old values by the new in all modules of coremltools, which copy names."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "coremltools":
            for key, value in old.items():
                if vars(module).get(key, module) is value:
                    setattr(module, key, new[key])


# --- as a pytest plugin: pytest -p mlprogram -----------------------------------------------


def pytest_configure(config) -> None:
    config._mlprogram = None if CAN_PREDICT else enable()


def pytest_unconfigure(config) -> None:
    if config._mlprogram is not None:
        config._mlprogram.disable()


def pytest_report_header() -> str:
    return "Core ML: " + ("this machine's own" if CAN_PREDICT else "mlprogram's executor instead")
