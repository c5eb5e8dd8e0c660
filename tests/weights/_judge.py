"""Opens model files in a process with a limit of memory, and says what came of each.

A file that opens has to give what an independent reader finds in it. Whatever else escapes than one
of this library's errors is a finding; so is an error of more than one line, or of endless length.

    python _judge.py        then paths on standard input; a line of JSON for each
"""

import json
from pathlib import Path
import resource
import sys
import time
import traceback

from _gguf_names import gguf_name, permute
from ane_book.errors import AneBookError
from ane_book.models import read_config
from ane_book.weights import open_source
import gguf
from gguf.quants import dequantize
import numpy as np
import torch  # noqa: F401 - `safetensors` would import it when the limit holds

MEMORY = 1 << 29  # bytes beyond what the process has once everything is imported

FIELDS = {
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "max_position_embeddings": "max_position",
    **{name: name for name in ("hidden_size", "intermediate_size", "vocab_size", "rms_norm_eps")},
}


def independent_gguf(path: Path) -> dict[str, np.ndarray]:
    """Tensor by GGUF name, by the reader of the package `gguf`."""
    tensors = gguf.GGUFReader(path).tensors
    shapes = {tensor.name: tuple(reversed(tensor.shape.tolist())) for tensor in tensors}
    return {t.name: dequantize(t.data, t.tensor_type).reshape(shapes[t.name]) for t in tensors}


def independent_safetensors(folder: Path) -> dict[str, np.ndarray]:
    """Tensor by name, by the text of the format: a length, JSON, bytes."""
    found = {}
    for path in folder.glob("*.safetensors"):
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            dtype = {"F32": "<f4", "F16": "<f2"}[entry["dtype"]]
            data = np.frombuffer(content[8 + size + first : 8 + size + last], dtype)
            found[name] = data.reshape(entry["shape"]).astype(np.float32)
    return found


def check(path: Path) -> None:
    """Raises AssertionError where a source says other than the file."""
    source = open_source(path)
    config, stated = read_config(source.config()), source.config()
    if path.is_dir():
        expected = independent_safetensors(path)
        stated = json.loads((path / "config.json").read_text())
    else:
        expected = independent_gguf(path)
    for theirs, ours in FIELDS.items():
        assert float(stated[theirs]) == float(getattr(config, ours)), theirs
    family, heads = config.architecture, {"q": config.num_heads, "k": config.num_kv_heads}
    for name in source.names():
        found, there = source.tensor(name), name
        if not path.is_dir():
            there = gguf_name(name, family, config.num_layers)
            if family in ("llama", "mistral") and name.split(".")[-2] in ("q_proj", "k_proj"):
                found = permute(found, heads[name.split(".")[-2][0]])
        np.testing.assert_array_equal(found, expected[there], err_msg=name)
    source.fingerprint()
    source.tokenizer()


def judge(path: Path) -> dict:
    """The outcome of one file: "ran", the name of an error, or "finding"; with seconds."""
    started = time.perf_counter()
    try:
        check(path)
        outcome, message = "ran", ""
    except AneBookError as error:
        outcome, message = type(error).__name__, str(error)
        if str(path) not in message or "\n" in message or len(message) > 2010:
            outcome, message = "finding", f"no clean error: {message[:3000]}"
    except BaseException as error:  # a panic of Rust is no Exception
        outcome = "finding"
        message = "".join(traceback.format_exception(error))[-3000:]
    seconds = round(time.perf_counter() - started, 3)
    return {"outcome": outcome, "message": message, "seconds": seconds}


def main() -> None:
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)  # of its children each sets a limit itself
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, most))
    for line in sys.stdin:
        print(json.dumps(judge(Path(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
