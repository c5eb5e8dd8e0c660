"""Compiled stretches and kernels compute the readings that `semantics` chooses, as Python does."""

from functools import cache
from pathlib import Path

from _random_forms import RandomProgram
from mlprogram import MLProgram
from mlprogram.run.plan import chosen_readings
import numpy as np
import pytest

SEEDS = range(16)


@cache
def saved(seed: int, folder: Path) -> tuple[RandomProgram, Path]:
    made = RandomProgram(seed)
    return made, made.save(folder / f"{seed}.mlpackage")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("random")


@pytest.mark.parametrize("seed", SEEDS)
def test_stretches_compute_what_python_does(seed, folder):
    made, path = saved(seed, folder)
    ours = MLProgram(path, precision="fp32", semantics="reported")
    python = MLProgram(path, precision="fp32", semantics="reported", without=["runner"])
    for given in (made.arrays(0), made.arrays(1)):
        found, right = (p.predict(given, p.make_state()) for p in (ours, python))
        for name in right:  # sums by torch hang on where values lie
            np.testing.assert_allclose(found[name], right[name], rtol=3e-5, atol=3e-5)


def test_these_programs_have_ops_of_both_readings(folder):
    functions = [MLProgram(saved(seed, folder)[1])._function for seed in SEEDS]
    assert sum(bool(chosen_readings(f, "reported")) for f in functions) >= len(SEEDS) // 3
    assert not any(chosen_readings(f, None) for f in functions)
