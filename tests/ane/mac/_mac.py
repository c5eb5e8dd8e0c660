"""A Mac that is not there, for one child process: `python _mac.py MODE REQUEST`.

The probe itself runs, with the executor in Core ML's place and a recorded plan below coremltools'.
Its clock says what this Mac takes, and not how busy the machine is that runs the executor.
MODE is what goes wrong; the engine's arithmetic, where it is sound, rounds a little otherwise.
"""

import json
import os
from pathlib import Path
import signal
import sys
import time

MODE = sys.argv[1]
PLAN = {"elsewhere": "acos", "cut": "band_part"}.get(MODE, "affine")
if MODE == "hang":
    time.sleep(600)
if MODE == "refuse":  # and say that all went well
    print("E5RT: ANECCompile() FAILED: err=(CompilationFailure)", file=sys.stderr)
    sys.exit(0)
if MODE == "quit":
    sys.exit(0)
if MODE == "eat":
    EATEN = [bytearray(os.urandom(1 << 20) * 8) for _ in range(1000)]  # 8 MB each

# Its converters of other frameworks take longer to import than all else that this process does.
OTHERS = dict.fromkeys(("sklearn", "torch", "transformers", "xgboost"))
sys.modules.update(OTHERS)

# ruff: noqa: E402
from coremltools.models import compute_device, compute_plan

for name in OTHERS:
    del sys.modules[name]

from mlprogram.ane.mac import probe
import mlprogram.coreml
from mlprogram.package.reader import Package
import numpy as np

HELD = []  # what leaks


class Clock:
    """In the place of the module `time`; seconds pass only where they are said to."""

    now = 0.0

    @classmethod
    def perf_counter(cls) -> float:
        return cls.now

    monotonic = time.monotonic  # of what waits for another process

    @classmethod
    def take(cls, seconds: float) -> None:
        cls.now += seconds


probe.time = Clock
LATE = [0.6] if MODE == "well" else []  # seconds of the engine's compiler, paid once


def compile_for(units: str) -> None:
    """What a load for the engine takes, or a plan, whichever is first."""
    if units == "CPU_AND_NE" and LATE:
        Clock.take(LATE.pop())


class Engine(mlprogram.coreml.Proxy):
    """The executor, as Core ML with an engine would be."""

    def __init__(self, path, compute_units, *rest):
        if compute_units == "CPU_AND_NE" and MODE == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        compile_for(compute_units)
        super().__init__(path, compute_units, *rest)
        self.units, self.calls = compute_units, 0

    def predict(self, data, state=None):
        if MODE == "forget" and self.units == "CPU_AND_NE" and state is not None:
            self.forget(state)
        outputs, self.calls = super().predict(data, state), self.calls + 1
        if self.units != "CPU_AND_NE" or MODE == "lie":
            Clock.take(0.02)  # as slow as the CPU
            return outputs
        Clock.take(0.01)
        outputs = {name: _a_little_otherwise(a) for name, a in outputs.items()}
        if MODE == "nan":
            outputs = {name: a * np.float16(np.nan) for name, a in outputs.items()}
        if MODE == "leak":
            HELD.append(np.ones(1 << 16))  # half a megabyte
        if MODE == "drift" and self.calls > 100:
            outputs = {name: -a for name, a in outputs.items()}
        return outputs

    def forget(self, state):
        """What claim state-slice says of macOS 26: `slice_update` starts from zeros."""
        cuts = [op for op in self.program.operations if op.type == "slice_update"]
        for name in self.program.states if cuts else ():
            state.write_state(name, np.zeros_like(state.read_state(name)))

    @staticmethod
    def get_compute_plan(path: str, units: str) -> "compute_plan.MLComputePlan":
        return compute_plan.MLComputePlan(Plan(path, units))


def _a_little_otherwise(a: np.ndarray) -> np.ndarray:
    """As the engine's arithmetic would have it; whole numbers are what they are."""
    return a * np.float16(1.001) if a.dtype.kind == "f" else a


class Plan:
    """Core ML's half of `MLComputePlan`: what was recorded of the graph, else all on one device.

    Constants have no device, as in the record. A program that nobody recorded is shared evenly, on
    the engine where it is among the units.
    """

    def __init__(self, path: str, units: str):
        assert Path(path).suffix == ".mlmodelc"
        compile_for(units)
        functions = Package(path).functions
        types = {
            _name([name for name, _ in op.outputs]): op.type
            for function in functions.values()
            for op in function.operations()
            if not op.is_constant
        }
        recorded = json.loads(Path(__file__).with_name("recorded_plans.json").read_text())
        rows = {name: (type_, *rest) for type_, name, *rest in recorded["plans"][PLAN]}
        if units in ("CPU_ONLY", "CPU_AND_GPU") or not rows.keys() & types.keys():
            share, device = 1 / len(types), units.removeprefix("CPU_AND_").removesuffix("_ONLY")
            device = {"NE": "ANE", "ALL": "ANE"}.get(device, device)
            supported = ",".join(dict.fromkeys(("CPU", device)))
            rows = {name: (type_, device, supported, share) for name, type_ in types.items()}
        self.rows = rows
        body = _structure([(row[0], name) for name, row in rows.items()])
        program = compute_plan.MLModelStructureProgram(dict.fromkeys(functions, body))
        self.model_structure = compute_plan.MLModelStructure(None, program, None)

    def get_compute_device_usage_for_mlprogram_operation(self, operation):
        _, preferred, supported, _ = self.rows.get(_name(operation.outputs), [None] * 4)
        if preferred is None:
            return None
        devices = [DEVICES[name](object()) for name in supported.split(",")]
        return compute_plan.MLComputePlanDeviceUsage(DEVICES[preferred](object()), devices)

    def get_estimated_cost_for_mlprogram_operation(self, operation):
        cost = self.rows.get(_name(operation.outputs), [None])[-1]
        return None if cost is None else compute_plan.MLComputePlanCost(cost)


def _name(outputs: list) -> str:
    """What an op is called by: its first output, or "", since one that writes a state has none."""
    return getattr(outputs[0], "name", outputs[0]) if outputs else ""


def _structure(ops: list[tuple[str, str]]):
    """The records in which coremltools hands over a function, with a constant before each op."""
    operations = [
        _operation(type_, name)
        for op, named in ops
        for type_, name in (("const", f"{named}_weight"), (op, named))
    ]
    block = compute_plan.MLModelStructureProgramBlock([], operations, [])
    return compute_plan.MLModelStructureProgramFunction([], block)


def _operation(type_: str, name: str):
    values = [compute_plan.MLModelStructureProgramNamedValueType(name, None)] if name else []
    return compute_plan.MLModelStructureProgramOperation({}, type_, values, [], None)


DEVICES = {
    "ANE": compute_device.MLNeuralEngineComputeDevice,
    "CPU": compute_device.MLCPUComputeDevice,
    "GPU": compute_device.MLGPUComputeDevice,
}
# Their classes of the native module, which coremltools' own check for.
compute_plan._MLComputePlanProxy = Plan
compute_device._MLNeuralEngineComputeDeviceProxy = object
compute_device._MLCPUComputeDeviceProxy = object
compute_device._MLGPUComputeDeviceProxy = object


def main() -> None:
    mlprogram.coreml.Proxy = Engine
    with mlprogram.coreml.enable():
        sys.argv = sys.argv[1:]
        probe.main()


main()
