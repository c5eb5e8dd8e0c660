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
from _tiny import BY_TYPE, MINISTRAL3, prompt, tiny_model, write_checkpoint
from _tiny_gguf import write_gguf
import ane_book
from ane_book.errors import InvalidInput
from ane_book.runtime import Session
from ane_serve import llama_cache
from ane_serve.llama_cache import FORMS, read_sequence, write_sequence
import gguf
import numpy as np
import pytest

#: What llama.cpp wrote after `prompt(5)` of tiny models, by `_llama_peer.py` and llama-cpp-python
#: 0.3.36: family, whether values are transposed -> the file.
WRITTEN = {
    ("llama", False): (
        "cXNnZwMAAAAFAAAAiQAAALQAAAAMAAAAAgAAAIgAAAABAAAABQAAAAAAAAABAAAAAAAAAAEAAAABAAAAAAAAAAIA"
        "AAABAAAAAAAAAAMAAAABAAAAAAAAAAQAAAABAAAAAAAAAAAAAAACAAAAAQAAACAAAAAAAAAA5TLCO4G6XbruNn46"
        "MrUotTg1C7UjrzI0XCWmMD04mC4JLDA5pjqtrwu3/rqdrq+vUbbxpGIzr7qcG+s6kbEmr4G8QbYUuBO6ujC3oR04"
        "NThxMGcuASzApqM5fLiwNPCu2TmKPfMd2znNtGo4YLuIM2S5pLO+NSe4+rcrtxyoYTKesQoxHjRYOxc39a4+tEk2"
        "4rE8ufQ5+irjsguXTbO0tQEAAAAgAAAAAAAAAG43CLbNMgq0BDZyOby4NTjTtCutn7hINss5/rY0t4+3Ibqysbs5"
        "Djd7tkq46bgxNz4xM7V2vAyu9THFM4G0N74MLi+zErUnora4mzGwuYg6uKdjMLsaFSl+N2q4e6zZNuM4kbYeuIW0"
        "AjYftbG0tTSAs165eTGYrhUKmbT0sUs3wLjYOCS4M5xnrOYtjLhxObQphbYBLZS2vje9KLS2nTgBAAAAIAAAAAAA"
        "AACzM1q5uagvqLK4i6xGMtKtLLCHufayarkVNv60ErpVskM0RjbJNueyji6IItC0Abn0N2UwADRzM3oy9bT0OKc4"
        "07dUOCI4QrgCIIy6HboFtmm2Fa6lM2i0qbQntcW1jC+otP+uIbo3tzE7KDEEMYqwpTSPM8A2U7gWuXs6LTW4uES5"
        "cLXFOJs1+rtjOBkyETf+uye8E7W/t9g3PLUZuvu3AQAAACAAAAAAAAAALrrDrQKxdS6JvFo6zLY8Gz47+qwAuUq1"
        "MbtjmYq4PLTpqb01TjXHtge4hTQ7tpS7rTPetOAt/zcLs1yw87jks7QyJDr/sPC6ATjhqg43Q7IOsCG5bTKzpGCy"
        "jzPWuUSwF7W+PDW0e7PotFm6HjblOfA0w7WOq9G3g7Z4L/A5CTQosvs3lCzuI2+8r7KbOEIegjQ4MBWxGbQJs0M0"
        "57pZOA=="
    ),
    ("gemma3_text", True): (
        "cXNnZwMAAAAFAAAAiQAAALQAAAAMAAAAAgAAAIgAAAABAAAABQAAAAAAAAABAAAAAAAAAAEAAAABAAAAAAAAAAIA"
        "AAABAAAAAAAAAAMAAAABAAAAAAAAAAQAAAABAAAAAAAAAAEAAAABAAAAAQAAABAAAAAAAAAAKJ4kPua5ZrQgt6I3"
        "HDr3uuW6SDhatAY4PLkIPWe6L7AsK1g03y5JOIW9vzjyuVm8vy4hOXO+RjIVuWGrU7ARtCo31zjqtLw84TbyNHC8"
        "prwBAAAAAgAAAAgAAABtuZ45/zmjO/M2SzEMtQ4wpbtYsF22lLATs/2pEzofOES8ybncuFU2dDHVOXE5mjaoKV4q"
        "mjN4OO0677TOJf2zDqmIrDQ4dzGvMW6txbBdOAEAAAADAAAAAgAAAAEAAAAAAAAAAwAAAAEAAAAAAAAABAAAAAEA"
        "AAAAAAAAAQAAAAIAAAABAAAAEAAAAAAAAABfIz62BL1XvWS98KKBs2y8HLfjvZQ0UrQzPok8tbYWPGw8XzngPW88"
        "LLw8tOC0ZzgBAAAAEAAAAAAAAAAtumxBJbA0OqQpeK1QvJ+48bXXvq+4CT04MRq+f73WuA64CLkmQTo0Ny/TuK20"
        "N7wBAAAAAgAAAAgAAAD5uJ20izXwNQa6JLoON6y6ErkaqF6lPTess8c4o64aNnO49Lfeq7GxJDlUNHmu4DQBAAAA"
        "AgAAAAgAAADRM4Q0n7WfsUW1/ST9MkI2xTb2vEq8P7BhLAqyg6HENkeytDm9uO+2frkzNcY4NDg="
    ),
}

#: Heads of 8, and a window that 5 tokens cross, so that the files are small.
SMALL = {
    "llama": (("head_dim", 8), ("num_hidden_layers", 2)),
    "gemma3_text": (("head_dim", 8), ("query_pre_attn_scalar", 8), ("sliding_window", 3)),
}
LENGTHS = (1, 63, 64, 65, 500)
NEW = 64
ROUNDING = {"f16": 1e-3, "q8_0": 2e-2}  # of the largest number
#: Of what layers make of those before them; flash attention of llama.cpp sums in half precision.
ADDED_UP = {"f32": 5e-3, "f16": 5e-3, "q8_0": 5e-2}


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
        (session("gemma3_text").prompt_cache(), manifest, {}, "the cache is not one of"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match=message):
            write_sequence(cache, file, given, **how)
    with pytest.raises(InvalidInput, match="name another file"):
        write_sequence(own, tmp_path / "none" / "a.bin", manifest)
    assert file.read_bytes() == b"before" and [*tmp_path.iterdir()] == [file]
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InvalidInput, match="pipe: not a file"):
        write_sequence(own, pipe, manifest)
    link.symlink_to(file)
    write_sequence(own, link, manifest)
    assert pipe.is_fifo() and link.is_symlink() and read_sequence(file, manifest).tokens


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
        f"{family}.attention.key_length": D,
        f"{family}.attention.value_length": D,
    }
    if config.model_type == "phi3":
        entries["phi3.rope.dimension_count"] = 3 * D // 4
    kinds = getattr(config, "layer_types", None) or []
    if "sliding_attention" in kinds:
        sliding = [kind == "sliding_attention" for kind in kinds]
        entries[f"{family}.attention.sliding_window_pattern"] = sliding
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


def changes_of(family: str) -> dict:
    """What 564 tokens need, and llama.cpp, which has some things in one way alone: EXAONE 4's
    windows in models of 64 layers, none of Mistral's, SmolLM3's angles in three of four layers."""
    plain = {"rope_theta": 10000.0, "rope_type": "default"}
    own = {
        "exaone4": {"layer_types": ["full_attention"] * 3, "sliding_window": None, "head_dim": 16},
        "gemma3_text": {"query_pre_attn_scalar": 24},
        "ministral3": {
            "rope_parameters": MINISTRAL3 | {"original_max_position_embeddings": 640},
            "max_position_embeddings": 2560,
        },
        "mistral": {"sliding_window": None},
        "olmo3": {"rope_parameters": dict.fromkeys(BY_TYPE, plain)},
        "qwen3_moe": {"mlp_only_layers": [], "norm_topk_prob": True},
        "smollm3": {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]},
    }
    return {"max_position_embeddings": 640} | own.get(family, {})


def test_all_forms_are_tried():
    assert {*FAMILIES} == {*FORMS}


@pytest.fixture
def both(peer, tmp_path):
    def make(family: str, changes: dict | None = None, **how) -> Both:
        model = tiny_model(family, **changes_of(family) | (changes or {}))
        folder = write_checkpoint(model, tmp_path / "model")
        recipe = {"context": 640, "prefill": 64, "kv": "host"}
        bundle = ane_book.convert(str(folder), out=tmp_path / "bundle", **recipe)
        file = gguf_of(model, tmp_path / "m.gguf")
        return Both(Session(bundle, precision="fp32"), peer, file, tmp_path, **how)

    return make


def goes_both_ways(one: Both, prompts: list[list[int]]) -> float:
    """Hold 64 tokens of ours, llama.cpp's, and of each after the other's file to one another; the
    largest difference of logits, as a part of their reach."""
    one.read(prompts)
    goes, far = one.llama_goes_on(one.ours), []
    for i, ids in enumerate(prompts):
        (tokens, logits), (own, own_logits) = one.said[i], one.own[i]
        close(read_sequence(one.theirs[i], one.manifest), one.caches[i], 1e-3)
        assert own == tokens, len(ids)
        assert goes[i]["tokens"] == tokens[1:], len(ids)
        ours, our_logits = one.we_go_on(one.theirs[i], tokens[0])
        assert ours == tokens[1:], len(ids)
        far += [
            farthest(own_logits, logits),
            farthest(np.load(goes[i]["logits"]), logits[1:]),
            farthest(our_logits, logits[1:]),
        ]
    print("largest difference of logits, as a part of their reach:", max(far))
    return max(far)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_each_goes_on_from_the_other(both, family):
    assert goes_both_ways(both(family), [prompt(n) for n in LENGTHS]) < 1e-3


@pytest.mark.long
def test_smollm2(peer, tmp_path):
    from _common import bundle, reference_model

    session = Session(bundle(kv="host"), precision="fp32")
    file = gguf_of(reference_model(), tmp_path / "m.gguf")
    ids = session.encode("Why is the sky blue, and why is it red in the evening? " * 5)
    assert goes_both_ways(Both(session, peer, file, tmp_path), [ids[:1], ids[:65]]) < 1e-3


@pytest.mark.long
@pytest.mark.parametrize("kv", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_forms_of_the_cache(both, family, kv, flash):
    if kv == "q8_0" and not flash:
        pytest.skip("llama.cpp has no 8-bit values without flash attention")
    heads = {"head_dim": 64} | ({"query_pre_attn_scalar": 64} if "gemma" in family else {})
    one = both(family, heads, kv=kv, flash=flash, streams=3 if kv == "f16" else 1)
    one.read([prompt(n) for n in (65, 300)])
    least = ADDED_UP[kv]
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
