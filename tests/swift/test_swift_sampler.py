"""Tokens drawn in Swift, held to Python's by seed: the same logits, settings and seeds."""

from collections.abc import Iterator
import json
import subprocess
from typing import Any

from ane_book.options import Sampling, checked
from ane_book.runtime.sampling import Sampler
import numpy as np
import pytest

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {},
    "hot": {"temperature": 3.0},
    "cold": {"temperature": 1e-20, "top_p": 0.9},
    "top-k": {"top_k": 40},
    "top-k of one": {"top_k": 1},
    "top-k of nearly all": {"top_k": 699},
    "top-k of more than all": {"top_k": 9999},
    "top-p": {"top_p": 0.9},
    "a small top-p": {"top_p": 0.01},
    "top-k and top-p": {"top_k": 40, "top_p": 0.9},
    "min-p": {"min_p": 0.05},
    "all three": {"top_k": 50, "top_p": 0.95, "min_p": 0.02},
    "bias": {"logit_bias": {3: 9.5, 699: -100.0, 70: 0.125}},
    "greedy with bias": {"temperature": 0.0, "logit_bias": {7: 30.0, 8: 30.0}},
    "presence": {"presence_penalty": 1.5, "top_k": 20},
    "frequency": {"frequency_penalty": -1.75, "top_p": 0.8},
    "greedy with penalties": {"temperature": 0.0, "presence_penalty": 2, "frequency_penalty": 0.7},
    "bias, penalties and min-p": {
        "logit_bias": {5: 4.0},
        "presence_penalty": 1,
        "frequency_penalty": 0.25,
        "min_p": 0.01,
    },
}


@pytest.fixture(scope="module")
def draws(test_host) -> Iterator[Any]:
    """`ask(logits (n, V), settings)` -> what the Swift host says of them, a token a row."""
    with subprocess.Popen([*test_host, "draws"], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin and process.stdout

        def ask(file, vocabulary: int, settings: dict) -> dict:
            request = {"logits": str(file), "vocabulary": vocabulary} | settings
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()
        assert process.wait() == 0


def logits(vocabulary: int) -> np.ndarray:
    """(5, vocabulary) float16: usual ones, peaked, flat, with ties, and with holes."""
    random = np.random.default_rng(7)
    rows = random.standard_normal((5, vocabulary)) * np.array([[3], [6], [0.2], [3], [3]])
    rows[3] = rows[3].round()
    rows[4, random.random(vocabulary) < 0.3] = -np.inf
    return rows.astype(np.float16)


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_those_of_python(name, draws, tmp_path):
    """200 seeds, five tokens each."""
    rows = logits(700)
    rows.tofile(tmp_path / "logits")
    for seed in range(200):
        settings = {"temperature": 0.8, "seed": seed} | SETTINGS[name]
        sampler = Sampler(checked(Sampling, settings))
        expected = [sampler(row.astype(np.float32)) for row in rows]
        assert draws(tmp_path / "logits", 700, settings)["token_ids"] == expected, seed


@pytest.mark.parametrize("name", ["temperature", "top-k", "top-p", "top-k and top-p"])
def test_tokens_at_a_real_vocabulary(name, draws, tmp_path):
    """200 of SmolLM2's. With probabilities in float32 one in a hundred was another token."""
    rows = np.random.default_rng(1).standard_normal((200, 49_152)).astype(np.float16)
    rows.tofile(tmp_path / "logits")
    settings = {"temperature": 1.0, "seed": 1} | SETTINGS[name]
    sampler = Sampler(checked(Sampling, settings))
    expected = [sampler(row.astype(np.float32)) for row in rows]
    assert draws(tmp_path / "logits", 49_152, settings)["token_ids"] == expected


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_no_number_is_no_token(wrong, draws, tmp_path):
    np.array([1, 2, wrong, 3], np.float16).tofile(tmp_path / "logits")
    for temperature in (0.0, 1.0):
        answer = draws(tmp_path / "logits", 4, {"temperature": temperature})
        assert "hold NaN or infinities" in answer["error"]
