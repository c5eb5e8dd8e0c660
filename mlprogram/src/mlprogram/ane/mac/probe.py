"""The child's program on a Mac: measure one function of a package.

    python -m mlprogram.ane.mac.probe REQUEST.json

Written against coremltools 9.0 (`models/compute_plan.py`, `models/_compiled_model.py`). Tested on
Linux with the executor in Core ML's place; not yet run on a Mac.

A package is compiled from a copy in which the function is the default one, because the plan cannot
be asked for by a function's name, and because coremltools rewrites the Manifest.json of a package
that it opens.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from itertools import pairwise
import json
import os
from pathlib import Path
import shutil
from statistics import median
import subprocess
import sys
import time
from typing import TypeVar

from mlprogram.ane.mac.child import own_folder, resident_bytes, tell
from mlprogram.ane.mac.plan import DEVICES, PlannedOp
import numpy as np

T = TypeVar("T")

CALLS = 20  # predictions that are timed, for their median
PROGRESS = 25  # predictions of the soak between two events
WATCHED, MOST_SAID = 5.0, 20_000  # seconds that anemon may take, and characters of its last line


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    probe = Probe(request, own_folder())
    {"residency": probe.run, "plan": probe.tell_plan, "row": probe.row}[request["what"]]()


class Probe:
    """Measures one function.

    request: package, function, units (those that are judged), others (those to compare with), soak,
    states (their names), rows (of a cache that a call writes from `position` on, 0 where no state
    is such a cache); for the plan alone, only package, function and units. For a device row units
    is a list, and monitor the path of anemon or None; it has no others and no soak.
    """

    def __init__(self, request: dict, folder: Path):
        self.request, self.folder = request, folder
        self.path = Path(request["package"])

    @cached_property
    def inputs(self) -> dict[str, np.ndarray]:
        with np.load(self.folder / "inputs.npz") as file:
            return dict(file)

    def run(self) -> None:
        tell("started", "compiling", pid=os.getpid())
        seconds, compiled = _timed(self.compile)
        others, units = self.request["others"], self.request["units"]
        tell("compiled", f"loading on {[*others, units][0]}", seconds=seconds)
        for other, following in pairwise([*others, units]):
            model = self.load(compiled, other, f"predicting on {other}")
            self.predict(model, other, f"loading on {following}")
        # Before the plan, which compiles for the engine as a load does (claim plan-compiles).
        model = self.load(compiled, units, f"the plan for {units}")
        seconds, ops = _timed(lambda: list(self.plan(compiled, units)))
        tell("plan", f"predicting on {units}", seconds=seconds, ops=[asdict(op) for op in ops])
        self.predict(model, units, "the soak")
        if self.request["rows"]:
            self.hold(model)
        self.soak(model)
        tell("done", "the end")

    def tell_plan(self) -> None:
        units = self.request["units"]
        tell("started", "compiling")
        compiled = self.compile()
        tell("compiled", f"the plan for {units}")
        tell("plan", "the end", ops=[asdict(op) for op in self.plan(compiled, units)])

    def row(self) -> None:
        """What a device row says of the function on each set of units: loads, plan, calls."""
        tell("started", "compiling")
        compiled = self.compile()
        every = self.request["units"]
        tell("compiled", f"loading on {every[0]}")
        for units, following in pairwise([*every, "no other"]):
            model = self.load(compiled, units, f"the plan for {units}")
            ops = [asdict(op) for op in self.plan(compiled, units)]
            tell("plan", f"predicting on {units}", units=units, ops=ops)
            self.predict(model, units, f"predicting on {units}")
            if self.request["rows"]:
                self.hold(model, f"{units}_held")
            if units == "CPU_AND_NE" and self.request["monitor"]:
                with suppress(OSError):  # it may be no program of this machine
                    self.watch(model, self.request["monitor"])
            tell("done", f"loading on {following}", units=units)

    def watch(self, model, monitor: str) -> None:
        """Predict for as long as anemon looks, two seconds, and report the last that it says.

        Its options and fields are those of 751K/apple-neural-engine-monitor's README.
        """
        command = [monitor, "--json", "--interval", "1", "--count", "2"]
        predict = self.predictor(model)
        with (self.folder / "monitor.txt").open("wb") as said:
            watching = subprocess.Popen(command, stdout=said, stderr=subprocess.DEVNULL)
            until = time.monotonic() + WATCHED
            while watching.poll() is None and time.monotonic() < until:
                predict()
            watching.kill()
            watching.wait()
        lines = (self.folder / "monitor.txt").read_text("utf-8", "replace").splitlines()
        tell("watched", "the end", said=lines[-1][:MOST_SAID] if lines else "")

    def compile(self) -> str:
        """Compile the package with the function as its default one; returns the path."""
        from coremltools.models.utils import compile_model

        if self.path.suffix == ".mlmodelc":
            return str(self.path)
        copy, target = self.folder / self.path.name, self.folder / f"{self.path.stem}.mlmodelc"
        shutil.copytree(self.path, copy)
        _make_default(copy, self.request["function"])
        return str(compile_model(str(copy), str(target)))

    def plan(self, compiled: str, units: str) -> Iterator[PlannedOp]:
        from coremltools import ComputeUnit
        from coremltools.models.compute_plan import MLComputePlan

        plan = MLComputePlan.load_from_path(compiled, compute_units=ComputeUnit[units])
        program = plan.model_structure.program
        functions = program.functions if program else {}
        function = functions.get(self.request["function"]) or next(iter(functions.values()), None)
        for operation in function.block.operations if function else ():
            usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
            cost = plan.get_estimated_cost_for_mlprogram_operation(operation)
            yield PlannedOp(
                operation.outputs[0].name if operation.outputs else "",
                operation.operator_name,
                usage and _device(usage.preferred_compute_device),
                tuple(map(_device, usage.supported_compute_devices)) if usage else (),
                cost and cost.weight,
            )

    def load(self, compiled: str, units: str, then: str):
        """Load twice on some compute units, cold and warm, and report both times.

        The first load is cold in that the model was just compiled to a new path. Whether macOS
        caches equal programs that it compiled before is not known.
        """
        from coremltools import ComputeUnit
        from coremltools.models import CompiledMLModel

        def load():
            own = {"function_name": self.request["function"]} if self.request["named"] else {}
            return CompiledMLModel(compiled, ComputeUnit[units], **own)

        cold, model = _timed(load)
        warm, model = _timed(load)
        tell("loaded", then, units=units, cold=cold, warm=warm)
        return model

    def predict(self, model, units: str, then: str) -> None:
        """Time predictions on some compute units; write the second call's outputs to a file."""
        predict = self.predictor(model)
        first, _ = _timed(predict)
        outputs = predict()
        times = [_timed(predict)[0] for _ in range(CALLS)]
        np.savez(self.folder / f"{units}.npz", **outputs)
        facts = {"units": units, "first": first, "median": median(times), "best": min(times)}
        tell("predicted", then, **facts)

    def predictor(self, model) -> Callable[[], dict]:
        """A function that predicts once, always with the same inputs and the same state object."""
        state = model.make_state() if self.request["stateful"] else None
        return lambda: model.predict(dict(self.inputs), state)

    def hold(self, model, name: str = "held") -> None:
        """Write rows of a cache in two calls, one behind the other, and keep what the states hold,
        in a file of this name.

        A second call that loses what the first one wrote is reported of macOS 26 (claim
        state-slice). The golden inputs cannot show it: their masks hide the cache.
        """
        state = model.make_state()
        for position in (0, self.request["rows"]):
            model.predict(self.inputs | {"position": np.array([position], np.int32)}, state)
        held = {name: state.read_state(name) for name in self.request["states"]}
        np.savez(self.folder / f"{name}.npz", **held)

    def soak(self, model) -> None:
        predict = self.predictor(model)
        for done in range(1, self.request["soak"] + 1):
            outputs = predict()
            if done % PROGRESS == 0 or done == self.request["soak"]:
                finite = all(np.isfinite(np.asarray(a, np.float64)).all() for a in outputs.values())
                facts = {"done": done, "resident": resident_bytes(), "finite": finite}
                tell("soak", f"prediction {done + 1} of the soak", **facts)
        np.savez(self.folder / "soak.npz", **outputs)


def _make_default(package: Path, function: str) -> None:
    """Make a function the default one of a package."""
    from coremltools.proto import Model_pb2

    (file,) = package.rglob("*.mlmodel")
    model = Model_pb2.Model.FromString(file.read_bytes())
    if model.description.functions:  # only a package with several functions names its default
        model.description.defaultFunctionName = function
        file.write_bytes(model.SerializeToString())


def _device(device: object) -> str:
    return DEVICES.get(type(device).__name__, type(device).__name__)


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    started = time.perf_counter()
    result = call()
    return time.perf_counter() - started, result


if __name__ == "__main__":
    main()
