"""pytest plugin: coremltools' own tests, with `MLProgram` in the place of Core ML.

`mlprogram.coreml` puts the executor there, before a test module is imported. Everything else is
Apple's: the tests, their expected values and tolerances, the conversion, `MLModel` and its checks.
`teeth.py` watches what a case compares, and calls it again with spoilt results.

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

from coremltools.converters.mil.mil import Builder
from coremltools.models import model
from mlprogram import MLProgram, coreml
from mlprogram.run.stretches import NativeStretch
import numpy as np
import pytest
from teeth import Case, largest, watch
import torch

#: Where the tests lie in coremltools, and how their names begin in the records.
FOLDERS = {"converters/mil/mil/ops/tests/": "", "converters/mil/frontend/torch/test/": "torch/"}
CASES = 5  # of each test of the front end, opset and precision that a full run keeps
SAMPLE = 2  # of each test of an op and opset that a sample keeps
RANDOM = {f"random_{name}" for name in ("bernoulli", "categorical", "normal", "uniform")}
SECONDS = 120  # of processor time: a case that takes longer hangs

recording = None  # the file of --record, in the process that gets all reports
cases = count(1)
case = Case()  # the running one


class Proxy(coreml.Proxy):
    """What stands for Core ML, watched."""

    def __init__(self, path, *arguments):
        self.kind = model._load_spec(path).WhichOneof("Type")
        if self.kind == "mlProgram":
            super().__init__(path, *arguments)

    def predict(self, data, state=None):
        if self.kind != "mlProgram":
            pytest.skip(f"predicts with a {self.kind}")
        arrays = {name: self._as_declared(name, value) for name, value in data.items()}
        predict = super().predict

        def predicted():
            found = predict(data, state)
            if state is None:
                check_steps(self.program, arrays, found)
            return found

        return case.predicted(self.program, arrays, predicted)


def check_steps(program, inputs, found):
    """Raises AssertionError if steps that ran in C give other bits from Python, one by one, or from
    a plan that was kept."""
    ops = {operation.type for operation in program.operations}
    if RANDOM & ops or not any(isinstance(part, NativeStretch) for part in program.compiled.parts):
        return
    others = [MLProgram(program.package, program.name, program.precision, without=["runner"])]
    if program._whole is not None and program.asked is not None:
        function, precision, semantics = program.asked
        others.append(MLProgram(program._source, function, precision, semantics=semantics))
    for other in others:
        for name, right in other.predict(inputs).items():
            same = np.array_equal(found[name], right, equal_nan=right.dtype.kind == "f")
            assert same, f"{name}: in C {found[name]}, from {other._kept and 'the cache'} {right}"


def rounded_once(program, inputs):
    """Whether the results are those of single precision throughout, with one rounding to fp16.

    The rounding is of the results, if any; inputs that the program takes in fp16 come rounded. If
    so, no other numbers can follow from what the program declares: none was rounded twice, and no
    sum was kept in fp16. Only the order of a sum in single precision is open.
    """
    single = program.plain("fp32")
    found, wide, fed = (
        p.predict(arrays)
        for p, arrays in ((program, inputs), (single, inputs), (single, in_half(inputs)))
    )
    exact = wide, in_half(wide), in_half(fed)
    return all(any(agree(found[n], e[n]) for e in exact) for n in found)


def agree(found, exact):
    """Whether values are equal; of single precision, to one unit of each or of 1."""
    unit = np.finfo(np.float32).eps
    is_single = getattr(found, "dtype", None) == np.float32
    return np.array_equal(found, exact) or (is_single and np.allclose(found, exact, unit, unit))


def in_half(arrays):
    """Arrays whose floats have been rounded to fp16."""
    floats = {n: a for n, a in arrays.items() if isinstance(a, np.ndarray) and a.dtype.kind == "f"}
    return {**arrays, **{n: a.astype(np.float16).astype(a.dtype) for n, a in floats.items()}}


def pytest_addoption(parser):
    parser.addoption("--record", help="file that gets one line of JSON per case")
    parser.addoption("--sample", action="store_true", help="a few cases of each test")


def pytest_configure(config):
    global recording
    platform.machine = lambda: "arm64"
    coreml.Proxy = Proxy
    coreml.enable()
    watch(lambda: case)
    if config.getoption("record") and not hasattr(config, "workerinput"):
        recording = Path(config.getoption("record"))


def pytest_collection_modifyitems(config, items):
    for item in items:
        if backend(item)[0] == "neuralnetwork":  # another format, older and slow to convert
            item.add_marker(pytest.mark.skip(reason="a neural network, not an ML Program"))
    programs = [item for item in items if backend(item)[0] != "neuralnetwork"]
    if config.getoption("sample"):  # in single precision, whose tolerances are tight
        single = [item for item in programs if backend(item)[:2] == ("mlprogram", "fp32")]
        items[:] = few(single, SAMPLE)
    else:  # the front end's are more than the ops', and each traces and converts a model
        front = {item for item in items if name(item.nodeid).startswith("torch/")}
        kept = {*items} - front | {*few([item for item in programs if item in front], CASES)}
        items[:] = [item for item in items if item in kept]


def few(items, most):
    """Up to `most` cases of each test, opset and precision, and one of each op that these name.

    They are those of the least checksums.
    """
    found = set()
    for key, size in ((group, most), (named, 1)):
        for _, cases in groupby(sorted(items, key=key), key):
            found |= set(sorted(cases, key=checksum)[:size])
    return [item for item in items if item in found]


def group(item):
    return (item.nodeid.split("[")[0], *backend(item))


def named(item):
    """The group, and the parameters that choose an op, where a test is one of many ops."""
    found = getattr(item, "callspec", None) and item.callspec.params
    return (
        *group(item),
        *(str(found[name]) for name in ("mode", "op_name") if name in (found or {})),
    )


def checksum(item):
    """Of a case's name: the same on every run."""
    return zlib.crc32(name(item.nodeid).encode())


def name(nodeid):
    """A case's name, without what all of its folder share."""
    for folder, short in FOLDERS.items():
        if nodeid.startswith(folder):
            return short + nodeid.removeprefix(folder)
    return nodeid


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
    global case
    case = Case()
    seed(item)
    signal.signal(signal.SIGVTALRM, out_of_time)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if next(cases) % 50 == 0:
            spare_collector()


def seed(item):
    """What ran before a case changes neither its random inputs nor coremltools' names."""
    Builder.name_count.clear()
    number = checksum(item)
    np.random.seed(number)
    random.seed(number)
    torch.manual_seed(number)


def out_of_time(*_):
    raise TimeoutError(f"more than {SECONDS} s")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """What a case that passes proves; one that looks for torchvision in vain is skipped."""
    seed(pyfuncitem)
    try:
        result = yield
    except NameError as error:
        if error.name != "torchvision":
            raise
        pytest.skip("needs torchvision, which is not installed")
    if case.predictions:
        names = pyfuncitem._fixtureinfo.argnames
        arguments = {name: pyfuncitem.funcargs[name] for name in names}
        single = case.share_of_single()
        seed(pyfuncitem)
        notices = case.notices(lambda: pyfuncitem.obj(**arguments))
        pyfuncitem.user_properties += [("teeth", notices), ("single", single)]
        pyfuncitem.user_properties.append(("expected", largest(case.shares)))
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    programs = [program for program, _, _ in case.predictions]
    half = any(map(has_half, programs))
    ops = {operation.type for program in programs for operation in all_operations(program)}
    report.user_properties += [("ops", sorted(ops)), ("half", half), ("backend", backend(item))]
    mixed = half and backend(item)[1] == "fp32"
    if report.failed and mixed and not programs[-1].states:
        report.user_properties.append(("once", rounded_once(*case.predictions[-1][:2])))
    return report


def all_operations(program):
    return program.package.functions[program.name].operations()


def has_half(program):
    """Whether a program has fp16 tensors."""
    types = list(program.inputs.values())
    types += [type_ for operation in all_operations(program) for _, type_ in operation.outputs]
    return any(type_.dtype == "fp16" for type_ in types)


def pytest_runtest_logreport(report):
    """Also where a worker died: such a report is of no phase and has no properties."""
    if recording is None or report.when == "teardown" or (report.when == "setup" and report.passed):
        return
    outcome = report.outcome
    if hasattr(report, "wasxfail"):
        outcome = "xpassed" if report.passed else "xfailed"
    record = {"ops": [], "half": False, "once": False, "backend": []}
    record |= {"teeth": None, "single": None, "expected": None}
    record |= dict(report.user_properties)
    record |= {"id": name(report.nodeid), "outcome": outcome, "why": why(report)}
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
