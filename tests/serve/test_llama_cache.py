"""llama.cpp's file of a sequence: files that it wrote, hostile ones, and llama.cpp itself."""

import base64
from dataclasses import replace
from importlib.util import find_spec
import json
import os
from pathlib import Path
import random
import struct
import subprocess
import sys
import tracemalloc

from _gguf_names import ARCHITECTURES
from _tiny import prompt
from _tiny_gguf import write_gguf
from ane_book.errors import InvalidInput
from ane_book.runtime import Session
from ane_serve import llama_cache
from ane_serve.llama_cache import FORMS, read_sequence, write_sequence
import gguf
import numpy as np
import pytest

#: What llama.cpp wrote after `prompt(5)` of tiny models, by `_llama_peer.py` and llama-cpp-python
#: 0.3.36: family, whether values are transposed -> the file.
WRITTEN: dict[tuple[str, bool], str] = {}

#: Heads of 8, and a window that 5 tokens cross, so that the files are small.
SMALL = {
    "llama": (("head_dim", 8), ("num_hidden_layers", 2)),
    "gemma3_text": (("head_dim", 8), ("sliding_window", 3)),
}
LENGTHS = (1, 63, 64, 65, 500)
NEW = 64
ROUNDING = {"f32": 1e-5, "f16": 1e-3, "q8_0": 2e-2}  # of the largest number


@pytest.fixture(scope="module")
def session(tiny_bundle):
    """`session(family)` -> a session in single precision that has read `prompt(5)`."""
    made = {}

    def make(family: str) -> Session:
        if family not in made:
            made[family] = Session(tiny_bundle(family, SMALL[family])[1], precision="fp32")
            made[family].prefill(prompt(5))
        return made[family]

    return make


def arrays(cache):
    return [(name, each.arrays[name]) for each in cache.layers for name in sorted(each.arrays)]


def close(found, expected, least: float) -> None:
    """Two caches hold the same within a part of the largest number of each array."""
    assert found.tokens == expected.tokens and found.position == expected.position
    assert [each.window for each in found.layers] == [each.window for each in expected.layers]
    for (name, one), (other_name, other) in zip(arrays(found), arrays(expected), strict=True):
        assert name == other_name and one.shape == other.shape
        np.testing.assert_allclose(one, other, atol=least * np.abs(other).max(), rtol=0)


@pytest.mark.parametrize(("family", "transposed"), WRITTEN)
def test_a_file_of_llama_cpp_holds_what_a_session_does(session, tmp_path, family, transposed):
    file, data = tmp_path / "own.bin", base64.b64decode(WRITTEN[family, transposed])
    file.write_bytes(data)
    own, manifest = session(family).prompt_cache(), session(family).bundle.manifest
    read = read_sequence(file, manifest)
    close(read, own, ROUNDING["f16"])
    again = tmp_path / "again.bin"
    write_sequence(replace(read, made_of=own.made_of), again, manifest, v_transposed=transposed)
    assert again.read_bytes() == data
    assert again.stat().st_mode & 0o777 == 0o600


WAYS = [("f32", False, 1), ("f32", True, 2), ("f16", False, 4), ("f16", True, 1)]


@pytest.mark.parametrize(("kv_type", "transposed", "streams"), WAYS)
@pytest.mark.parametrize("family", SMALL)
def test_what_is_written_is_read(session, tmp_path, family, kv_type, transposed, streams):
    own, manifest = session(family).prompt_cache(), session(family).bundle.manifest
    how = {"kv_type": kv_type, "v_transposed": transposed, "streams": streams}
    write_sequence(own, tmp_path / "a.bin", manifest, **how)
    close(read_sequence(tmp_path / "a.bin", manifest), own, 0 if kv_type == "f32" else 5e-4)


@pytest.mark.parametrize("D", [32, 64, 96, 192])
def test_eight_bits(tiny_bundle, tmp_path, D):
    changes = (("head_dim", D), ("num_hidden_layers", 1))
    session = Session(tiny_bundle("llama", changes)[1], precision="fp32")
    session.prefill(prompt(9))
    own, manifest = session.prompt_cache(), session.bundle.manifest
    write_sequence(own, tmp_path / "a.bin", manifest, kv_type="q8_0")
    close(read_sequence(tmp_path / "a.bin", manifest), own, ROUNDING["q8_0"])


def test_tokens_as_the_server_has_them(session, tmp_path):
    own, manifest = session("llama").prompt_cache(), session("llama").bundle.manifest
    file = tmp_path / "a.bin"
    write_sequence(own, file, manifest, kv_type="f32")
    data, tokens = file.read_bytes(), struct.pack("<5i", *own.tokens)
    assert data[8:32] == struct.pack("<I", 5) + tokens

    def packed(*numbers: int, media: int = 0) -> None:
        ids = struct.pack(f"<{len(numbers)}i", *numbers) + tokens + struct.pack("<i", media)
        file.write_bytes(data[:8] + struct.pack("<I", len(ids) // 4) + ids + data[32:])

    packed(-1, 1, 5)
    close(read_sequence(file, manifest), own, 0)
    for numbers, media in (((-1, 2, 5), 0), ((-1, 1, 6), 0), ((-1, 1), 0), ((-1, 1, 5), 1)):
        packed(*numbers, media=media)
        with pytest.raises(InvalidInput, match="tokens of another form, or with images or sound"):
            read_sequence(file, manifest)


#: Where a number of the file is, of what kind it is, what is put there, and what is said of it.
#: The tiny llama after 5 tokens in f32: header 12, tokens 20, streams, cells, 5 x 12 of cells.
LIES = [
    (0, "<I", 0x6767736E, "begins with 0x6767736e, and llama.cpp's sequences with 0x67677371"),
    (4, "<I", 2, "version 2 of llama.cpp's sequences, and 3, that of llama-cpp-python 0.3.36, is"),
    (8, "<I", 2**32 - 1, "cut short: tokens: 17,179,869,180 bytes"),
    (8, "<I", 0, "no tokens"),
    (12, "<i", -7, "a token below 0"),
    (32, "<I", 0, "0 streams"),
    (32, "<I", 2**32 - 1, "4,294,967,295 streams"),
    (36, "<I", 2**32 - 1, "4,294,967,295 cells, and this model has 5 after 5 tokens"),
    (36, "<I", 4, "4 cells, and this model has 5"),
    (36, "<I", 0, "cells in 0 streams"),
    (40, "<i", 1, "its cells are not those of positions 0 to 4"),
    (40, "<i", -(2**31), "its cells are not those"),
    (44, "<I", 2, "its cells are not those"),
    (100, "<I", 2, "values transposed: 2"),
    (104, "<I", 2**31, "layers of a part: 2,147,483,648, and this model has 2"),
    (108, "<i", 30, "layer 0: keys are of type bf16"),
    (108, "<i", 8, "layer 0: keys are of type q8_0"),
    (108, "<i", -5, "layer 0: keys are of type -5"),
    (112, "<Q", 2**64 - 1, "layer 0: keys: bytes of a row: 18,446,744,073,709,551,615"),
    (120, "<f", float("nan"), "layer 0: keys are not finite"),
    (120, "<f", float("inf"), "layer 0: keys are not finite"),
]


@pytest.mark.parametrize(("place", "kind", "value", "message"), LIES)
def test_lies_of_a_file_are_named_before_memory_is_taken(
    session, tmp_path, place, kind, value, message
):
    own, manifest, file = (
        session("llama").prompt_cache(), session("llama").bundle.manifest, tmp_path / "a.bin"
    )  # fmt: skip
    write_sequence(own, file, manifest, kv_type="f32")
    data = bytearray(file.read_bytes())
    struct.pack_into(kind, data, place, value)
    file.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput) as error:
            read_sequence(file, manifest)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert str(error.value).startswith(f"{file}: {message}") and "\n" not in str(error.value)


def test_damaged_files(session, tmp_path):
    """Cut anywhere, or too long, or of changed bytes: one error, or finite numbers."""
    own, manifest = session("gemma3_text").prompt_cache(), session("gemma3_text").bundle.manifest
    file, chance = tmp_path / "a.bin", random.Random(0)
    write_sequence(own, file, manifest)
    data = file.read_bytes()
    for _ in range(200):
        file.write_bytes(data[: chance.randrange(len(data))])
        with pytest.raises(InvalidInput):
            read_sequence(file, manifest)
        changed = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            changed[chance.randrange(len(data))] = chance.randrange(256)
        file.write_bytes(changed)
        try:
            read = read_sequence(file, manifest)
        except InvalidInput as error:
            assert "\n" not in str(error)
        else:
            assert all(np.isfinite(array).all() for _, array in arrays(read))
    file.write_bytes(data + b"\0")
    with pytest.raises(InvalidInput, match="1 bytes more than this model's layers have"):
        read_sequence(file, manifest)
    for bad in (tmp_path, tmp_path / "none"):
        with pytest.raises(InvalidInput, match="not a file"):
            read_sequence(bad, manifest)


def test_a_file_of_another_model_is_refused(session, tmp_path):
    own, file = session("llama").prompt_cache(), tmp_path / "a.bin"
    write_sequence(own, file, session("llama").bundle.manifest)
    with pytest.raises(InvalidInput, match="layers of a part: 2, and this model has 1"):
        read_sequence(file, session("gemma3_text").bundle.manifest)


def test_refusals_of_writing(session, tmp_path):
    own, manifest, file = (
        session("llama").prompt_cache(), session("llama").bundle.manifest, tmp_path / "a.bin"
    )  # fmt: skip
    file.write_bytes(b"before")
    last = own.layers[-1]
    huge = {"keys": last.arrays["keys"], "values": last.arrays["values"] * np.float32(1e6)}
    large = replace(own, layers=[*own.layers[:-1], replace(last, arrays=huge)])
    hybrid = manifest.model_copy(update={"model": manifest.model | {"architecture": "lfm2"}})
    windowed = session("gemma3_text").bundle.manifest
    mistral = windowed.model_copy(update={"model": windowed.model | {"architecture": "mistral"}})
    for cache, given, how, message in (
        (own, manifest, {"kv_type": "q4_0"}, "kv_type='q4_0': keys and values can be f32, f16 or"),
        (own, manifest, {"kv_type": "q8_0", "v_transposed": True}, "q8_0 values cannot be transp"),
        (own, manifest, {"kv_type": "q8_0"}, "layer 0: keys of heads of 8: .* multiples of 32"),
        (own, manifest, {"streams": 0}, "streams=0: there are from 1 to 256"),
        (large, manifest, {}, "layer 1: values are not finite in f16"),
        (own, hybrid, {}, "caches of 'lfm2' are not written or read as llama.cpp has them"),
        (session("gemma3_text").prompt_cache(), mistral, {},
         "5 tokens, of which layers attend to the last 3: those of llama.cpp's llama"),
        (session("gemma3_text").prompt_cache(), manifest, {}, "3 layers have a cache, and here 2"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match=message):
            write_sequence(cache, file, given, **how)
    with pytest.raises(InvalidInput, match="name another file"):
        write_sequence(own, tmp_path / "none" / "a.bin", manifest)
    assert file.read_bytes() == b"before" and [*tmp_path.iterdir()] == [file]


# --- llama.cpp itself


@pytest.fixture(scope="module")
def peer(tmp_path_factory):
    """`peer(gguf, jobs, ...)` -> what llama.cpp did of the jobs of `_llama_peer.py`."""
    own = sys.executable if find_spec("llama_cpp") else ""
    python = os.environ.get("ANE_BOOK_LLAMA_PYTHON", own)
    if not python:
        pytest.skip(
            "no llama.cpp: pip install llama-cpp-python==0.3.36, or name a Python that has it in "
            "ANE_BOOK_LLAMA_PYTHON"
        )

    def run(file, jobs, kv="f32", flash=False, streams=1, context=640) -> list[dict]:
        how = {"context": context, "kv": kv, "flash": flash, "streams": streams, "jobs": jobs}
        how["logits"] = str(tmp_path_factory.mktemp("logits"))
        command = [python, Path(__file__).with_name("_llama_peer.py"), file]
        done = subprocess.run(command, input=json.dumps(how), capture_output=True, text=True)
        assert not done.returncode, done.stderr
        return json.loads(done.stdout)

    return run


def gguf_of(model, path: Path) -> Path:
    """A model as llama.cpp reads it, in single precision, without a vocabulary."""
    config = model.config
    family = gguf.MODEL_ARCH_NAMES[ARCHITECTURES[config.model_type]]
    D = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    entries = {
        "tokenizer.ggml.model": "none",
        f"{family}.vocab_size": config.vocab_size,
        f"{family}.attention.value_length": D,
    }
    return write_gguf(path, model, metadata=entries)


def follow(session: Session, logits: np.ndarray, new: int) -> tuple[list[int], np.ndarray]:
    """The likeliest next tokens, greedily, and the logits of each."""
    found = [logits]
    while len(found) < new:
        found.append(session.decode(int(found[-1].argmax())))
    return [int(each.argmax()) for each in found], np.array(found)


def farthest(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference, as a part of how far the logits reach."""
    return float(np.abs(one - other).max() / np.ptp(other))


class Both:
    """What our session and llama.cpp say after the same tokens, and go on from each other's."""

    def __init__(self, session: Session, peer, file: Path, folder: Path, **how):
        self.session, self.peer, self.file, self.folder = session, peer, file, folder
        self.how = {"kv": "f32", "flash": False, "streams": 1} | how
        self.manifest = session.bundle.manifest

    def read(self, ids: list[list[int]]) -> None:
        """Both read prompts and write their files."""
        self.theirs = [self.folder / f"theirs-{i}.bin" for i in range(len(ids))]
        self.ours = [self.folder / f"ours-{i}.bin" for i in range(len(ids))]
        jobs = [
            {"tokens": tokens, "save": str(file), "new": NEW}
            for tokens, file in zip(ids, self.theirs, strict=True)
        ]
        self.said = [
            (done["tokens"], np.load(done["logits"]))
            for done in self.peer(self.file, jobs, **self.how)
        ]
        self.own, self.caches = [], []
        for tokens, file in zip(ids, self.ours, strict=True):
            self.session.reset()
            logits = self.session.prefill(tokens)
            self.caches.append(self.session.prompt_cache())
            write_sequence(
                self.caches[-1], file, self.manifest, kv_type=self.how["kv"],
                v_transposed=not self.how["flash"], streams=self.how["streams"],
            )  # fmt: skip
            self.own.append(follow(self.session, logits, NEW))

    def llama_goes_on(self, files: list[Path]) -> list[dict]:
        """From files, after the first token that followed."""
        jobs = [
            {"load": str(file), "tokens": tokens[:1], "new": NEW - 1}
            for file, (tokens, _) in zip(files, self.said, strict=True)
        ]
        return self.peer(self.file, jobs, **self.how)

    def we_go_on(self, file: Path, first: int) -> tuple[list[int], np.ndarray]:
        self.session.continue_from(read_sequence(file, self.manifest))
        return follow(self.session, self.session.decode(first), NEW - 1)


FAMILIES = (
    "exaone4", "gemma3_text", "glm4", "granite", "hunyuan_v1_dense", "llama", "ministral3",
    "mistral", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3",
)  # fmt: skip


def changes_of(family: str) -> tuple:
    """What 564 tokens need, and that llama.cpp runs the model: of mistral it knows no window."""
    changes = {"max_position_embeddings": 640}
    if family == "mistral":
        changes["sliding_window"] = None
    return (*changes.items(),)


def test_all_forms_are_tried():
    assert {*FAMILIES} == {*FORMS}


@pytest.fixture
def both(tiny_bundle, peer, tmp_path):
    def make(family: str, changes: tuple = (), **how) -> Both:
        recipe = {"context": 640, "prefill": 64, "kv": "host"}
        model, bundle = tiny_bundle(family, changes_of(family) + changes, **recipe)
        file = gguf_of(model, tmp_path / "m.gguf")
        return Both(Session(bundle, precision="fp32"), peer, file, tmp_path, **how)

    return make


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_each_goes_on_from_the_other(both, family):
    one = both(family)
    one.read([prompt(n) for n in LENGTHS])
    goes = one.llama_goes_on(one.ours)
    far = []
    for i, n in enumerate(LENGTHS):
        (tokens, logits), (own, own_logits) = one.said[i], one.own[i]
        close(read_sequence(one.theirs[i], one.manifest), one.caches[i], 1e-3)
        assert own == tokens, n
        assert goes[i]["tokens"] == tokens[1:], n
        ours, our_logits = one.we_go_on(one.theirs[i], tokens[0])
        assert ours == tokens[1:], n
        far += [
            farthest(own_logits, logits),
            farthest(np.load(goes[i]["logits"]), logits[1:]),
            farthest(our_logits, logits[1:]),
        ]
    print(family, "largest differences of logits, of their reach:", max(far))
    assert max(far) < 1e-3


@pytest.mark.long
@pytest.mark.parametrize("kv", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_forms_of_the_cache(both, family, kv, flash):
    if kv == "q8_0" and not flash:
        pytest.skip("llama.cpp has no 8-bit values without flash attention")
    one = both(family, (("head_dim", 64),), kv=kv, flash=flash, streams=3 if kv == "f16" else 1)
    one.read([prompt(n) for n in (65, 300)])
    least = ROUNDING[kv]
    for i, went in enumerate(one.llama_goes_on(one.ours)):
        close(read_sequence(one.theirs[i], one.manifest), one.caches[i], least)
        assert farthest(np.load(went["logits"])[0], one.said[i][1][1]) < least
        _, logits = one.we_go_on(one.theirs[i], one.said[i][0][0])
        assert farthest(logits[0], one.own[i][1][1]) < least


@pytest.mark.long
def test_broken_files_change_tokens_or_are_refused(both, monkeypatch):
    one = both("llama")
    one.read([prompt(65)])
    [file], [cache] = one.ours, one.caches
    [theirs], [(tokens, _)] = one.theirs, one.said

    def changed(make) -> list[int]:
        layers = [replace(layer, arrays=make(**layer.arrays)) for layer in cache.layers]
        write_sequence(
            replace(cache, layers=layers), file, one.manifest, kv_type="f32", v_transposed=True
        )
        [went] = one.llama_goes_on([file])
        return went["tokens"]

    def flat(keys, values):
        return {"keys": keys, "values": values.swapaxes(1, 2).reshape(values.shape)}

    assert changed(lambda **same: same) == tokens[1:]
    assert changed(flat) != tokens[1:]
    monkeypatch.setitem(FORMS, "llama", llama_cache.Form("llama", moved=False))
    assert changed(lambda **same: same) != tokens[1:]
    assert one.we_go_on(theirs, tokens[0])[0] != tokens[1:]
    monkeypatch.undo()
    data = bytearray(theirs.read_bytes())
    for cell in range(65):
        struct.pack_into("<i", data, 12 + 4 * 65 + 8 + 12 * cell, cell + 1)
    theirs.write_bytes(data)
    [went] = one.llama_goes_on([theirs])
    assert went.get("tokens") != tokens[1:]
    with pytest.raises(InvalidInput, match="its cells are not those of positions 0 to 64"):
        read_sequence(theirs, one.manifest)
    write_sequence(cache, file, one.manifest, kv_type="f32", v_transposed=False)
    [went] = one.llama_goes_on([file])
    assert "incompatible V transposition" in went["error"]
