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
from typing import TYPE_CHECKING, Any, overload

from mlprogram.errors import InvalidInput, InvalidPackage, InvalidType
from mlprogram.package.container import Container
from mlprogram.package.description import (
    NUMPY,
    Feature,
    by_name,
    converted,
    features,
    random_inputs,
    to_array,
)
from mlprogram.package.function import Function, Operation
from mlprogram.package.reader import Package
from mlprogram.package.validation.validate import check_memory
from mlprogram.package.values import TensorType
from mlprogram.run import kept
from mlprogram.run.precision import check_precision
from mlprogram.run.states import States, zero_state
import numpy as np

if TYPE_CHECKING:  # what a kept plan does without is imported where it is needed, first torch
    from mlprogram.analysis.memory import Memory
    from mlprogram.arithmetic import Semantics
    from mlprogram.run.compile import Compiled
    from mlprogram.run.plan import ExecutionPlan
    from torch import Tensor


class State:
    """The tensors that a stateful program keeps between calls, by name.

    One call at a time: it is changed in place, and nothing tells two threads apart.
    """

    def __init__(self, tensors: "Mapping[str, Tensor | np.ndarray]"):
        self._states = tensors if isinstance(tensors, States) else States(tensors)

    @property
    def tensors(self) -> States:
        """The tensors themselves, by name. Whoever has them may write to them, so from now on
        nothing is known of what they hold."""
        return self._states.lend()

    def clear(self) -> None:
        """Zeros everywhere, as in a new state, at the cost of what was written."""
        self._states.clear_all()

    def read_state(self, name: str) -> np.ndarray:
        """A copy of one state, in the dtype that the program keeps it in."""
        self._find(name)
        return np.array(self._states.array(name), order="C")

    def write_state(self, name: str, value: np.ndarray) -> None:
        """Replace one state; `value` must have its shape. Raises InvalidInput."""
        shape = self._find(name)
        array = to_array(value, f"state {name!r} has shape {shape}")
        if array.shape != shape:
            raise InvalidInput(f"state {name!r} has shape {shape}, not {array.shape}")
        self._states.write(name, array)

    def _find(self, name: str) -> tuple[int, ...]:
        """The shape of a state."""
        if name not in self._states:
            raise InvalidInput(f"no state {name!r}; this program has: {', '.join(self._states)}")
        return self._states.array(name).shape


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
        semantics: "Semantics | None" = None,
        _shared: dict | None = None,
        _kept: kept.KeptPlan | None = None,
    ):
        self.precision = check_precision(precision)
        self.semantics = semantics
        if semantics is not None:
            from mlprogram.arithmetic import check_semantics

            self.semantics = check_semantics(semantics)
        if without:
            from mlprogram.kernels.table import check_names

            without = check_names(without)
        self._without = without if optimize and precision != "ane" else None
        self._shared = {} if _shared is None else _shared
        self._source, self._kept = path, _kept
        self.asked = None  # of a plan that is kept, what it is kept by besides the package
        if self._without is not None and not without and isinstance(path, str | Path):
            self.asked = function_name, precision, semantics
            self._kept = _kept or kept.find(path, *self.asked)
        self._whole = self._kept and self._kept.plan  # what all runs in C, from the cache or not
        if self._kept is not None:
            self._check_files(self._kept.files)
            self.name, self.functions = self._kept.name, self._kept.functions
            return
        self.name = function_name or self.package.default_function
        self.functions = [*self.package.functions]
        if self.name not in self.functions:
            raise InvalidInput(
                f"{self.package.path}: no function {self.name!r}; it has: "
                f"{', '.join(self.functions)}"
            )
        check_memory(self._function, self._lift)

    @cached_property
    def package(self) -> Package:
        """The package that it was opened from; a kept plan needs nothing more of it."""
        if isinstance(self._source, Package):
            return self._source
        if not isinstance(self._source, str | Path):  # what is shared may be of another spec
            return Package(self._source)
        package = self._shared.get("package") or Package(self._source)
        self._check_files(kept.files(package.digest, package._blobs.values()))
        return self._shared.setdefault("package", package)

    def _check_files(self, files: tuple) -> None:
        """Raise InvalidPackage unless the package has the files that it was opened with."""
        if self._shared.setdefault("files", files) != files:
            raise InvalidPackage(f"{self._source}: changed since it was opened; open it again")

    @cached_property
    def _function(self) -> Function:
        return self.package.functions[self.name]

    @classmethod
    def from_mlmodel(cls, model, function_name: str | None = None, precision: str = "fp16"):
        """From a coremltools `MLModel` that is still in memory."""
        package = Package.from_spec(model.get_spec(), model.weights_dir)
        return cls(package, function_name, precision)

    def function(self, name: str) -> "MLProgram":
        """A function of the same package, or this one; weights in memory are shared."""
        same = name == self.name
        return self if same else self._like(name, self.precision, self._without)

    def plain(self, precision: str | None = None) -> "MLProgram":
        """The same function, op by op with every shortcut off; weights in memory are shared."""
        return self._like(self.name, precision or self.precision, None)

    def _like(self, name: str, precision: str, without: Collection[str] | None) -> "MLProgram":
        return MLProgram(
            self._source if isinstance(self._source, str | Path) else self.package,
            name,
            precision,
            optimize=without is not None,
            without=without or (),
            semantics=self.semantics,
            _shared=self._shared,
        )

    def __repr__(self) -> str:
        source = self._source if isinstance(self._source, str | Path) else self.package.path
        return described(self, Path(source))

    @cached_property
    def inputs(self) -> dict[str, TensorType]:
        return self._kept.inputs if self._kept else self._function.inputs

    @cached_property
    def outputs(self) -> dict[str, TensorType]:
        return self._kept.outputs if self._kept else self._function.outputs

    @cached_property
    def states(self) -> dict[str, TensorType]:
        return self._kept.states if self._kept else self._function.states

    @property
    def operations(self) -> list[Operation]:
        """The ops that compute, in order: all but constants, those of nested blocks included."""
        return [o for o in self._function.operations() if not o.is_constant]

    @cached_property
    def plan(self) -> "ExecutionPlan":
        """What is done for the function, step by step; made at the first use."""
        from mlprogram.run import live

        return live.planned(self)

    @cached_property
    def compiled(self) -> "Compiled":
        """The plan as straight-line code."""
        from mlprogram.run import live

        return live.compiled(self)

    def prepare(self) -> None:
        """Do now what the first `predict` would do first."""
        if self._whole is None:
            _ = self.compiled  # which finds one

    def make_state(self) -> State:
        """Fresh states, all zero; any function of the package with the same states may use them."""
        states = States({n: zero_state(t.sizes, self._dtype(t)) for n, t in self.states.items()})
        for name in states:
            states.note_zeros(name)
        return State(states)

    @cached_property
    def features(self) -> dict[str, Feature]:
        """The inputs as the model's description has them: shapes allowed, defaults, images."""
        if self._kept:
            return self._kept.features
        return features(self.package, self.name, "input", self.inputs)

    @cached_property
    def images(self) -> dict[str, Feature]:
        """The outputs that are images."""
        if self._kept:
            return self._kept.images
        described = features(self.package, self.name, "output", self.outputs)
        return {name: feature for name, feature in described.items() if feature.color}

    @property
    def memory(self) -> "Memory":
        """Bytes that this function takes: weights, what was made of them, values, states."""
        from mlprogram.run.footprint import measure

        return measure(self.compiled, self.package, self._lift)

    def random_inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        """An array for every input, of its default shape; see `Feature.random`."""
        return random_inputs(self.features, seed)

    @overload
    def predict(
        self, inputs: Mapping[str, object], state: State | None = None, *, used: int = 0
    ) -> dict[str, Any]: ...

    @overload
    def predict(
        self, inputs: list[Mapping[str, object]], state: State | None = None, *, used: int = 0
    ) -> list[dict[str, Any]]: ...

    def predict(self, inputs: Any, state: State | None = None, *, used: int = 0) -> Any:
        """Run the function on named arrays; returns its outputs by name.

        An input is anything that numpy makes an array of, or a PIL image where the description
        declares an image; `Feature.array` says what is converted. A list of such dicts gives a list
        of results. An output is an array of the declared dtype, a PIL image where one is declared,
        or, of a classifier, the label and a dict of probabilities by label. One of rank 0 is given
        as Core ML gives it, with shape (1,). coremltools' `predict`, under `mlprogram.enable` too,
        takes fewer dtypes, and gives half precision as float32.

        used: where a call has columns, such as those of 64 tokens, how many of the first are all
        that will be read of outputs and of what goes to states; 0 for all. These are the same to
        the bit, and take less time where the executor can prove that they do not depend on the
        others (`run/columns.py`), which may then hold anything.

        All loops of a call may run for 600 seconds in sum, or for what MLPROGRAM_LOOP_SECONDS says.

        Raises InvalidInput for a name, shape, dtype or value that the program does not take, or for
        a missing state; of these InvalidType, a TypeError, for what is no array of numbers.
        """
        if isinstance(inputs, list):
            return [self.predict(one, state, used=used) for one in inputs]
        found = self._run(self._arrays(inputs), self._states(state), used)
        return {name: self._result(name, value) for name, value in found.items()}

    def _run(self, arrays: list[np.ndarray], states: States, used: int) -> dict[str, Any]:
        done = self._whole.run(arrays, states, used) if self._whole else None
        if isinstance(done, dict):
            return done
        from mlprogram.run import live

        if done is None:
            return live.run(self, arrays, states)
        return live.resumed(self, arrays, states, *done)

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
        from mlprogram.run import live

        yield from live.trace(self, self._arrays(inputs), self._states(state))

    @property
    def _lift(self) -> bool:
        return self.precision == "fp32"

    def _result(self, name: str, value: Any) -> object:
        if not isinstance(value, np.ndarray):  # what `classify` gives
            return value
        value = value.reshape(1) if value.ndim == 0 else value
        return self.images[name].image(value) if name in self.images else value

    def _dtype(self, type_: TensorType) -> np.dtype:
        """What numpy has values of this type in; bfloat16 comes and goes as float32."""
        lifted = self._lift and type_.dtype == "fp16"
        return np.dtype("float32" if lifted else NUMPY.get(type_.dtype, type_.dtype))

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
            wanted, has = self._dtype(type_).name, state._states.described(name)
            if has != (wanted, type_.shape):
                given = f"has {has[0]} {has[1]}" if has else "lacks it"
                raise InvalidInput(
                    f"function {self.name!r} keeps {name!r} as {wanted} {type_.shape}, and this "
                    f"state {given}: make it with a program of these states and this precision"
                )
        return state._states

    def _arrays(self, inputs: Mapping[str, object]) -> list[np.ndarray]:
        """The inputs in order, converted as the function takes them."""
        inputs = by_name(inputs, self.inputs)
        unknown = sorted(inputs.keys() - self.inputs.keys())
        missing = [n for n, f in self.features.items() if n not in inputs and f.fill is None]
        if unknown or missing:
            raise InvalidInput(
                f"function {self.name!r} takes {', '.join(self.inputs)}"
                + (f"; missing: {', '.join(missing)}" if missing else "")
                + (f"; unknown: {', '.join(unknown)}" if unknown else "")
            )
        given = [
            (feature, feature.array(inputs[name]) if name in inputs else feature.default())
            for name, feature in self.features.items()
        ]
        return [converted(array, self._dtype(feature.type)) for feature, array in given]
