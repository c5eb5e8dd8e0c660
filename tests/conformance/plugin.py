"""pytest plugin: coremltools' own op tests, with `MLProgram` in the place of Core ML.

coremltools reaches Core ML through one native class, `_MLModelProxy`, which exists on a Mac alone;
its tests skip the prediction elsewhere. This plugin says that the machine is a Mac and puts `Proxy`
where the native class would be, before a test module is imported. Everything else is Apple's:
the tests, their expected values and tolerances, the conversion, `MLModel` and its checks.

`run.py` loads it with `-p plugin`. `--record FILE` writes one line of JSON per case, `--sample`
keeps a few cases of each test.
"""

import gc
from itertools import count, groupby
import json
from pathlib import Path
import platform
import random
import signal
import zlib

from ane_book import MLProgram
from ane_book.errors import AneBookError
from coremltools import _deps
from coremltools.models import model, utils
import numpy as np
import pytest
import torch

MACOS = (15, 4)  # newer than any version that the tests of coremltools 9.0 ask for
SAMPLE = 5  # cases of each test and opset that `--sample` keeps
SECONDS = 120  # of processor time: a case that takes longer hangs

recording = None  # the file of --record, in the process that gets all reports
cases = count(1)
ops = set()  # of the programs that the running case predicted with
half = False  # whether they have fp16 tensors
last = None  # its last prediction: the program and its inputs


class Proxy:
    """What coremltools' `MLModel` asks of Core ML, answered by the executor."""

    def __init__(self, path, compute_units, function_name, hints, asset):
        self.kind = model._load_spec(path).WhichOneof("Type")
        if self.kind == "mlProgram":
            self.program = MLProgram(path, function_name or None)

    @staticmethod
    def maximum_supported_specification_version():
        return 9  # iOS 18's

    def newState(self):
        return self.program.make_state()

    def predict(self, data, state):
        global half, last
        if self.kind != "mlProgram":
            pytest.skip(f"predicts with a {self.kind}")
        function = self.program.package.functions[self.program.name]
        types = list(function.inputs.values())
        for operation in function.operations():
            ops.add(operation.type)
            types += [type_ for _, type_ in operation.outputs]
        half |= any(type_.dtype == "fp16" for type_ in types)
        arrays = {name: self.convert(name, value) for name, value in data.items()}
        try:
            found = self.program.predict(arrays, state)
        except AneBookError as error:  # the native class's message, which the tests look for
            raise RuntimeError(
                f"Unable to compute the prediction using ML Program: {error}"
            ) from error
        last = self.program, arrays
        return found

    def convert(self, name, value):
        """Core ML casts a multi-array to the declared type; its inputs have no rank 0."""
        declared = self.program.inputs.get(name)
        if declared is None or not isinstance(value, np.ndarray):
            return value
        if not declared.dtype.startswith(("fp", "bf")):
            value = value.astype(np.int32)
        return value.reshape(()) if declared.shape == () and value.size == 1 else value


def rounded_once(program, inputs):
    """Whether the results are those of single precision throughout, with one rounding to fp16.

    The rounding is of the results, if any; inputs that the program takes in fp16 come rounded. If
    so, no other numbers can follow from what the program declares: none was rounded twice, and no
    sum was kept in fp16.
    """
    single = program.plain("fp32")
    found, wide, fed = (
        p.predict(arrays)
        for p, arrays in ((program, inputs), (single, inputs), (single, in_half(inputs)))
    )
    exact = wide, in_half(wide), in_half(fed)
    return all(any(np.array_equal(found[n], e[n]) for e in exact) for n in found)


def in_half(arrays):
    """Arrays whose floats have been rounded to fp16."""
    floats = {n: a for n, a in arrays.items() if isinstance(a, np.ndarray) and a.dtype.kind == "f"}
    return {**arrays, **{n: a.astype(np.float16).astype(a.dtype) for n, a in floats.items()}}


def pytest_addoption(parser):
    parser.addoption("--record", help="file that gets one line of JSON per case")
    parser.addoption("--sample", action="store_true", help="a few cases of each test")


def pytest_configure(config):
    global recording
    _deps._IS_MACOS = True
    platform.machine = lambda: "arm64"
    for module in (model, utils):
        module._is_macos, module._macos_version = (lambda: True), (lambda: MACOS)
    model._MLModelProxy = Proxy
    if config.getoption("record") and not hasattr(config, "workerinput"):
        recording = Path(config.getoption("record"))


def pytest_collection_modifyitems(config, items):
    for item in items:
        if backend(item)[0] == "neuralnetwork":  # another format, older and slow to convert
            item.add_marker(pytest.mark.skip(reason="a neural network, not an ML Program"))
    if config.getoption("sample"):
        items[:] = sampled(items)


def sampled(items):
    """Up to SAMPLE cases of each test and opset in single precision, whose tolerances are tight.

    Which ones is the same on every run: those of the least checksum of their names.
    """
    key = lambda item: (item.nodeid.split("[")[0], backend(item)[2])  # noqa: E731
    checksum = lambda item: zlib.crc32(item.nodeid.encode())  # noqa: E731
    programs = [item for item in items if backend(item)[:2] == ("mlprogram", "fp32")]
    groups = groupby(sorted(programs, key=key), key)
    return [item for _, group in groups for item in sorted(group, key=checksum)[:SAMPLE]]


def pytest_collection_finish():
    spare_collector()


def spare_collector():
    """`ct.convert` collects garbage each time: without this, most of a run's time.

    What is alive now lives on (modules, items, the symbols that coremltools never forgets).
    """
    gc.collect()
    gc.freeze()


def backend(item):
    """(format, precision, opset) of a case, empty where its test names none."""
    found = getattr(item, "callspec", None) and item.callspec.params.get("backend")
    if isinstance(found, tuple):
        return (*found, "")
    if hasattr(found, "opset_version"):
        return found.backend, found.precision, found.opset_version.name
    return "", "", ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Random inputs of a case depend on its name alone, not on what ran before it."""
    global half, last
    ops.clear()
    half, last = False, None
    seed = zlib.crc32(item.nodeid.encode())
    np.random.seed(seed)
    random.seed(seed)
    torch.manual_seed(seed)
    signal.signal(signal.SIGVTALRM, out_of_time)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if next(cases) % 50 == 0:
            spare_collector()


def out_of_time(*_):
    raise TimeoutError(f"more than {SECONDS} s")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.user_properties += [("ops", sorted(ops)), ("half", half), ("backend", backend(item))]
    mixed = half and backend(item)[1] == "fp32"
    if report.failed and mixed and last and not last[0].states:
        report.user_properties.append(("once", rounded_once(*last)))
    return report


def pytest_runtest_logreport(report):
    """Also where a worker died: such a report is of no phase and has no properties."""
    if recording is None or report.when == "teardown" or (report.when == "setup" and report.passed):
        return
    outcome = report.outcome
    if hasattr(report, "wasxfail"):
        outcome = "xpassed" if report.passed else "xfailed"
    record = {"ops": [], "half": False, "once": False, "backend": []}
    record |= dict(report.user_properties)
    record |= {"id": report.nodeid, "outcome": outcome, "why": why(report)}
    with recording.open("a") as file:
        print(json.dumps(record), file=file)


def why(report):
    """The reason that a skip or Apple's xfail gives, or the start of a failure's message."""
    if hasattr(report, "wasxfail"):
        return report.wasxfail
    if isinstance(report.longrepr, tuple):  # a skip: file, line, reason
        return report.longrepr[2]
    crash = getattr(report.longrepr, "reprcrash", None)
    return " ".join((crash.message if crash else str(report.longrepr or "")).split())[:240]
