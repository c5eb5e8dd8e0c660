"""Programs as other people's converters write them, run in every way that the executor has.

`package` converts by the usual path of coremltools; `agree` holds the executor to a reference.
"""

from contextlib import contextmanager
from pathlib import Path
import warnings

import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from mlprogram import MLProgram
import numpy as np
import torch

WAYS = [(precision, optimize) for precision in ("fp32", "fp16") for optimize in (True, False)]

#: A program that computes in single precision; one left as written, nothing merged or reordered.
IN_SINGLE = {"compute_precision": ct.precision.FLOAT32}
AS_IT_STANDS = {"pass_pipeline": ct.PassPipeline.EMPTY}

#: A program that declares half precision, run in single: the sums differ in their order only.
SINGLE = 1e-5


def halved(model: torch.nn.Module) -> torch.nn.Module:
    """The model ready to convert: its weights rounded to what a package in fp16 stores."""
    with torch.no_grad():
        for value in (*model.parameters(), *model.buffers()):
            if value.is_floating_point():
                value.copy_(value.half().float())
    return model.eval().requires_grad_(False)


@contextmanager
def quiet():
    """No gradients, and no warnings: they are the converters' own, of shapes and their future."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


def package(model, path: Path, example: tuple = (), **options) -> Path:
    """Trace a torch module if `example` inputs are given, convert what there is, and save it."""
    options = {"minimum_deployment_target": ct.target.iOS18, "skip_model_load": True} | options
    with quiet():
        if example:
            model = torch.jit.trace(model, example)
        ct.convert(model, **options).save(str(path))
    return path


def exported(model, path, example, dynamic=None, **options):
    """Convert through torch.export, in the core ATen ops."""
    with quiet():
        program = torch.export.export(model, example, dynamic_shapes=dynamic)
        return package(program.run_decompositions({}), path, **options)


def build(path: Path, *inputs, states=(), opset=ct.target.iOS18, **options):
    """A decorator: a function of coremltools' builder becomes a package at `path`.

    inputs: (shape, MIL dtype) of each; states: their shapes, in half precision.
    """
    specs = [mb.TensorSpec(shape, dtype=dtype) for shape, dtype in inputs]
    specs += [mb.StateTensorSpec(shape, dtype=types.fp16) for shape in states]

    def convert(function) -> Path:
        program = mb.program(input_specs=specs, opset_version=opset)(function)
        return package(program, path, minimum_deployment_target=opset, **options)

    return convert


def built(*specs, **options):
    """A decorator: a function of coremltools' builder becomes an MLProgram in single precision."""

    def convert(function) -> MLProgram:
        program = mb.program(input_specs=[*specs], opset_version=ct.target.iOS18)(function)
        choices = {"minimum_deployment_target": ct.target.iOS18, "skip_model_load": True}
        return MLProgram.from_mlmodel(ct.convert(program, **choices | IN_SINGLE | options))

    return convert


def error(actual: np.ndarray, expected: np.ndarray) -> float:
    """The greatest difference over the greatest expected magnitude; 0 where all is equal."""
    actual, expected = (np.asarray(a, np.float64) for a in (actual, expected))
    difference = np.abs(actual - expected).max(initial=0)
    return difference and difference / np.abs(expected).max()


def agree(
    path: Path,
    calls: list[dict],
    expected: list[dict],
    half: float = 2e-3,
    single: float = SINGLE,
    function: str | None = None,
) -> list[list[dict]]:
    """Run the calls one after the other (on one state) in every way; each gives what is expected.

    half, single: the largest `error` of float outputs at either precision; integers and bools must
    be equal. Shortcuts may change the order of sums only: results differ by SINGLE at most, or by
    two steps of half precision. Returns the outputs of each call, for each of WAYS.
    """
    found = []
    for precision, optimize in WAYS:
        program = MLProgram(path, function, precision, optimize=optimize)
        state = program.make_state() if program.states else None
        results = [program.predict(inputs, state) for inputs in calls]
        for got, want in zip(results, expected, strict=True):
            same(got, want, single if precision == "fp32" else half, (precision, optimize))
        found.append(results)
    for fast, plain, step in ((*found[:2], SINGLE), (*found[2:], 2**-9)):
        for one, other in zip(fast, plain, strict=True):
            same(one, other, step, "optimize")
    return found


def same(got: dict, want: dict, tolerance: float, label=None) -> None:
    """Equal names, shapes, kinds of number, and values within the tolerance.

    A wanted scalar comes out as one axis of one element, as from Core ML.
    """
    assert got.keys() == want.keys()
    for name in got:
        actual, expected = got[name], np.atleast_1d(want[name])
        assert actual.shape == expected.shape and actual.dtype.kind == expected.dtype.kind, name
        allowed = tolerance if actual.dtype.kind == "f" else 0
        assert error(actual, expected) <= allowed, f"{name}, {label}"


def seeded(make, *arguments) -> torch.nn.Module:
    """A random network whose norms and statistics are not the neutral ones that they start with."""
    torch.manual_seed(0)
    model = make(*arguments)
    for value in (*model.parameters(), *model.buffers()):
        if value.dim() == 1 and value.is_floating_point():
            value.data += 0.2 * torch.rand_like(value)
    return halved(model)


def check(model, path, calls: list[tuple], names="y", half=5e-3, single=1e-3, **options) -> None:
    """Every call's outputs are torch's; single: constants folded before they are stored differ."""
    program = MLProgram(path, options.get("function"))
    inputs = [dict(zip(program.inputs, call, strict=True)) for call in calls]
    outputs = [dict(zip(names.split(), reference(model, *call), strict=True)) for call in calls]
    agree(path, inputs, outputs, half, single, **options)


def reference(model, *inputs: np.ndarray) -> list[np.ndarray]:
    """What torch gives for numpy inputs, as a list."""
    with torch.no_grad():
        outputs = model(*(torch.from_numpy(x) for x in inputs))
    return [y.numpy() for y in (outputs if isinstance(outputs, tuple) else (outputs,))]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Gaussian numbers that fp16 holds exactly, as float32."""
    values = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return values.astype(np.float16).astype(np.float32)
