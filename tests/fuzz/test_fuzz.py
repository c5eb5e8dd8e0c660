"""A fixed sample of `make fuzz`, and that the fuzzer would notice what it looks for."""

import shutil

from _corpus import make
from _fuzz import Worker, fuzz, summary
from mlprogram import MLProgram
from mlprogram.kernels import native
import pytest
import torch


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    make(folder)
    return folder


def test_damaged_packages_are_refused_or_run(corpus):
    record = summary(fuzz(corpus, range(120), seed=0), seed=0, seconds=0)
    assert record["findings"] == []
    assert record["cases"] == 120
    assert record["outcomes"]["InvalidPackage"] > 35 and record["outcomes"]["same"] > 8


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


@pytest.fixture
def worker(corpus, tmp_path):
    """A worker of one package, that is started soon."""
    shutil.copytree(corpus / "inline-0.mlpackage", tmp_path / "inline-0.mlpackage")
    return Worker(tmp_path, seed=0)


def test_a_crash_is_a_finding(worker):
    worker.process.kill()
    worker.process.wait()
    assert worker.run(0)["message"] == "crash: exit code -9"
    assert not worker.alive


@pytest.mark.long
def test_a_hang_is_a_finding(worker, monkeypatch):
    monkeypatch.setattr("_fuzz.TIMEOUT", 0.0)
    assert worker.run(0)["message"] == "hang: more than 0 s"
    assert not worker.alive
