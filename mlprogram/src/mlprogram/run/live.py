"""Run a program's plan with torch: where no plan is kept (`kept.py`), or a call of one fails."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
import hashlib
from typing import TYPE_CHECKING, Any

from mlprogram.analysis.constants import torch_dtype
from mlprogram.errors import InvalidPackage
from mlprogram.kernels.threads import torch_threads
from mlprogram.run.compile import Compiled, as_array, compile_plan
from mlprogram.run.keep import content, keep, one_stretch
from mlprogram.run.plan import ExecutionPlan, Planner
from mlprogram.run.states import States
import numpy as np
import torch

if TYPE_CHECKING:
    from mlprogram.run.program import MLProgram


def planned(program: "MLProgram") -> ExecutionPlan:
    """The plan of a program's function."""
    with torch_threads(light=False):
        return Planner(
            program._function,
            program._lift,
            program._shared,
            program._without,
            program.precision == "ane",
            program.semantics,
        ).plan()


def compiled(program: "MLProgram") -> Compiled:
    bounds = {n: tuple(most for _, most in f.bounds) for n, f in program.features.items()}
    found = compile_plan(program.plan, bounds)
    if program._whole is None:
        program._whole = keep(program, found)
    return found


def run(program: "MLProgram", arrays: list[np.ndarray], states: States) -> dict[str, Any]:
    """The outputs by name, as arrays, or as a classifier gives them."""
    with torch.inference_mode(), torch_threads(light=False):
        tensors = tensors_of(program, arrays)
        with _told(program, tensors, states), torch_threads(program.plan.light):
            with program.plan.failures.explained():
                results = program.compiled.run(tensors, states)
            return _checked(program, results)


def resumed(
    program: "MLProgram", arrays: list[np.ndarray], states: States, failed: int, memory: list
) -> dict[str, Any]:
    """The outputs of a call of a kept plan that failed, from the step on that did.

    memory: see `CallTable.run`; the program's one stretch has the same table.
    """
    if program._kept is not None:
        digest = hashlib.sha256(content(program, program.compiled)).hexdigest()
        if not program._kept.digest.endswith(digest):
            raise InvalidPackage(f"{program.package.path}: its plan is another one by now")
    stretch, outputs = one_stretch(program, program.compiled)
    with (
        torch.inference_mode(),
        torch_threads(program.plan.light),
        _told(program, tensors_of(program, arrays), states),
    ):
        with program.plan.failures.explained():
            made = stretch.resumed(0, failed, states, memory)
        return _checked(program, [made[i].clone() if copied else made[i] for i, copied in outputs])


@torch.inference_mode()  # as a decorator it holds while this runs, not while the caller does
def trace(
    program: "MLProgram", arrays: list[np.ndarray], states: States
) -> Iterator[tuple[str, np.ndarray]]:
    """See `MLProgram.trace`."""
    with torch_threads(light=False):
        tensors = tensors_of(program, arrays)
        with _told(program, tensors, states), program.plan.failures.explained():
            for name, tensor in program.compiled.trace(tensors, states):
                if isinstance(tensor, torch.Tensor):
                    yield name, as_array(tensor.clone())


def tensors_of(program: "MLProgram", arrays: list[np.ndarray]) -> list[torch.Tensor]:
    """Converted inputs as tensors."""
    dtypes = [torch_dtype(type_.dtype, program._lift) for type_ in program.inputs.values()]
    return [_tensor(x).to(dtype) for x, dtype in zip(arrays, dtypes, strict=True)]


def _tensor(array: np.ndarray) -> torch.Tensor:
    # Torch wants memory that it may write, with forward strides, of an axis of size 1 as well.
    if not array.flags.carray or min(array.strides, default=0) < 0:
        array = array.copy()
    return torch.from_numpy(array)


def _checked(program: "MLProgram", results: Sequence) -> dict[str, Any]:
    """Results by name as arrays, where they are what the program declares."""
    found = dict(zip(program._function.block.outputs, results, strict=True))
    for name, value in found.items():
        program.plan.failures.check_result(name, value, program.outputs[name], program._lift)
    return {n: as_array(x) if isinstance(x, torch.Tensor) else x for n, x in found.items()}


@contextmanager
def _told(program: "MLProgram", tensors: list[torch.Tensor], states: States) -> Iterator[None]:
    """Put before a failure the first op that makes something else than it declares."""
    try:
        yield
    except InvalidPackage as error:
        copies = States({name: tensor.clone() for name, tensor in states.items()})
        again = program.plain().compiled.trace(tensors, copies)
        program.plan.failures.name_the_first(error, again, program._lift)
        raise
