"""A fixed sample of `make fuzz`, and that the fuzzer would notice what it looks for."""

from random import Random
import shutil

from _corpus import make
from _fuzz import Worker, fuzz, summary
from _mutate import damage
from _worker import agree, check_again, predict
from mlprogram import MLProgram
from mlprogram.kernels import native
import numpy as np
import pytest
import torch


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    make(folder)
    return folder


def test_damaged_packages_are_refused_or_run(corpus):
    record = summary(fuzz(corpus, range(250), seed=0), seed=0, seconds=0)
    assert record["findings"] == []
    assert record["cases"] == 250
    assert record["outcomes"]["InvalidPackage"] > 80 and record["outcomes"]["same"] > 20


@pytest.mark.skipif(not native.available(), reason=native.status()[1])
def test_the_corpus_reaches_every_kernel(corpus):
    kinds, forms = set(), set()
    for path in corpus.iterdir():
        for function in (program := MLProgram(path)).functions:
            kinds |= {step.kernel for step in program.function(function).plan.main.steps}
        weights = [w for w in program._shared.values() if isinstance(w, native.Weight)]
        forms |= {weight._keep[0].dtype for weight in weights}
    assert kinds >= {"attention", "rms_norm", "gated"}
    assert forms == {torch.float32, torch.float16, torch.int8, torch.uint8}


def test_a_case_is_the_same_every_time(corpus, tmp_path):
    source, other = sorted(corpus.iterdir())[:2]
    seen = []
    for name in ("first", "second"):
        package = shutil.copytree(source, tmp_path / name / "case.mlpackage")
        said = [damage(package, other, tmp_path / "outside", rng) for rng in [Random("7")]]
        files = {f.name: f.read_bytes() for f in sorted(package.rglob("*")) if f.is_file()}
        seen.append((said, files))
    assert seen[0] == seen[1]


class TestFindings:
    """What the fuzzer says of a worker that does what no worker should."""

    def test_a_crash_and_what_comes_after_it(self, corpus):
        worker = Worker(corpus, seed=0)
        worker.process.kill()
        worker.process.wait()
        assert worker.run(0)["message"] == "crash: exit code -9"
        assert not worker.alive

    def test_a_hang(self, corpus, monkeypatch):
        monkeypatch.setattr("_fuzz.TIMEOUT", 0.0)
        worker = Worker(corpus, seed=0)
        assert worker.run(0)["message"] == "hang: more than 0 s"
        assert not worker.alive


class TestComparison:
    """What counts as another answer."""

    @pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("instead", [0.0, 1e30, np.nan, np.inf, -np.inf])
    def test_what_is_not_finite(self, odd, instead):
        right, found = np.array([1.0, odd]), np.array([1.0, instead])
        same = instead == odd or (np.isnan(odd) and np.isnan(instead))
        assert agree(found, right, right) == agree({"a": found}, {"a": right}, {"a": right}) == same
        assert agree(found, right, np.array([1.0, 7.0]))  # only one precision has no number there

    def test_numbers(self):
        right = np.array([1.0, 100.0])
        assert agree(right + 1.9, right, right) and not agree(right + 2.1, right, right)
        assert not agree(np.array([1.0, np.nan]), right, right)
        assert agree(right + 9, right, right + 2)  # as far off as rounding may bring it

    def test_an_answer_that_changes_with_the_next_call(self, corpus):
        program = MLProgram(corpus / "inline-0.mlpackage")
        inputs = program.random_inputs()
        found = predict(program, inputs)
        kept = {name: value.copy() for name, value in found.items()}
        check_again(program, inputs, found)
        assert all(np.array_equal(found[name], kept[name]) for name in kept)
        name = next(iter(found))
        with pytest.raises(AssertionError, match="the second call gives"):
            check_again(program, inputs, found | {name: found[name] + 1})
