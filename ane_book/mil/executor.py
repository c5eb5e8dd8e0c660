"""Run a Core ML ML Program anywhere: `MLProgram("model.mlpackage").predict({"x": x})`.

The call is that of coremltools' `MLModel.predict`, which needs a Mac. With precision="fp16" every
tensor has the dtype that the program declares and each op rounds once, after summing in float32;
with precision="fp32" half precision is lifted to single, which gives the numbers to compare with
PyTorch.

Taught in the chapters "Porting recipe" and "Inside an ML Program".
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from ane_book.errors import InvalidInput
from ane_book.mil.compile import Compiled, Compiler, as_array, torch_dtype
from ane_book.mil.reader import Function, Operation, Package, TensorType
import numpy as np
import torch

__all__ = ["MLProgram", "State"]

PRECISIONS = ("fp16", "fp32")


class State:
    """The tensors that a stateful program keeps between calls, by name."""

    def __init__(self, tensors: dict[str, torch.Tensor]):
        self.tensors = tensors

    def read_state(self, name: str) -> np.ndarray:
        """A copy of one state, as coremltools' `MLState.read_state` gives it."""
        return as_array(self._find(name).clone())

    def write_state(self, name: str, value: np.ndarray) -> None:
        """Replace one state; `value` must have its shape."""
        tensor = self._find(name)
        if tuple(value.shape) != tuple(tensor.shape):
            raise InvalidInput(f"state {name!r} has shape {tuple(tensor.shape)}, not {value.shape}")
        self.tensors[name] = torch.tensor(value, dtype=tensor.dtype)

    def _find(self, name: str) -> torch.Tensor:
        if name not in self.tensors:
            raise InvalidInput(f"no state {name!r}; this program has: {', '.join(self.tensors)}")
        return self.tensors[name]


class MLProgram:
    """An ML Program, opened from a `.mlpackage` and ready to run with torch on this machine.

    path: a `.mlpackage` folder.
    function_name: which function of a multifunction package; the default one when None.
    precision: "fp16" as the program declares, or "fp32" as reference.
    optimize: False turns every shortcut off, for comparison.

    Raises InvalidPackage for a damaged package, InvalidInput for an unknown function or precision,
    UnsupportedOp (at the first `predict`) for an op that the executor does not have.
    """

    def __init__(
        self,
        path: str | Path | Package,
        function_name: str | None = None,
        precision: str = "fp16",
        *,
        optimize: bool = True,
        _shared: dict | None = None,
    ):
        if precision not in PRECISIONS:
            raise InvalidInput(
                f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}"
            )
        self.package = path if isinstance(path, Package) else Package(path)
        self.precision, self._optimize = precision, optimize
        self._shared = {} if _shared is None else _shared
        name = function_name or self.package.default_function
        if name not in self.package.functions:
            raise InvalidInput(
                f"{self.package.path}: no function {name!r}; it has: {', '.join(self.functions)}"
            )
        self._function: Function = self.package.functions[name]

    @classmethod
    def from_mlmodel(cls, model, function_name: str | None = None, precision: str = "fp16"):
        """From a coremltools `MLModel` that is still in memory."""
        package = Package.from_spec(model.get_spec(), model.weights_dir)
        return cls(package, function_name, precision)

    def function(self, name: str) -> "MLProgram":
        """Another function of the same package; weights in memory are shared."""
        return MLProgram(
            self.package, name, self.precision, optimize=self._optimize, _shared=self._shared
        )

    @property
    def name(self) -> str:
        """The name of the function that `predict` runs."""
        return self._function.name

    @property
    def functions(self) -> list[str]:
        return list(self.package.functions)

    @property
    def inputs(self) -> dict[str, TensorType]:
        return self._function.inputs

    @cached_property
    def outputs(self) -> dict[str, TensorType]:
        return self._function.outputs

    @property
    def states(self) -> dict[str, TensorType]:
        return self._function.states

    @property
    def operations(self) -> list[Operation]:
        """The ops that compute, in order: all but constants, those of nested blocks included."""
        return [
            operation
            for operation in self._function.operations()
            if operation.type != "const" and not operation.type.startswith("constexpr_")
        ]

    @cached_property
    def compiled(self) -> Compiled:
        """The generated straight-line code; made at the first use."""
        lift = self.precision == "fp32"
        return Compiler(self._function, lift, self._optimize, self._shared).compile()

    def make_state(self) -> State:
        """Fresh states, all zero; any function of the package with the same states may use them."""
        return State(
            {
                name: torch.zeros(type_.shape, dtype=self._torch_dtype(type_))
                for name, type_ in self.states.items()
            }
        )

    def predict(
        self, inputs: Mapping[str, np.ndarray], state: State | None = None
    ) -> dict[str, np.ndarray]:
        """Run the function on named arrays; returns its outputs by name.

        Float arrays of any width are converted to the declared one. Raises InvalidInput for a name,
        shape or dtype that the program does not declare, or for a missing state.
        """
        with torch.inference_mode():
            results = self.compiled.run(self._tensors(inputs), self._states(state))
            return {
                name: as_array(tensor)
                for name, tensor in zip(self._function.block.outputs, results, strict=True)
            }

    def trace(
        self, inputs: Mapping[str, np.ndarray], state: State | None = None
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Run like `predict`, yielding (name, array) of every intermediate value as it appears."""
        with torch.inference_mode():
            for name, tensor in self.compiled.trace(self._tensors(inputs), self._states(state)):
                if isinstance(tensor, torch.Tensor):
                    yield name, as_array(tensor.clone())

    def _torch_dtype(self, type_: TensorType) -> torch.dtype:
        return torch_dtype(type_.dtype, self.precision == "fp32")

    def _states(self, state: State | None) -> dict[str, torch.Tensor]:
        if not self.states:
            return {}
        if state is None:
            raise InvalidInput(
                f"function {self.name!r} keeps state ({', '.join(self.states)}): "
                "pass state=program.make_state()"
            )
        return state.tensors

    def _tensors(self, inputs: Mapping[str, np.ndarray]) -> list[torch.Tensor]:
        if inputs.keys() != self.inputs.keys():
            missing = sorted(self.inputs.keys() - inputs.keys())
            unknown = sorted(inputs.keys() - self.inputs.keys())
            raise InvalidInput(
                f"function {self.name!r} takes {', '.join(self.inputs)}"
                + (f"; missing: {', '.join(missing)}" if missing else "")
                + (f"; unknown: {', '.join(unknown)}" if unknown else "")
            )
        return [self._tensor(name, inputs[name], type_) for name, type_ in self.inputs.items()]

    def _tensor(self, name: str, value: np.ndarray, type_: TensorType) -> torch.Tensor:
        value = np.asarray(value)
        fits = len(value.shape) == len(type_.shape) and all(
            size is None or size == given
            for size, given in zip(type_.shape, value.shape, strict=True)
        )
        if not fits:
            raise InvalidInput(
                f"input {name!r} must be {type_}, not an array of shape {value.shape}"
            )
        dtype = self._torch_dtype(type_)
        if value.dtype.kind not in "fiub" or (value.dtype.kind == "f") > dtype.is_floating_point:
            raise InvalidInput(f"input {name!r} must be {type_}, not {value.dtype}")
        if not value.flags.writeable:
            value = value.copy()
        return torch.from_numpy(value).to(dtype)
