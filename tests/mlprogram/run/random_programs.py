"""Hold random programs to what their steps give from Python, and their ops one by one.

    make random-programs              20,000 programs
    make random-programs N=500 SEED=3
    python tests/mlprogram/run/random_programs.py --only 137    these seeds alone

Each is called several times. Between the calls memory is asked for and freed, so that nothing still
lies by chance where it was; what is true of a call is true of the same call later.
"""

import argparse
from collections import Counter
from pathlib import Path
import sys
import tempfile
import time

sys.path += [str(Path(__file__).parents[n]) for n in (1, 2)]  # which pytest has, and `make` has not
from _random_forms import RandomProgram
from mlprogram import MLProgram
from mlprogram.errors import InvalidInput, InvalidPackage
import numpy as np
import torch

#: How far what kernels compute may be from what ops give one by one, beside the largest value.
NEAR = {"fp16": 0.03, "fp32": 1e-3}
#: Ops that torch sums up in, in an order that hangs on where values lie.
SUMS = {"conv", "einsum", "layer_norm", "linear", "matmul", "softmax"}
SUMS.add("scaled_dot_product_attention")


def equal(found: np.ndarray, right: np.ndarray) -> bool:
    """Bit for bit, but for which of the numbers that are none one is."""
    same = found.dtype == right.dtype and np.array_equal(found, right, equal_nan=True)
    signs = np.signbit(found) == np.signbit(right) if found.dtype.kind == "f" else True
    return bool(same and np.all(signs | np.isnan(right) if found.dtype.kind == "f" else True))


def outcome(program: MLProgram, given: dict, state=None) -> dict[str, np.ndarray] | str:
    """The outputs, or the error's text."""
    try:
        return program.predict(given, state)
    except (InvalidInput, InvalidPackage) as error:
        return str(error)


def opened(seed: int, folder: Path) -> tuple[RandomProgram, MLProgram]:
    """The program of a seed, in half precision or lifted to single."""
    made, precision = RandomProgram(seed), "fp32" if seed % 4 == 3 else "fp16"
    return made, MLProgram(made.save(folder / f"{seed}.mlpackage"), precision=precision)


def faults(made: RandomProgram, ours: MLProgram) -> list[str]:
    """What is wrong with a program; nothing if all is well."""
    python = MLProgram(ours.package, None, ours.precision, without=["runner"], _shared=ours._shared)
    given = [made.arrays(0), made.arrays(1), made.arrays(0), made.arrays(3, wild=True)]
    found, right = _called(ours, given, disturbed=True), _called(python, given)
    near = NEAR[ours.precision] / 30 if _torch_sums(ours) else 0
    wrong = [
        f"call {i}: {name} is not what Python's calls give"
        for i in range(3 if near else 4)
        for name in _differ(found[i], right[i], near)
    ]
    wrong += [f"{name} is another in the same call later" for name in _differ(found[2], found[0])]
    wrong += [f"{name} is not what the ops give" for name in _far(ours, found[:2], given[:2])]
    return wrong


def _called(program: MLProgram, given: list[dict], disturbed=False) -> list[dict | str]:
    """What calls give, and leave in the states, which are new in the third. disturbed: between them
    others ask for memory."""
    found, kept, states = [], [], [program.make_state(), program.make_state()]
    for i, inputs in enumerate(given):
        state = states[i // 2]
        found.append(outcome(program, inputs, state))
        kept += _others() if disturbed else []
        if not isinstance(found[-1], str):
            found[-1] |= {name: state.read_state(name) for name in program.states}
    return found


def _torch_sums(program: MLProgram) -> bool:
    """Whether torch sums something up, and so gives other bits where values lie otherwise."""
    alone = [step.operation.type for step in program.plan.main.steps if not step.kernel]
    return any(type_ in SUMS or type_.startswith("reduce") for type_ in alone)


def _others() -> list[torch.Tensor]:
    """Numbers that are none, in memory of the sizes that a program asks for, and has freed."""
    return [torch.full((n,), torch.nan) for n in range(4, 1600, 12) for _ in range(2)][::2]


def _differ(found: dict | str, right: dict | str, near: float = 0) -> list[str]:
    if isinstance(right, str) or isinstance(found, str):  # which say what the same op was given
        same = str(found).partition(")")[0] == str(right).partition(")")[0]
        return [] if same else [f"{found!r:.200}, where {right!r:.200}"]
    unlike = [name for name in right if not equal(found[name], right[name])]
    return [name for name in unlike if not near or _distance(found[name], right[name]) > near]


def _far(program: MLProgram, found: list, given: list[dict]) -> list[str]:
    """Outputs that are not near what the ops give one by one. What differs more has to be what half
    precision makes of it anyhow, which single precision shows."""
    right, far = _called(program.plain(), given), []
    for i, (ours, plain) in enumerate(zip(found, right, strict=True)):
        if isinstance(plain, str) or isinstance(ours, str):
            return far if isinstance(plain, str) and isinstance(ours, str) else [*far, "an error"]
        distant = [n for n in plain if _distance(ours[n], plain[n]) > NEAR[program.precision]]
        if distant:
            single = _called(program.plain("fp32"), given)[i]
            rounded = {n: _distance(single[n], plain[n]) for n in distant}
            distant = [n for n in distant if _distance(ours[n], plain[n]) > 4 * rounded[n]]
        far += [f"call {i}: {name}" for name in distant]
    return far


def _distance(found: np.ndarray, right: np.ndarray) -> float:
    """The largest difference, as a share of 1 and the largest value; infinite where one is none."""
    with np.errstate(all="ignore"):
        found, right = (np.float64(x) for x in (found, right))
        if not np.array_equal(np.isfinite(found), np.isfinite(right)):
            return np.inf
        finite = np.isfinite(right)
        apart = np.abs(found - right)[finite].max(initial=0)
        return float(apart / (1 + np.abs(right[finite]).max(initial=0)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--only", type=int, nargs="+", help="the programs of these seeds only")
    options = parser.parse_args()
    counts, started = Counter(), time.perf_counter()
    for seed in options.only or range(options.seed, options.seed + options.cases):
        with tempfile.TemporaryDirectory() as folder:
            wrong = faults(*opened(seed, Path(folder)))
        counts.update(["wrong" if wrong else "right"])
        if wrong:
            print(f"seed {seed}:", *wrong, sep="\n  ", flush=True)
        if counts.total() % 1000 == 0:
            print(f"{counts.total():,} programs", flush=True)
    print(dict(counts), f"{time.perf_counter() - started:,.0f} s")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
