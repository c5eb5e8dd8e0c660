"""Sound model files, and what a disk, a download or an attacker makes of them."""

from collections.abc import Callable
import json
from pathlib import Path
from random import Random
import shutil

from _tiny_gguf import chatml_metadata, write_gguf
from _tiny_weights import LLAMA3, build, save_folder, tiny_config
from ane_book.weights.tokenizer import byte_level
from gguf import GGMLQuantizationType as Type
import numpy as np

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
SIZES = [0, 1, 3, 31, 2**15, 2**20, 2**30, 2**31, 2**32 - 1, 10**9, 10**12, 2**62, 2**63, 2**64 - 1]
VALUES = [
    *SIZES, -1, 0.5, 1e308, float("nan"), float("inf"), True, None, "", "x", "7", "\ud800", [], {},
    [1], {"a": 1}, [[[[]]]], "x" * 5000,
]  # fmt: skip
NAMES = ["../x", "..", ".", "", "/etc/passwd", "/dev/zero", "pipe", "a\0b", "x" * 5000, 7, None,
         "sub", "sub/../x.safetensors", "config.json"]  # fmt: skip
ENTRIES = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "expert_count",
    "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.value_length", "attention.layer_norm_rms_epsilon", "attention.sliding_window",
    "rope.freq_base", "rope.dimension_count", "rope.scaling.type", "rope.scaling.factor",
)  # fmt: skip


def make(folder: Path) -> None:
    """One GGUF of each kind of rotary embedding, two folders of safetensors."""
    text = chatml_metadata()
    write_gguf(folder / "llama.gguf", build(tiny_config("llama")), Type.Q8_0, text)
    yarn = {"type": "yarn", "factor": 4.0, "original_context_length": 32}
    yarn = {f"qwen3.rope.scaling.{key}": value for key, value in yarn.items()}
    write_gguf(folder / "qwen3.gguf", build(tiny_config("qwen3")), metadata=text | yarn)
    long = {f"rope_factors_{n}.weight": np.ones(6) for n in ("short", "long")}
    write_gguf(folder / "phi3.gguf", build(tiny_config("phi3")), metadata=text, extra=long)
    freqs = {"rope_freqs.weight": np.ones(16)}
    write_gguf(folder / "llama3.gguf", build(tiny_config("llama")), metadata=text, extra=freqs)
    one = build(tiny_config("llama", rope_scaling=LLAMA3))
    several = build(tiny_config("qwen3", rope_scaling=YARN))
    for model, name, limit in ((one, "one", "1GB"), (several, "several", "100KB")):
        path = save_folder(folder / name, model, max_shard_size=limit)
        (path / "tokenizer.json").write_text(byte_level(257).json)
        (path / "generation_config.json").write_text('{"eos_token_id": [7, 8], "bos_token_id": 1}')
        settings = {
            "bos_token": {"content": "!"},
            "eos_token": "<|endoftext|>",
            "chat_template": "",
        }
        (path / "tokenizer_config.json").write_text(json.dumps(settings))


def damage(source: Path, case: Path, rng: Random) -> str:
    """Copy a sound model and damage it; says how."""
    if source.is_file():
        kinds: dict[str, Callable] = {"bytes": _bytes, "number": _number, "cut": _cut,
                                      "moved": _moved, "entry": _entry}  # fmt: skip
        name = rng.choice([*kinds, "bytes", "number"])
        content = bytearray(source.read_bytes())
        case.write_bytes(kinds[name](content, rng, content.index(b"output_norm.weight") + 60))
        return name
    shutil.copytree(source, case)
    kind = rng.choice(["config", "config", "header", "header", "index", "settings", "text", "cut"])
    if kind in ("config", "settings"):
        names = {"config": ["config.json"], "settings": ["tokenizer_config.json",
                 "generation_config.json"]}[kind]  # fmt: skip
        _field(case / rng.choice(names), rng)
    elif kind == "header":
        path = rng.choice(sorted(case.glob("*.safetensors")))
        path.write_bytes(_header(path.read_bytes(), rng))
    elif kind == "index":
        _index(case, rng)
    else:
        path = rng.choice(
            sorted(p for p in case.iterdir() if p.suffix in (".json", ".safetensors"))
        )
        content = bytearray(path.read_bytes())
        change = _bytes if kind == "text" else _cut
        path.write_bytes(change(content, rng, min(len(content), 3000)))
    return kind


def _bytes(content: bytearray, rng: Random, header: int) -> bytes:
    for _ in range(rng.choice([1, 1, 2, 8])):
        content[rng.randrange(header)] = rng.randrange(256)
    return content


def _number(content: bytearray, rng: Random, header: int) -> bytes:
    """A length, a count, an offset or what else lies there."""
    at, size = 4 * rng.randrange(header // 4), rng.choice([4, 8])
    at = rng.choice([8, 16, at, at, at + rng.randrange(4)])
    content[at : at + size] = (rng.choice(SIZES) % 2 ** (8 * size)).to_bytes(size, "little")
    return content


def _cut(content: bytearray, rng: Random, header: int) -> bytes:
    return content[: rng.choice([rng.randrange(header), rng.randrange(len(content)), 0, 1])]


def _moved(content: bytearray, rng: Random, header: int) -> bytes:
    """A piece taken out, doubled, or another's in its place."""
    at, size, to = rng.randrange(header), rng.choice([1, 4, 8, 32, 300]), rng.randrange(header)
    piece = content[at : at + size]
    return {
        "out": content[:at] + content[at + size :],
        "doubled": content[:at] + piece + content[at:],
        "copied": content[:to] + piece + content[to + len(piece) :],
    }[rng.choice(["out", "doubled", "copied"])]


def _entry(content: bytearray, rng: Random, header: int) -> bytes:
    """A metadata number of four bytes; the type before it stays."""
    key = f".{rng.choice(ENTRIES)}".encode()
    at = content.find(key)
    if at < 0:
        return _number(content, rng, header)
    at += len(key) + 4
    content[at : at + 4] = (rng.choice(SIZES) % 2**32).to_bytes(4, "little")
    return content


def _field(path: Path, rng: Random) -> None:
    content = json.loads(path.read_text())
    scaling = content.get("rope_parameters") or content.get("rope_scaling")
    inner = rng.random() < 0.3 and isinstance(scaling, dict)
    chosen = scaling if inner else content
    name = rng.choice(sorted(chosen))
    if rng.random() < 0.15:
        del chosen[name]
    else:
        chosen[name] = rng.choice(VALUES)
    text = json.dumps(content)
    if rng.random() < 0.05:
        text = text.replace("{", '{"deep": ' + "[" * 100_000 + "]" * 100_000 + ", ", 1)
    path.write_text(text)


def _header(content: bytes, rng: Random) -> bytes:
    size = int.from_bytes(content[:8], "little")
    if rng.random() < 0.2:
        return rng.choice(SIZES).to_bytes(8, "little") + content[8:]
    header = json.loads(content[8 : 8 + size])
    name = rng.choice([name for name in header if name != "__metadata__"])
    field = rng.choice(["dtype", "shape", "data_offsets", "name"])
    if field == "name":
        header[rng.choice(["x", "", "lm_head.weight"])] = header.pop(name)
    elif field == "dtype":
        header[name]["dtype"] = rng.choice(
            ["F64", "I8", "BF16", "F16", "BOOL", "F4", "U64", *VALUES]
        )
    else:
        place = rng.randrange(len(header[name][field]))
        header[name][field][place] = rng.choice(VALUES)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def _index(case: Path, rng: Random) -> None:
    weights = sorted(path.name for path in case.glob("*.safetensors"))
    (case / "sub").mkdir()
    names = dict.fromkeys(["model.norm.weight", "model.embed_tokens.weight"], rng.choice(weights))
    names["model.norm.weight"] = rng.choice(NAMES)
    index = case / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": rng.choice([names, names, names, *VALUES])}))
