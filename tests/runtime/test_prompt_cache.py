"""Caches that no session goes on from: of another model, damaged, hostile, or half written."""

from contextlib import closing
from dataclasses import replace
import json
import os
import random
import resource
import signal
import time

from _adapters import write_adapter
from _tiny import prompt
from ane_book.errors import InvalidInput, OutOfSpace, SessionBusy
from ane_book.host import Host
from ane_book.rope import Rotary
from ane_book.runtime import Session
from ane_book.runtime.model_runner import ModelRunner
from ane_book.runtime.prompt_cache import kept_layers
from ane_book.runtime.prompt_cache_file import check_form, read_cache, write_cache
import numpy as np
import pytest

N = 21
IDS = prompt(N + 1)
RECIPE = {"kv": "host", "context": 64, "lora_slots": 4}


@pytest.fixture(scope="module")
def session(tiny_bundle):
    """One that holds N tokens."""
    session = Session(tiny_bundle("gemma3_text", **RECIPE)[1], "fp32", "mil")
    session.prefill(IDS[:N])
    return session


@pytest.fixture(scope="module")
def other(session):
    return Session(session.bundle, "fp32", "mil")


@pytest.fixture
def file(session, tmp_path):
    path = tmp_path / "cache.safetensors"
    session.save_cache(path)
    return path


def refusal(call, *given) -> str:
    """What an InvalidInput says, which is one line."""
    with pytest.raises(InvalidInput) as caught:
        call(*given)
    message = str(caught.value)
    assert message and "\n" not in message
    return message


def test_a_file_is_for_one_person_and_whole(session, file):
    assert file.stat().st_mode & 0o777 == 0o600
    before = file.read_bytes()
    assert "no such" in refusal(session.save_cache, file.parent / "none" / "x").lower()
    assert "'gguf'" in refusal(session.save_cache, file, "gguf")
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_file_goes_where_a_link_leads_and_nowhere_but_to_a_file(session, file):
    link, pipe = file.with_name("link"), file.with_name("pipe")
    link.symlink_to(file)
    file.write_bytes(b"")
    session.save_cache(link)
    assert link.is_symlink() and file.stat().st_size
    os.mkfifo(pipe)
    for place in (pipe, file.parent):
        assert f"{place}: not a file" in refusal(session.save_cache, place)
    assert pipe.is_fifo()
    before, (_, most) = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))  # as a full disk
    try:
        with pytest.raises(OutOfSpace, match="No space left"):
            session.save_cache(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert file.read_bytes() == before and len([*file.parent.iterdir()]) == 3


def test_an_answer_that_runs_keeps_its_cache(session, file):
    with closing(session.stream(IDS, max_tokens=4)) as stream:
        next(stream)
        for call in (session.prompt_cache, lambda: session.load_cache(file)):
            with pytest.raises(SessionBusy):
                call()
    session.load_cache(file)
    assert session.position == N


def test_a_session_goes_on_from_a_copy_that_stays_as_it_was(session, other):
    cache = session.prompt_cache()
    before = [{name: array.copy() for name, array in own.arrays.items()} for own in cache.layers]
    other.continue_from(cache)
    found, expected = other.decode(IDS[N]), session.decode(IDS[N])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    session.rewind(N)
    for own, arrays in zip(cache.layers, before, strict=True):
        for name, array in arrays.items():
            np.testing.assert_array_equal(own.arrays[name], array)
    assert (cache.position, cache.tokens) == (N, IDS[:N])


def test_what_made_it_must_be_the_same(session, tiny, tiny_bundle, tmp_path):
    cache, folder = session.prompt_cache(), tmp_path / "adapter"
    for name in ("weights", "tokenizer", "recipe", "adapter", "precision"):
        changed = replace(cache, made_of=cache.made_of | {name: "other"})
        assert f"of other {name}: 'other'" in refusal(session.continue_from, changed)
    half = Session(session.bundle, "fp16", "mil")
    assert "of other precision: 'float32', and not 'float16'" in refusal(half.continue_from, cache)
    write_adapter(tiny("gemma3_text")[0], folder)
    half.use(folder)
    half.prefill(IDS[:N])
    own = half.prompt_cache()
    half.use(None)
    assert "of other adapter" in refusal(half.continue_from, own)
    half.use(folder)
    half.continue_from(own)


def test_bundles_that_cannot(session, other):
    manifest = session.bundle.manifest
    silent = manifest.model_copy(update={"layers": []})
    assert "convert the model again" in refusal(kept_layers, silent)
    other.reset()
    assert "holds no tokens" in refusal(other.prompt_cache)
    far = Session(session.bundle, "fp32", "mil", runner=type("Far", (ModelRunner,), {})(
        session.bundle, session.backend
    ))  # fmt: skip
    assert "cluster" in refusal(far.prompt_cache)


ORIGINAL = {"original_max_position_embeddings": 64}

#: What mlx-lm has no cache for, or computes otherwise: family, scaling, window, what is said.
OTHERWISE = [
    ("zaya", {}, None, "no cache of what zaya models keep"),
    ("ministral", {}, None, "no cache of what ministral models keep"),
    ("mistral", {}, 32, "no window in Mistral"),
    ("qwen3_moe", {"rope_type": "linear", "factor": 2.0}, None, "qwen3_moe models by linear"),
    (
        "llama",
        {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.2} | ORIGINAL,
        None,
        "YaRN",
    ),
    ("phi3", {"rope_type": "longrope"} | ORIGINAL, None, "LongRoPE"),
]


@pytest.mark.parametrize("family, scaling, window, said", OTHERWISE)
def test_what_mlx_lm_computes_otherwise_is_not_written(session, family, scaling, window, said):
    rotary = {"rope": Rotary(24, 24, 1e4, scaling, 128)}
    host = Host.model_construct(rotary=rotary, masks={"mask": window})
    model = session.bundle.manifest.model | {"architecture": family}
    changed = session.bundle.manifest.model_copy(update={"host": host, "model": model})
    assert said in refusal(check_form, changed, "mlx")
    for fine in ("mistral", "llama"):
        host = Host.model_construct(rotary={}, masks={"mask": None})
        check_form(
            changed.model_copy(update={"host": host, "model": {"architecture": fine}}), "mlx"
        )


def interrupted(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("calls", range(4))
def test_what_runs_again_may_be_interrupted(calls, other, monkeypatch):
    """A file has the last rows of windows alone: to go back, all tokens run again, later too."""
    ids, step = prompt(50), other._runner._steps[-1]
    other.reset()
    expected = other.logits(ids)
    other.rewind(40)
    other.continue_from(other.prompt_cache())
    other.rewind(30)
    runs = iter([step.run] * calls)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(step, "run", lambda *given: next(runs, interrupted)(*given))
        other.prefill(ids[30:])
    found = other.logits(ids[other.position :])
    np.testing.assert_allclose(found, expected[-len(found) :], atol=1e-5)


def test_a_cache_of_other_layers_is_refused(session, other):
    cache = session.prompt_cache()
    first, *rest = cache.layers
    short = {name: array[:, :-1] for name, array in first.arrays.items()}
    for layers in (rest, [replace(first, arrays=short), *rest]):
        refusal(other.continue_from, replace(cache, layers=layers))


def test_other_tokens_are_read_again(session, other):
    cache = session.prompt_cache()
    expected = session.generate(IDS, max_tokens=8).token_ids
    other.continue_from(replace(cache, tokens=[IDS[1], *IDS[1:N]]))
    calls = other.calls.total()
    assert other.generate(IDS, max_tokens=8, reuse_cache=True).token_ids == expected
    assert other.calls.total() > calls + 8 * len(session.bundle.manifest.packages)
    session.rewind(N)


# --- damaged files


class Damaged:
    """The parts of a file, and ways to damage it."""

    def __init__(self, content: bytes, draw: random.Random):
        size = int.from_bytes(content[:8], "little")
        self.header, self.data = json.loads(content[8 : 8 + size]), bytearray(content[8 + size :])
        self.metadata, self.draw = self.header["__metadata__"], draw
        self.record = json.loads(self.metadata["0.ane_book"])
        self.names = [n for n in self.header if n != "__metadata__"]
        self.any = self.header[draw.choice(self.names)]

    def bytes(self) -> bytes:
        self.metadata["0.ane_book"] = json.dumps(self.record)
        text = json.dumps(self.header).encode()
        return len(text).to_bytes(8, "little") + text + self.data

    def number(self, name: str, value: int) -> None:
        start, stop = self.header[name]["data_offsets"]
        self.data[start:stop] = value.to_bytes(stop - start, "little", signed=True)


def cut(d: Damaged) -> bytes:
    whole = d.bytes()
    return whole[: d.draw.randrange(len(whole))]


def noise(d: Damaged) -> bytes:
    whole = bytearray(d.bytes())
    at = d.draw.randrange(9, 100)
    whole[at : at + 30] = d.draw.randbytes(30)
    return bytes(whole)


def doubled(d: Damaged) -> bytes:
    first, second = d.draw.sample(d.names, 2)
    return d.bytes().replace(f'"{first}": '.encode(), f'"{second}": '.encode(), 1)


def not_finite(d: Damaged) -> None:
    start, stop = d.header[d.draw.choice(["0.0", "1.1", "2.0"])]["data_offsets"]
    at = d.draw.randrange(start, stop, 4)
    d.data[at : at + 4] = np.float32(d.draw.choice([np.nan, np.inf, -np.inf])).tobytes()


def other_tokens(d: Damaged) -> None:
    tokens, wrong = d.record["tokens"], (-1, 257, 10**30, 1.5, True, None, "1", [1], 1e300)
    d.record["tokens"] = d.draw.choice(
        [tokens[1:], tokens * 2, {}, "1", 5, [*tokens[1:], d.draw.choice(wrong)]]
    )


def other_messages(d: Damaged) -> None:
    d.record["messages"] = d.draw.choice(
        [5, "1", {"role": "user"}, [["user", "Hi"]], [{"role": "user"}],
         [{"role": "user", "content": d.draw.choice([None, 1, ["Hi"], {}])}]]
    )  # fmt: skip


DAMAGES = {
    "cut short": cut,
    "length of the header": lambda d: d.draw.randrange(2**63).to_bytes(8, "little") + d.bytes()[8:],
    "noise in the header": noise,
    "type": lambda d: d.any.update(dtype=d.draw.choice(["F64", "I8", "BOOL", "F16", "F4", "", 3])),
    "shape": lambda d: d.any.update(shape=[1, *d.any["shape"]]),
    "sizes": lambda d: d.any.update(shape=[d.draw.choice([-1, 2**40, 2**63, 10**30, "1", 1.5])]),
    "place": lambda d: d.any.update(data_offsets=[d.draw.randrange(99), d.draw.randrange(2**40)]),
    "a tensor lacks": lambda d: d.header.pop(d.draw.choice(d.names)) and None,
    "a name twice": doubled,
    "not finite": not_finite,
    "tokens": other_tokens,
    "messages": other_messages,
    "made of": lambda d: d.record["made_of"].update(
        {d.draw.choice(["weights", "tokenizer", "recipe", "adapter", "precision"]): "other"}
    ),
    "class": lambda d: d.metadata.update(
        {f"1.{d.draw.randrange(3)}": d.draw.choice(["QuantizedKVCache", "CacheList", "", "exec"])}
    ),
    "offset": lambda d: d.number("1.2", d.draw.choice([-1, 0, 1, N - 1, N + 1, 2**31 - 1])),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_one_line(damage, file, session, other, tmp_path):
    content, path = file.read_bytes(), tmp_path / "damaged.safetensors"
    other.reset()
    for seed in range(10):
        d = Damaged(content, random.Random(f"{damage} {seed}"))
        given = DAMAGES[damage](d)
        path.write_bytes(d.bytes() if given is None else given)
        assert refusal(other.load_cache, path).startswith(f"{path}: "), seed
        assert other.position == 0
    other.load_cache(file)


def test_numbers_that_half_precision_lacks(tiny_bundle, file, tmp_path):
    half = Session(tiny_bundle("gemma3_text", **RECIPE)[1], "fp16", "mil")
    d = Damaged(file.read_bytes(), random.Random(0))
    d.data[0:4] = np.float32(1e30).tobytes()
    d.record["made_of"] = {}
    path = tmp_path / "large.safetensors"
    path.write_bytes(d.bytes())
    assert "not finite in float16" in refusal(half.load_cache, path)


def test_a_file_by_others_needs_its_tokens(other, file, tmp_path):
    d, path = Damaged(file.read_bytes(), random.Random(0)), tmp_path / "theirs.safetensors"
    assert "other tokens" in refusal(other.load_cache, file, IDS[1:])
    d.record = {}
    path.write_bytes(d.bytes())
    assert "session.load_cache(file, tokens=[...])" in refusal(other.load_cache, path)
    assert "holds 21 tokens, and 5 were given" in refusal(other.load_cache, path, IDS[:5])
    other.load_cache(path, IDS[:N])
    assert other.position == N


def test_messages_are_kept(session, other, file):
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "\u00e9\n"}]
    assert other.load_cache(file) == []
    for form in ("mlx", "mlx-swift"):
        session.save_cache(file, form, said)
        assert other.load_cache(file) == said
    before = file.read_bytes()
    for wrong in ({"role": "user", "content": ["Hi"]}, {"role": "user"}):
        assert "two texts" in refusal(session.save_cache, file, "mlx", [wrong])
    assert file.read_bytes() == before


def test_llama_cpps_own_is_named(other, file):
    file.write_bytes((0x67677371).to_bytes(4, "little") + bytes(60))
    assert "llama_cache.read_sequence" in refusal(other.load_cache, file)


def test_longer_than_the_context(tiny_bundle, file):
    short = Session(tiny_bundle("gemma3_text", **RECIPE | {"context": 16})[1], "fp32", "mil")
    assert "of 21 tokens, and the context is 16" in refusal(short.load_cache, file)


def test_killed_at_any_moment_the_file_is_whole(session, tmp_path):
    path, caches = tmp_path / "cache.safetensors", []
    for n in (N, N - 1):
        session.rewind(n)
        caches.append(session.prompt_cache())
    manifest, made = session.bundle.manifest, caches[0].made_of
    write_cache(path, caches[0], "mlx")  # a busy machine may kill every child before it writes
    for kill in range(25):
        child = os.fork()
        if not child:
            while True:
                for cache in caches:
                    write_cache(path, cache, "mlx")
        time.sleep(random.Random(kill).uniform(0.001, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert read_cache(path, manifest, made).position in (N, N - 1)
    session.prefill(IDS[N - 1 : N])
