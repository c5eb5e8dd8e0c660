"""A Mac that is not there, for one child process: `python _mac.py MODE REQUEST`.

The probe itself runs, with the executor in Core ML's place and a recorded plan for `MLComputePlan`.
Its clock says what this Mac takes, and not how busy the machine is that runs the executor.
MODE is what goes wrong; the engine's arithmetic, where it is sound, rounds a little otherwise.
"""

import json
import os
from pathlib import Path
import signal
import sys
import time

MODE, PLAN = sys.argv[1], "acos" if sys.argv[1] == "elsewhere" else "affine"
if MODE == "hang":
    time.sleep(600)
if MODE == "refuse":  # and say that all went well
    print("E5RT: ANECCompile() FAILED, status=0x1", file=sys.stderr)
    sys.exit(0)
if MODE == "quit":
    sys.exit(0)
if MODE == "eat":
    EATEN = [bytearray(os.urandom(1 << 20) * 8) for _ in range(1000)]  # 8 MB each

# Its converters of other frameworks take longer to import than all else that this process does.
OTHERS = dict.fromkeys(("sklearn", "torch", "transformers", "xgboost"))
sys.modules.update(OTHERS)

# ruff: noqa: E402
import coremltools.models.compute_plan

for name in OTHERS:
    del sys.modules[name]

from ane_book.evidence.mac import probe
import mlprogram.coreml
import numpy as np

HELD = []  # what leaks


class Clock:
    """In the place of the module `time`; seconds pass only where they are said to."""

    now = 0.0

    @classmethod
    def perf_counter(cls) -> float:
        return cls.now

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
        Clock.take(0.08 if MODE == "slow" else 0.01)
        outputs = {name: a * np.float16(1.001) for name, a in outputs.items()}
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


class Plan:
    """`MLComputePlan` with what was recorded, and a constant before each op."""

    class Record:
        def __init__(self, **fields):
            vars(self).update(fields)

    @classmethod
    def load_from_path(cls, path, compute_units):
        assert Path(path).suffix == ".mlmodelc" and compute_units.name == "CPU_AND_NE"
        compile_for(compute_units.name)
        recorded = json.loads(Path(__file__).with_name("recorded_plans.json").read_text())
        operations = []
        for type_, name, *rest in recorded["plans"][PLAN]:
            for one in (("const", f"{name}_weight", None, None, None), (type_, name, *rest)):
                value = cls.Record(name=one[1])
                operations.append(cls.Record(operator_name=one[0], outputs=[value], facts=one[2:]))
        block = cls.Record(operations=operations)
        plan = cls()
        functions = {"main": cls.Record(block=block)}
        plan.model_structure = cls.Record(program=cls.Record(functions=functions))
        return plan

    def get_compute_device_usage_for_mlprogram_operation(self, operation):
        preferred, supported, _ = operation.facts
        if preferred is None:
            return None
        return self.Record(
            preferred_compute_device=device(preferred),
            supported_compute_devices=[device(name) for name in supported.split(",")],
        )

    def get_estimated_cost_for_mlprogram_operation(self, operation):
        cost = operation.facts[2]
        return None if cost is None else self.Record(weight=cost)


def device(name: str) -> object:
    kinds = {"ANE": "MLNeuralEngineComputeDevice", "CPU": "MLCPUComputeDevice"}
    return type(kinds[name], (), {})()


def main() -> None:
    coremltools.models.compute_plan.MLComputePlan = Plan
    mlprogram.coreml.Proxy = Engine
    with mlprogram.coreml.enable():
        sys.argv = sys.argv[1:]
        probe.main()


main()
