"""Sessions and embedders in Swift, held to Python's: the same programs through the executor, the
same tokens, texts and vectors."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
import json
import os
from pathlib import Path
import re
import signal
import subprocess
import sys
from typing import Any

from _encoders import tiny_bert, write_encoder
from _long import long_but
from _tiny import ROUTED, prompt
from _zaya import maker
import ane_book
from ane_book.bundle import Bundle
from ane_book.errors import InvalidInput
from ane_book.layout import LAYOUTS
from ane_book.runtime import Embedder, Session
from ane_book.runtime.backends import MILBackend
import numpy as np
import pytest
from swift_tables import add_tables
from swift_tables.recording import RecordingBackend

EXECUTOR = f"{sys.executable} -m mlprogram.pipe"


@contextmanager
def swift(test_host: list[str], bundle: Bundle, *options: str) -> Iterator[Any]:
    """`ask(**request)` -> the Swift host's answer about a bundle, in one process."""
    add_tables(bundle)
    command = [*test_host, "answers", str(bundle.path), *(options or ("--executor", EXECUTOR))]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin and process.stdout

        def ask(**request: Any) -> dict:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        ask.pid = process.pid
        yield ask
        process.stdin.close()
        assert process.wait() == 0


def same(ask: Any, session: Session, given: dict, **options: Any) -> dict:
    """Hold an answer in Swift to Python's; returns the former."""
    (what, value), drafted = next(iter(given.items())), "lookup" in options
    options_there = options | ({"lookup": True} if drafted else {})
    answer = ask(**given, **options_there)
    options.pop("lookup", None)
    expected = session.generate(value, draft="lookup" if drafted else None, **options)
    assert answer["token_ids"] == expected.token_ids, (what, value, options)
    assert answer["text"] == expected.text
    assert answer["finish_reason"] == expected.finish_reason
    assert answer["prompt_tokens"] == expected.prompt_tokens
    for field in ("calls", "drafted", "accepted"):
        assert answer[field] == getattr(expected, field), field
    return answer


ONE = {"functions": "one", "verify": 4, "prefill": None, "tiers": (16,)}
FORMS = {
    "state": {"kv": "state"},
    "host": {"kv": "host"},
    "tiers of a state": {"kv": "state", "tiers": (8, 16)},
    "tiers of the host's cache": {"kv": "host", "tiers": (8, 16)},
    "verify": {"kv": "state", "verify": 4},
    "two shards and a split head": {"kv": "host", "shard_limit": 100_000, "head_rows": 100},
    "tokens": {"kv": "host", "argmax_output": True},
    "apple, state": {"kv": "state", "form": "apple"},
    "apple, host": {"kv": "host", "form": "apple"},
    "apple, tiers of a state": {"kv": "state", "form": "apple", "tiers": (8, 16)},
    "apple, tiers of the host's cache": {"kv": "host", "form": "apple", "tiers": (8, 16)},
    "apple, verify": {"kv": "state", "form": "apple", "verify": 4},
    "one function, state": {"kv": "state", **ONE},
    "one function, host": {"kv": "host", **ONE},
    "apple, one function, state": {"kv": "state", "form": "apple", **ONE},
    "apple, one function, host": {"kv": "host", "form": "apple", **ONE},
}


@pytest.mark.parametrize("form", FORMS)
def test_tokens_are_those_of_python(form, test_host, tiny_bundle):
    bundle = tiny_bundle("llama", **FORMS[form])[1]
    session = Session(bundle, backend="mil")
    with swift(test_host, bundle) as ask:
        for n in (1, 3, 8, 9, 20, 30, 31):
            ids = list(prompt(n))
            same(ask, session, {"tokens": ids}, max_tokens=12)
        if "verify" in FORMS[form]:
            texts = [list(prompt(n)) * 3 for n in (2, 5)]
            answers = [same(ask, session, {"tokens": ids}, lookup=True) for ids in texts]
            assert any(answer["drafted"] for answer in answers)
        if form != "tokens":
            for seed in range(4):
                how = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": seed, "max_tokens": 9}
                same(ask, session, {"tokens": list(prompt(6))}, **how)
                how = {"temperature": 1.3, "seed": 2**40 + seed, "max_tokens": 9}
                same(ask, session, {"tokens": list(prompt(6))}, **how)
            how = {"min_p": 0.02, "logit_bias": {7: 2.5}, "presence_penalty": 0.5, "temperature": 1}
            same(ask, session, {"tokens": list(prompt(5))}, seed=3, frequency_penalty=1.5, **how)
            same(ask, session, {"tokens": list(prompt(4))}, stop_repeat=2)


#: Windowed, of mixtures, with an input for every layer, with tails.
KINDS = ("gemma3_text", "qwen3_moe", "gemma4_text", "lfm2")


@pytest.mark.parametrize(
    ("family", "form"), long_but(product(KINDS, LAYOUTS), ("gemma3_text", "rows"))
)
def test_every_kind_of_architecture(family, form, test_host, tiny_bundle):
    bundle = tiny_bundle(family, form=form)[1]
    session = Session(bundle, backend="mil")
    with swift(test_host, bundle) as ask:
        for n in (1, 7, 17):
            same(ask, session, {"tokens": list(prompt(n))}, max_tokens=8)


#: ZAYAs, whose experts are in one program or are programs, with a cache and tails.
EXPERTS = {
    "usual": {"experts": "dispatch", "kv": "state", "tiers": (32,)},
    "odd": {"experts": "dispatch", "kv": "host", "tiers": (16,)},
    "sliding": {"experts": "packed", "kv": "host"},
}


@pytest.mark.parametrize(("size", "form"), long_but(product(EXPERTS, LAYOUTS), ("usual", "rows")))
def test_experts(size, form, test_host, tmp_path_factory):
    """The host calls those that some token chose and adds up what they give: the same tokens."""
    bundle = maker(tmp_path_factory, EXPERTS, form=form)(size)[2]
    session = Session(bundle, backend="mil")
    assert (size == "sliding") == all(p.expert is None for p in bundle.manifest.packages)
    with swift(test_host, bundle) as ask:
        for n in (1, 8, 9, 40):
            ids = list(prompt(n))
            same(ask, session, {"tokens": ids}, max_tokens=9, temperature=1.3, seed=n)
        answer = same(ask, session, {"tokens": ids}, max_tokens=4, reuse_cache=True)
        longer = ids + answer["token_ids"][:-1] + [5, 6]
        assert (
            same(ask, session, {"tokens": longer}, max_tokens=4, reuse_cache=True)["prefilled"] == 2
        )


@pytest.mark.long
@pytest.mark.parametrize("family", ROUTED)
def test_experts_that_a_token_takes_several_of(family, test_host, tiny_bundle):
    """As programs of their own, beside layers of attention or of short convolutions."""
    every = {"lfm2_moe": ("num_dense_layers", 0), "qwen3_moe": ("mlp_only_layers", None)}
    bundle = tiny_bundle(family, (every[family],), experts="dispatch", kv="state", tiers=(16,))[1]
    session = Session(bundle, backend="mil")
    with swift(test_host, bundle) as ask:
        for n in (1, 8, 17):
            same(ask, session, {"tokens": list(prompt(n))}, max_tokens=8)


def test_what_python_alone_runs_is_refused_by_name(anebook, tiny_bundle, tmp_path):
    settings = {"prompts": {"query": "q: "}, "default_prompt_name": "query"}
    folder = write_encoder(tiny_bert("odd"), tmp_path / "m", **settings)
    bundles = {
        "layers with a memory are run by Python alone": tiny_bundle("qwen3_5_text")[1],
        "filled by Python alone: convert without lora_slots": tiny_bundle("llama", lora_slots=4)[1],
        "a prompt or cut vectors is run by Python alone":
            ane_book.convert(str(folder), out=tmp_path / "b"),
    }  # fmt: skip
    for says, bundle in bundles.items():
        command = [*anebook, "run", bundle.path, "Hi", "--executor", EXECUTOR]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2 and says in done.stderr


@pytest.mark.parametrize("form", LAYOUTS)
def test_a_recording_needs_no_program(test_host, tiny_bundle, tmp_path, form):
    """The Swift host passes what Python's host passed, to the bit, call by call."""
    for kv in ("state", "host"):
        bundle = tiny_bundle("gemma3_text", kv=kv, form=form, tiers=(16,))[1]
        session = Session(bundle, backend=RecordingBackend(MILBackend(), tmp_path / kv))
        prompts = [list(prompt(n)) for n in (9, 17, 1)]
        expected = [session.generate(ids, max_tokens=8).token_ids for ids in prompts]
        with swift(test_host, bundle, "--recording", str(tmp_path / kv)) as ask:
            assert [ask(tokens=ids, max_tokens=8)["token_ids"] for ids in prompts] == expected
            assert "the recording ends" in ask(tokens=[1])["error"]
        with swift(test_host, bundle, "--recording", str(tmp_path / kv)) as ask:
            wrong = ask(tokens=[*prompts[0][:-1], 77], max_tokens=8)
            assert "the input hidden is not the recorded one" in wrong["error"]
    with pytest.raises(InvalidInput, match="holds something already"):
        RecordingBackend(MILBackend(), tmp_path / "state")


def test_bad_prompts(test_host, tiny_bundle):
    bundle = tiny_bundle("llama", kv="state")[1]
    with swift(test_host, bundle) as ask:
        assert "is empty" in ask(tokens=[])["error"]
        assert "300 is outside the vocabulary" in ask(tokens=[1, 300])["error"]
        assert "fit the context of 32 tokens" in ask(tokens=[1] * 32)["error"]
        assert "temperature must be" in ask(tokens=[1], temperature=-1)["error"]
        assert "minP must be from 0 to 1" in ask(tokens=[1], min_p=2)["error"]
        assert "presencePenalty must be" in ask(tokens=[1], presence_penalty=-3)["error"]
        assert "300 is outside the vocab" in ask(tokens=[1], logit_bias={300: 1.0})["error"]
        assert "converted without verify" in ask(tokens=[1], lookup=True)["error"]
        assert ask(tokens=[1], max_tokens=2)["token_ids"]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_an_executor_that_has_ended(test_host, tiny_bundle, tmp_path):
    """It is an error at every call, and what this process does about signals stays as it was."""
    bundle = tiny_bundle("llama", kv="state")[1]
    pid = tmp_path / "pid"
    script = f"echo $$ > {pid}; exec {EXECUTOR}"
    (tmp_path / "executor").write_text(script)
    with swift(test_host, bundle, "--executor", f"sh {tmp_path / 'executor'}") as ask:
        assert ask(tokens=[1], max_tokens=2)["token_ids"]
        status = Path(f"/proc/{ask.pid}/status").read_text()
        ignored = int(re.search(r"SigIgn:\s*(\w+)", status)[1], 16)
        assert not ignored >> (signal.SIGPIPE - 1) & 1
        os.kill(int(pid.read_text()), signal.SIGKILL)
        for _ in range(2):
            assert "has ended, or says what it should not" in ask(tokens=[1])["error"]


@pytest.mark.long
def test_the_default_model(test_host):
    """Twenty prompts through the chat template, and one that is continued in a conversation."""
    session = ane_book.load("smollm2-135m-instruct", backend="mil")
    questions = [f"What is {i} plus {i + 1}?" for i in range(10)]
    questions += [f"Name {i} animals." for i in range(1, 6)]
    questions += ["Écris un haïku.", "写一首诗", "What is in\n\n two  lines?", "👩‍👩‍👧 who?", " "]
    with swift(test_host, session.bundle) as ask:
        for question in questions:
            same(ask, session, {"prompt": question}, max_tokens=24)
        same(ask, session, {"prompt": "Hi"}, system="Answer in French.", max_tokens=24)
        same(ask, session, {"prompt": "Count to ten."}, stop=["5"], max_tokens=60)


@pytest.mark.long
def test_vectors(test_host):
    texts = ["A cat sat.", "", "Ein Satz, der länger ist als die anderen.", "cat " * 400]
    embedder = ane_book.load("all-minilm-l6-v2", backend="mil")
    assert isinstance(embedder, Embedder)
    with swift(test_host, embedder.bundle) as ask, pytest.warns(UserWarning, match="is cut"):
        expected = embedder.embed(texts)
        np.testing.assert_allclose(ask(texts=texts)["vectors"], expected, atol=2e-3)
