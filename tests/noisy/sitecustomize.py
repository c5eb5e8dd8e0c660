"""A Mac whose Core ML rounds in its own way, for every process that has this folder on PYTHONPATH.

Here as on a Mac, a session in half precision runs on Core ML unless it's told otherwise, and
coremltools predicts. The executor plays Core ML, and each number that a program in half precision
returns is moved by one step of half precision: up, down, or not at all. Equal values of one program
move alike. Zeros and whole-number types stay. With NOISY=executor the executor's own results move
as well.

This is the least by which another order of sums differs, and no model of Apple's arithmetic: values
inside a program and states do not move. What Core ML computes is seen on a Mac alone.
"""

from importlib.util import find_spec
import os
import sys
from types import ModuleType
from zlib import crc32

EXECUTOR_TOO = os.environ.get("NOISY") == "executor"


def seed_of(program) -> int | None:
    """A seed for this program's noise; None where nothing in it is in half precision."""
    ops = program.operations
    if any(type_.dtype == "fp16" for op in ops for _, type_ in op.outputs):
        return crc32(repr((program.name, [op.type for op in ops])).encode())
    return None


def moved(output, seed: int):
    """Each number a step of half precision up, down, or where it was."""
    import numpy as np

    if not isinstance(output, np.ndarray) or output.dtype.kind != "f":
        return output  # whole numbers, an image, a label
    half = output.astype(np.float16)
    draw = np.random.default_rng(crc32(half.tobytes(), seed))
    to = draw.choice(np.array([-np.inf, np.nan, np.inf], np.float16), half.shape)
    with np.errstate(over="ignore"):
        there = np.nextafter(half, np.where(np.isnan(to), half, to))
        new = (output + (there - half)).astype(output.dtype)
    return np.where((half != 0) & np.isfinite(there) & np.isfinite(half), new, output)


def change_program(module: ModuleType) -> None:
    exact = module.MLProgram.predict

    def predict(self, inputs, state=None, **used):
        outputs = exact(self, inputs, state, **used)  # of a list, each came through here
        moves = EXECUTOR_TOO or getattr(self, "plays_core_ml", False)
        if not moves or self.precision != "fp16" or isinstance(inputs, list):
            return outputs
        if not hasattr(self, "noise"):
            self.noise = seed_of(self)
        if self.noise is None:
            return outputs
        return {name: moved(output, self.noise) for name, output in outputs.items()}

    module.MLProgram.predict = predict


def change_backends(module: ModuleType) -> None:
    class CoreMLBackend(module.MILBackend):
        name = "coreml"

        def __init__(self, compute_units=None):
            super().__init__()

        def load(self, package, function):
            program = super().load(package, function)
            program.plays_core_ml = True
            return program

    module.CoreMLBackend = CoreMLBackend


def change_binding(module: ModuleType) -> None:
    begin = module.Proxy.__init__

    def __init__(self, *arguments):
        begin(self, *arguments)
        self.program.plays_core_ml = True

    module.Proxy.__init__ = __init__


def change_coremltools(module: ModuleType) -> None:
    import mlprogram.coreml

    mlprogram.coreml.enable()


def change_machine(module: ModuleType) -> None:
    module.CAN_PREDICT, module.CAN_PREDICT_REASON = True, "the executor plays Core ML"
    module.neural_engine = lambda: (False, "a virtual machine has no Neural Engine")


CHANGES = {
    "mlprogram.run.program": change_program,
    "ane_book.runtime.backends": change_backends,
    "mlprogram.coreml": change_binding,
    "coremltools": change_coremltools,
    "mlprogram.machine": change_machine,
}


class Changed:
    """Finds the modules of CHANGES, which are changed once they have run."""

    @staticmethod
    def find_spec(name: str, path=None, target=None):
        change = CHANGES.pop(name, None)
        if change is None:
            return None
        spec = find_spec(name)
        run = spec.loader.exec_module

        def run_and_change(module: ModuleType) -> None:
            run(module)
            change(module)

        spec.loader.exec_module = run_and_change
        return spec


sys.meta_path.insert(0, Changed)
