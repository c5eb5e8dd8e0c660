"""Run a Core ML ML Program anywhere: `MLProgram("model.mlpackage").predict({"x": x})`.

The call is that of coremltools' `MLModel.predict`, which needs a Mac. With precision="fp16" every
tensor has the dtype that the program declares and each op rounds once, after summing in float32;
with precision="fp32" half precision is lifted to single, which gives the numbers to compare with
PyTorch; constants keep the values that the program declares, compressed weights included, which
expand to half precision as declared.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, overload

from mlprogram.analysis.constants import torch_dtype
from mlprogram.analysis.memory import Memory
from mlprogram.arithmetic import Semantics, check_semantics
from mlprogram.errors import InvalidInput, InvalidPackage, InvalidType
from mlprogram.kernels.native.threads import torch_threads
from mlprogram.kernels.table import check_names
from mlprogram.package.container import Container
from mlprogram.package.description import Feature, by_name, features, random_inputs, to_array
from mlprogram.package.function import Function, Operation
from mlprogram.package.reader import Package
from mlprogram.package.validation.validate import check_memory
from mlprogram.package.values import TensorType
from mlprogram.run.compile import Compiled, as_array, compile_plan
from mlprogram.run.footprint import measure
from mlprogram.run.plan import ExecutionPlan, Planner
from mlprogram.run.precision import check_precision
from mlprogram.run.states import States, slots_written, zero_state
import numpy as np
import torch


class State:
    """The tensors that a stateful program keeps between calls, by name.

    One call at a time: it is changed in place, and nothing tells two threads apart.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]):
        self._states = tensors if isinstance(tensors, States) else States(tensors)

    @property
    def tensors(self) -> States:
        """The tensors themselves, by name. Whoever has them may write to them, so from now on
        nothing is known of what they hold."""
        return self._states.lend()

    def clear(self) -> None:
        """Zeros everywhere, as in a new state, at the cost of what was written."""
        with torch_threads(light=True):
            self._states.clear_all()

    def read_state(self, name: str) -> np.ndarray:
        """A copy of one state, in the dtype that the program keeps it in."""
        return as_array(self._find(name).clone())

    def write_state(self, name: str, value: np.ndarray) -> None:
        """Replace one state; `value` must have its shape. Raises InvalidInput."""
        tensor = self._find(name)
        array = to_array(value, f"state {name!r} has shape {tuple(tensor.shape)}")
        if array.shape != tuple(tensor.shape):
            raise InvalidInput(f"state {name!r} has shape {tuple(tensor.shape)}, not {array.shape}")
        array = np.array(array, order="C")  # torch would keep other strides, or refuse them
        self._states[name] = tensor = torch.from_numpy(array).to(tensor.dtype)
        if tensor.dim() > 1 and tensor.dtype != torch.bfloat16:  # which numpy lacks
            self._states.note(name, slots_written(tensor))

    def _find(self, name: str) -> torch.Tensor:
        if name not in self._states:
            raise InvalidInput(f"no state {name!r}; this program has: {', '.join(self._states)}")
        return self._states[name]


def described(program: Any, path: Path) -> str:
    """A program or a pipeline as `print` shows it: its name, and a line for each kind of value."""
    lines = [f"{type(program).__name__} {path.name}, {program.name}, {program.precision}"]
    for kind in ("inputs", "states", "outputs"):
        if types := getattr(program, kind):
            lines.append(f"  {kind}: {', '.join(f'{n} {type_}' for n, type_ in types.items())}")
    return "\n".join(lines)


class MLProgram:
    """An ML Program, opened from its folder and ready to run with torch on this machine.

    path: a `.mlpackage`, or a compiled model, `.mlmodelc`. function_name: which function of a
    multifunction package; the default one when None. precision: "fp16" as the program declares, or
    "fp32" as reference; "ane", experimental, is half precision, op by op, with activations as the
    engine is published to compute them (`native_forms.py`). optimize: False turns every shortcut
    off, for comparison. without: names of entries of `kernels/table.py` to leave out, such as
    "attention"; "runner" has every step called from Python. semantics: what is computed where Core
    ML is documented and reported to compute two things (`mlprogram.arithmetic`): "documented",
    "reported", or by each row's default.

    Threads may share a program, each with a state of its own.

    Raises InvalidPackage for a damaged package, InvalidInput for an unknown function, precision or
    semantics, UnsupportedOp (at the first `predict`) for an op that the executor does not have.
    """

    def __init__(
        self,
        path: str | Path | Container | Package,
        function_name: str | None = None,
        precision: str = "fp16",
        *,
        optimize: bool = True,
        without: Collection[str] = (),
        semantics: Semantics | None = None,
        _shared: dict | None = None,
    ):
        self.precision = check_precision(precision)
        self.semantics = check_semantics(semantics)
        self.package = path if isinstance(path, Package) else Package(path)
        without = check_names(without)
        self._without = without if optimize and precision != "ane" else None
        self._shared = {} if _shared is None else _shared
        name = function_name or self.package.default_function
        if name not in self.package.functions:
            raise InvalidInput(
                f"{self.package.path}: no function {name!r}; it has: {', '.join(self.functions)}"
            )
        self._function: Function = self.package.functions[name]
        check_memory(self._function, self._lift)

    @classmethod
    def from_mlmodel(cls, model, function_name: str | None = None, precision: str = "fp16"):
        """From a coremltools `MLModel` that is still in memory."""
        package = Package.from_spec(model.get_spec(), model.weights_dir)
        return cls(package, function_name, precision)

    def function(self, name: str) -> "MLProgram":
        """Another function of the same package; weights in memory are shared."""
        return self._like(name, self.precision, self._without)

    def plain(self, precision: str | None = None) -> "MLProgram":
        """The same function, op by op with every shortcut off; weights in memory are shared."""
        return self._like(self.name, precision or self.precision, None)

    def _like(self, name: str, precision: str, without: Collection[str] | None) -> "MLProgram":
        return MLProgram(
            self.package,
            name,
            precision,
            optimize=without is not None,
            without=without or (),
            semantics=self.semantics,
            _shared=self._shared,
        )

    def __repr__(self) -> str:
        return described(self, self.package.path)

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
        return [o for o in self._function.operations() if not o.is_constant]

    @cached_property
    def plan(self) -> ExecutionPlan:
        """What is done for the function, step by step; made at the first use."""
        with torch_threads(light=False):
            engine = self.precision == "ane"
            return Planner(
                self._function, self._lift, self._shared, self._without, engine, self.semantics
            ).plan()

    @cached_property
    def compiled(self) -> Compiled:
        """The plan as straight-line code."""
        bounds = {n: tuple(most for _, most in f.bounds) for n, f in self.features.items()}
        return compile_plan(self.plan, bounds)

    def make_state(self) -> State:
        """Fresh states, all zero; any function of the package with the same states may use them."""
        states = States(
            {
                name: zero_state(type_.sizes, self._torch_dtype(type_))
                for name, type_ in self.states.items()
            }
        )
        for name in states:
            states.note_zeros(name)
        return State(states)

    @cached_property
    def features(self) -> dict[str, Feature]:
        """The inputs as the model's description has them: shapes allowed, defaults, images."""
        return features(self.package, self.name, "input", self.inputs)

    @cached_property
    def _images(self) -> dict[str, Feature]:
        described = features(self.package, self.name, "output", self.outputs)
        return {name: feature for name, feature in described.items() if feature.color}

    @property
    def memory(self) -> Memory:
        """Bytes that this function takes: weights, what was made of them, values, states."""
        return measure(self.compiled, self.package, self._lift)

    def random_inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        """An array for every input, of its default shape; see `Feature.random`."""
        return random_inputs(self.features, seed)

    @overload
    def predict(
        self, inputs: Mapping[str, object], state: State | None = None
    ) -> dict[str, Any]: ...

    @overload
    def predict(
        self, inputs: list[Mapping[str, object]], state: State | None = None
    ) -> list[dict[str, Any]]: ...

    def predict(self, inputs: Any, state: State | None = None) -> Any:
        """Run the function on named arrays; returns its outputs by name.

        An input is anything that numpy makes an array of, or a PIL image where the description
        declares an image; `Feature.array` says what is converted. A list of such dicts gives a list
        of results. An output is an array of the declared dtype, a PIL image where one is declared,
        or, of a classifier, the label and a dict of probabilities by label. One of rank 0 is given
        as Core ML gives it, with shape (1,). coremltools' `predict`, under `mlprogram.enable` too,
        takes fewer dtypes, and gives half precision as float32.

        All loops of a call may run for 600 seconds in sum, or for what MLPROGRAM_LOOP_SECONDS says.

        Raises InvalidInput for a name, shape, dtype or value that the program does not take, or for
        a missing state; of these InvalidType, a TypeError, for what is no array of numbers.
        """
        if isinstance(inputs, list):
            return [self.predict(one, state) for one in inputs]
        with torch.inference_mode(), torch_threads(light=False):
            tensors, states = self._tensors(inputs), self._states(state)
            try:
                with torch_threads(self.plan.light), self.plan.failures.explained():
                    results = self.compiled.run(tensors, states)
                return {
                    name: self._result(name, value)
                    for name, value in zip(self._function.block.outputs, results, strict=True)
                }
            except InvalidPackage as error:
                self._name_the_first(error, tensors, states)
                raise

    @torch.inference_mode()  # as a decorator it holds while this runs, not while the caller does
    def trace(
        self, inputs: Mapping[str, object], state: State | None = None
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Run step by step, yielding (name, array) of every value as a step makes it.

        The steps are those of `predict`: values inside a group of ops that runs as one are not
        made (`plain()` makes them all). After the last step come inputs and constants that are
        outputs as they are. An array is a copy that nobody else holds: take of it what you need
        and let it go, and the whole run takes no more memory than its live values and one copy.
        Left out are other constants, and values inside the bodies of `cond` and `while_loop`.
        """
        with torch_threads(light=False):
            tensors, states = self._tensors(inputs), self._states(state)
            try:
                with self.plan.failures.explained():
                    for name, tensor in self.compiled.trace(tensors, states):
                        if isinstance(tensor, torch.Tensor):
                            yield name, as_array(tensor.clone())
            except InvalidPackage as error:
                self._name_the_first(error, tensors, states)
                raise

    def _name_the_first(
        self, error: InvalidPackage, tensors: list[torch.Tensor], states: States
    ) -> None:
        """Put before a failure the first op that makes something else than it declares."""
        copies = States({name: tensor.clone() for name, tensor in states.items()})
        again = self.plain().compiled.trace(tensors, copies)
        self.plan.failures.name_the_first(error, again, self._lift)

    @property
    def _lift(self) -> bool:
        return self.precision == "fp32"

    def _result(self, name: str, value) -> object:
        self.plan.failures.check_result(name, value, self.outputs[name], self._lift)
        if not isinstance(value, torch.Tensor):  # what `classify` gives
            return value
        value = value.reshape(1) if value.dim() == 0 else value
        image = self._images.get(name)
        return image.image(as_array(value)) if image else as_array(value)

    def _torch_dtype(self, type_: TensorType) -> torch.dtype:
        return torch_dtype(type_.dtype, self._lift)

    def _states(self, state: State | None) -> States:
        if not self.states:
            return States({})
        if not isinstance(state, State):
            kind = InvalidInput if state is None else InvalidType
            raise kind(
                f"function {self.name!r} keeps state ({', '.join(self.states)}): "
                "pass state=program.make_state()"
            )
        for name, type_ in self.states.items():
            wanted, held = (self._torch_dtype(type_), type_.shape), state._states.get(name)
            if held is None or (held.dtype, held.shape) != wanted:
                given = "lacks it" if held is None else f"has {held.dtype} {tuple(held.shape)}"
                raise InvalidInput(
                    f"function {self.name!r} keeps {name!r} as {wanted[0]} {wanted[1]}, and this "
                    f"state {given}: make it with a program of these states and this precision"
                )
        return state._states

    def _tensors(self, inputs: Mapping[str, object]) -> list[torch.Tensor]:
        inputs = by_name(inputs, self.inputs)
        unknown = sorted(inputs.keys() - self.inputs.keys())
        missing = [n for n, f in self.features.items() if n not in inputs and f.fill is None]
        if unknown or missing:
            raise InvalidInput(
                f"function {self.name!r} takes {', '.join(self.inputs)}"
                + (f"; missing: {', '.join(missing)}" if missing else "")
                + (f"; unknown: {', '.join(unknown)}" if unknown else "")
            )
        return [
            self._tensor(
                feature, feature.array(inputs[name]) if name in inputs else feature.default()
            )
            for name, feature in self.features.items()
        ]

    def _tensor(self, feature: Feature, array: np.ndarray) -> torch.Tensor:
        # Torch wants memory that it may write, with forward strides, of an axis of size 1 as well.
        if not array.flags.carray or min(array.strides, default=0) < 0:
            array = array.copy()
        return torch.from_numpy(array).to(self._torch_dtype(feature.type))
