"""The PyTorch modules that coremltools' versions convert otherwise, each with a near miss.

As a script, `python _converters.py FOLDER [ID ...]`, it converts them with the coremltools of its
own environment into FOLDER, one process a version; `run_converters.py` calls it. It needs PyTorch,
NumPy and coremltools alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
import json
import logging
from pathlib import Path
import platform
import sys
import warnings

import numpy as np
import torch
from torch.nn import functional

LOWEST = torch.finfo(torch.float32).min
TIES = torch.arange(7) / 14  # below 1: sorted by it, equal keys keep their order


@dataclass(frozen=True)
class Case:
    """What is converted: a function of `inputs`, and one that a pattern must not meet.

    near_inputs: of the near miss, if others. half: in fp16. export: by torch.export, otherwise
    traced. flexible: the first axis is. tolerance: relative to the largest number.
    """

    forward: Callable
    near: Callable
    inputs: tuple
    near_inputs: tuple = ()
    half: bool = False
    export: bool = False
    flexible: bool = False
    weights: Callable | None = None  # of coremltools.optimize, on the package
    tolerance: float = 1e-5


class Called(torch.nn.Module):
    def __init__(self, function: Callable):
        super().__init__()
        self.function = function

    def forward(self, *values):
        return self.function(*values)


def single(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def integers(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def stable_order(keys, values):
    """`values` by `keys`, those of equal keys in their own order."""
    first = torch.argsort(values.float() + TIES)
    keys = torch.gather(keys, 0, first)
    order = torch.gather(first, 0, torch.argsort(keys.float() + TIES))
    return torch.gather(values, 0, order)


def attention(mask: Callable) -> Callable:
    return lambda x: functional.scaled_dot_product_attention(x, x, x, attn_mask=mask())


def spectrum(x):
    return torch.view_as_real(torch.fft.fft(x))


def scaled(x):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)


def log_shares(x):
    moved = x - x.amax(-1, keepdim=True)
    return moved - torch.log(torch.exp(moved).sum(-1, keepdim=True))


class Faint(torch.nn.Module):
    """A linear whose weights are so small that their scale is nothing in fp16."""

    def __init__(self, size: float):
        super().__init__()
        self.linear = torch.nn.Linear(16, 2, bias=False)
        weight = torch.linspace(-1, 2, 32).reshape(2, 16) * size
        self.linear.weight = torch.nn.Parameter(weight, requires_grad=False)

    def forward(self, x):
        return self.linear(x)


def quantised(made):
    """Its weights in 8 bits."""
    from coremltools.optimize import coreml

    option = coreml.OpLinearQuantizerConfig(mode="linear_symmetric", weight_threshold=0)
    config = coreml.OptimizationConfig(global_config=option)
    return coreml.linear_quantize_weights(made, config)


def small(x):
    return (x > 0).to(torch.int32)


def peaks(size: int, *positions: int) -> torch.Tensor:
    x = torch.zeros(size)
    x[list(positions)] = torch.arange(len(positions), 0, -1.0)
    return x


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


SIGNED = single(-2.5, -1.5, -0.5, 0, 0.5, 1.5)
DIVIDED = integers(7, -7, 9), integers(2, 2, 4)

CASES = {
    "reciprocal-epsilon": Case(
        torch.reciprocal, lambda x: torch.ones(4) / x, (single(1e-4, 1e-3, -1e-4, 2),)
    ),
    "atan2-zero": Case(
        torch.atan2,
        lambda y, x: torch.atan(y / (x + (x.abs() < 1e-8).float() * 2e-8 * torch.sign(x))),
        (single(0, 0, 1, -1), single(-1, -3, -1e-9, -1e-9)),
    ),
    "band-infinite": Case(
        lambda x: torch.triu(x, 1) + torch.tril(x, -1),
        lambda x: (x - torch.tril(2 * x)) + (x - torch.triu(2 * x)),
        (torch.full((3, 3), -torch.inf),),
    ),
    "narrow-empty": Case(
        lambda x: torch.narrow(x, -1, -2, 2) * 2,
        lambda x: torch.narrow(x, -1, -3, 2) * 2,
        (noise(3, 4),),
    ),
    "diagonal-matrix": Case(
        lambda x: torch.diagonal(x) * 2,
        lambda x: torch.tril(torch.triu(x)) * 2,
        (noise(3, 3),),
        export=True,
    ),
    "roll-negative": Case(
        lambda x: torch.roll(x, -2, 0), lambda x: torch.roll(x, 2, 0), (noise(5, 1),), flexible=True
    ),
    "div-floor-integer": Case(
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        lambda x, y: torch.div(x, y, rounding_mode="floor").to(torch.int32) + 1,
        DIVIDED,
    ),
    "div-trunc-integer": Case(
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        lambda x, y: torch.div(x, y, rounding_mode="trunc").to(torch.int32) + 1,
        DIVIDED,
    ),
    "floor-divide-integer": Case(
        torch.floor_divide, lambda x, y: torch.floor_divide(x, y).to(torch.int32) + 1, DIVIDED
    ),
    "sentinel-added": Case(
        lambda x: torch.softmax(x + torch.full((2, 4), LOWEST), -1),
        lambda x: torch.softmax(x + torch.triu(torch.full((2, 4), LOWEST), 1), -1),
        (noise(2, 4),),
        half=True,
        tolerance=5e-3,
    ),
    "sentinel-selected": Case(
        lambda x, seen: torch.softmax(x.masked_fill(seen == 0, LOWEST), -1),
        lambda x, seen: torch.softmax(x.masked_fill(seen == 0, -1e4), -1),
        (noise(2, 4), integers([1, 1, 0, 0], [0, 0, 0, 0])),
        half=True,
        tolerance=5e-3,
    ),
    "sentinel-multiplied": Case(
        lambda x, seen: torch.softmax(x + (1 - seen) * LOWEST, -1),
        lambda x, seen: torch.softmax(x + (1 - seen) * -1e4, -1),
        (noise(2, 4), torch.ones(2, 4)),
        half=True,
        tolerance=5e-3,
    ),
    "matmul-batch-lost": Case(
        torch.matmul,
        torch.matmul,
        (noise(4), noise(5, 4, 3)),
        near_inputs=(noise(4), noise(1, 4, 3)),
    ),
    "fourier-matrix": Case(
        spectrum, spectrum, (noise(1, 1024),), near_inputs=(noise(1, 64),), tolerance=3e-5
    ),
    "unsigned-data": Case(
        lambda keys, values: stable_order(small(keys), values),
        lambda keys, values: stable_order(small(keys), values.abs()),
        (integers(1, 3, 1, 4, 3, 5, 4), integers(0, 4, 0, 4, 0, -21, -12)),
        half=True,
        tolerance=5e-3,
    ),
    "gather-narrowed": Case(
        lambda x: x[torch.tensor([1, 0])] + 1,
        lambda x: small(x)[torch.tensor([1, 0])] + 1,
        (integers(40_000, -40_000, 1),),
        half=True,
    ),
    "squeeze-narrowed": Case(
        lambda x: x.squeeze(0) + 1,
        lambda x: small(x).squeeze(0) + 1,
        (integers([40_000, -40_000, 1]),),
        half=True,
    ),
    "topk-positions": Case(
        lambda x: torch.topk(x, 2)[1],
        lambda x: torch.topk(x, 2)[1],
        (peaks(70_000, 69_000, 68_000),),
        near_inputs=(peaks(40_000, 39_000, 38_000),),
        half=True,
    ),
    "clamp-bounds-cut": Case(
        lambda x: torch.clamp(x, 0.5, 2.5), lambda x: torch.clamp(x, 0, 2), (integers(-1, 1, 3),)
    ),
    "clamp-integer": Case(
        lambda x: torch.clamp(x, max=2),
        lambda x: torch.clamp(x, max=2).to(torch.int32) + 1,
        (integers(-1, 1, 3),),
    ),
    "attention-mask-added": Case(
        attention(lambda: torch.ones(4, 4, dtype=torch.bool).tril()),
        attention(lambda: torch.full((4, 4), -1e4).triu(1)),
        (noise(1, 2, 4, 8),),
    ),
    "rms-norm-epsilon": Case(
        lambda x: functional.rms_norm(x, (8,), eps=1e-6), scaled, (noise(2, 8) * 1e-4,)
    ),
    "root-of-square": Case(
        lambda x: torch.sqrt(x**2) * 3, lambda x: torch.sqrt(torch.relu(x) ** 2) * 3, (SIGNED,)
    ),
    "gelu-slope": Case(
        lambda x: x * torch.sigmoid(1.7 * x), lambda x: x * torch.sigmoid(1.73 * x), (SIGNED,)
    ),
    "log-of-softmax": Case(
        lambda x: functional.log_softmax(x, -1),
        log_shares,
        (single(0, 200, 300),),
    ),
    "average-overhang": Case(
        lambda x: functional.avg_pool2d(x, 3, 2, 0, ceil_mode=True),
        lambda x: functional.avg_pool2d(x, 2, 2, 0, ceil_mode=True),
        (noise(1, 2, 8, 8),),
    ),
    "mask-overflows": Case(
        lambda x, seen: torch.softmax(x + (1 - seen) * -1e9, -1),
        lambda x, seen: torch.softmax(x + (1 - seen) * -1e4, -1),
        (noise(2, 4) / 1000, torch.zeros(2, 4)),
        half=True,
        tolerance=0.02,
    ),
    "constant-raised": Case(
        lambda x: x * 1e-9 * 1e4, lambda x: x * 1e-6, (SIGNED * 1e3,), half=True, tolerance=0.05
    ),
    "scale-zero": Case(
        Faint(1e-6),
        Faint(1e-2),
        (torch.ones(1, 16) * 1e3,),
        half=True,
        weights=quantised,
        tolerance=0.05,
    ),
}  # fmt: skip


def expected(case: Case) -> np.ndarray:
    with torch.no_grad():
        return case.forward(*case.inputs).numpy()


def agrees(want: np.ndarray, got: np.ndarray, tolerance: float) -> bool:
    """Whether shapes, kinds of numbers and numbers are the same."""
    if got.shape != want.shape or (got.dtype.kind == "f") != (want.dtype.kind == "f"):
        return False
    finite = want[np.isfinite(want)]
    room = tolerance * np.abs(finite).max(initial=1e-30)
    return bool(np.allclose(got, want, rtol=0, atol=room, equal_nan=True))


def convert(case: Case, near: bool = False):
    """The package, as an MLModel, that this environment's coremltools makes of a case."""
    import coremltools as ct

    function = case.near if near else case.forward
    inputs = (near and case.near_inputs) or case.inputs
    module, options = Called(function).eval(), {}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if case.export:
            program = torch.export.export(module, inputs).run_decompositions({})
        else:
            program = torch.jit.trace(module, inputs, check_trace=False)
            shapes = [tuple(x.shape) for x in inputs]
            if case.flexible:
                shapes = [(ct.RangeDim(2, 16, default=shape[0]), *shape[1:]) for shape in shapes]
            options["inputs"] = [
                ct.TensorType(f"x{i}", shape=shape, dtype=x.numpy().dtype)
                for i, (shape, x) in enumerate(zip(shapes, inputs, strict=True))
            ]
        made = ct.convert(
            program,
            convert_to="mlprogram",
            # 6.3 knows no iOS 17
            minimum_deployment_target=getattr(ct.target, "iOS17", ct.target.iOS16),
            compute_precision=ct.precision.FLOAT16 if case.half else ct.precision.FLOAT32,
            skip_model_load=True,
            **options,
        )
        return case.weights(made) if case.weights else made


def main(folder: Path, names: list[str]) -> None:
    """Converts cases, and writes made.json: the versions, and why a case was refused."""
    logging.disable(logging.CRITICAL)
    import coremltools as ct

    refused = {}
    for name in names or CASES:
        try:
            convert(CASES[name]).save(str(folder / f"{name}.mlpackage"))
        except Exception as error:  # whatever an old version raises is its refusal
            refused[name] = f"{type(error).__name__}: {error}".strip().splitlines()[0][:120]
    versions = {
        "coremltools": ct.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    made = {"versions": versions, "refused": refused}
    (folder / "made.json").write_text(json.dumps(made, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
