"""GGUF, llama.cpp's file format: metadata, a table of tensors, then the tensors, often quantised.

    magic "GGUF", version, number of tensors, number of metadata entries      (little endian)
    metadata    key, type, value; strings are a length and UTF-8, arrays a type, a length and items
    tensors     name, dimensions (fastest first), type, offset from the start of the data
    data        aligned blocks, e.g. Q8_0: 32 weights as one fp16 scale and 32 int8

The package `gguf` knows the formats of quantised blocks and dequantises them. Its reader makes
four numpy views per token and per merge of the tokenizer, which is 200,000 objects and two seconds
here, and it takes the lengths in a file at their word; so the header is read below instead, with
every length checked against the file.

References: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; tensor names as in `gguf`'s
constants.py; the order of rows in q and k as in llama.cpp's convert_hf_to_gguf.py,
`LlamaModel.permute`. Dimensions: C hidden size, H query heads, K key/value heads, D head size.
"""

from copy import deepcopy
from dataclasses import dataclass
import math
from pathlib import Path
import struct

from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.weights import (
    Shape,
    TokenizerFiles,
    WeightSource,
    check_tensors,
    read_config,
    tensor_shapes,
)
from ane_book.weights.tokenizer import from_gguf
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.quants import dequantize
import numpy as np

__all__ = ["GGUFSource"]

ARCHITECTURES = ("llama", "qwen2", "qwen3")

#: GGUF name -> `transformers` name, without the ".weight" or ".bias" that both end in.
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}

#: The same inside a layer: "blk.7." + key -> "model.layers.7." + value.
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k": "self_attn.k_proj",
    "attn_k_norm": "self_attn.k_norm",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

#: Field of `config.json` -> metadata key after the architecture's name, for what has no default.
FIELDS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}

#: Metadata types that are one number, as numpy has them.
SCALARS = {
    kind: np.dtype(kind.name.lower()).newbyteorder("<")
    for kind in GGUFValueType
    if kind not in (GGUFValueType.STRING, GGUFValueType.ARRAY)
}

BLOCKS_AT_ONCE = 8192  # 262,144 weights of Q4 or Q8: the temporaries of dequantising stay near 3 MB


@dataclass(frozen=True)
class _Tensor:
    shape: Shape
    type: GGMLQuantizationType
    start: int  # bytes from the beginning of the file
    size: int  # bytes


class GGUFSource(WeightSource):
    """One `.gguf` file of architecture llama, qwen2 or qwen3."""

    kind = "gguf"

    def __init__(self, path: Path):
        """Reads and checks the header; raises InvalidWeights or UnsupportedModel."""
        self.files = [path]
        self._data = _map(path)
        self._metadata, tensors = _read_header(self._data, path)
        self.architecture = self._metadata.get("general.architecture")
        if self.architecture not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise UnsupportedModel(
                f"{path}: architecture {self.architecture!r} is not supported; supported: {known}"
            )
        _check_types(tensors, path)
        self._rope_freqs = tensors.pop("rope_freqs.weight", None)
        self._tensors = {_rename(name): tensor for name, tensor in tensors.items()}
        self._config = self._read_config()
        decoder = read_config(self._config, str(path))
        self._heads = {"q_proj": decoder.num_heads, "k_proj": decoder.num_kv_heads}
        self._shapes = tensor_shapes(decoder)
        found = {name: tensor.shape for name, tensor in self._tensors.items()}
        check_tensors(found, self._shapes, str(path))

    def names(self) -> list[str]:
        return list(self._shapes)

    def shape(self, name: str) -> Shape:
        return self._find(name).shape

    def tensor(self, name: str) -> np.ndarray:
        array = self._dequantize(self._find(name))
        projection = name.split(".")[-2]
        if self.architecture == "llama" and projection in self._heads:
            return _rows_in_halves(array, self._heads[projection])
        return array

    def config(self) -> dict:
        return deepcopy(self._config)

    def tokenizer(self) -> TokenizerFiles:
        return from_gguf(self._metadata, self._config["vocab_size"], str(self.files[0]))

    def _find(self, name: str) -> _Tensor:
        if name not in self._tensors:
            raise InvalidWeights(f"{self.files[0]}: there is no tensor {name}")
        return self._tensors[name]

    def _dequantize(self, tensor: _Tensor) -> np.ndarray:
        """Block by block: blocks do not know of rows, and long runs of them are fast to decode."""
        weights, size = GGML_QUANT_SIZES[tensor.type]
        blocks = self._data[tensor.start : tensor.start + tensor.size].reshape(-1, size)
        out = np.empty((len(blocks), weights), dtype=np.float32)
        step = max(1, BLOCKS_AT_ONCE * 32 // weights)
        for i in range(0, len(blocks), step):
            part = blocks[i : i + step]
            out[i : i + step] = dequantize(part.reshape(1, -1), tensor.type).reshape(-1, weights)
        return out.reshape(tensor.shape)

    def _get(self, key: str, default=None):
        """A metadata value under the architecture's prefix: a number, or an error that names it."""
        key = f"{self.architecture}.{key}"
        value = self._metadata.get(key, default)
        if isinstance(value, int | float) and math.isfinite(value):
            return value
        if isinstance(value, list):
            raise UnsupportedModel(f"{self.files[0]}: {key} differs between layers: {value[:8]}")
        raise InvalidWeights(f"{self.files[0]}: the metadata has no number {key}")

    def _read_config(self) -> dict:
        """The metadata in the words of a Hugging Face `config.json`."""
        path, tensors = self.files[0], self._tensors
        config = {"model_type": self.architecture, "hidden_act": "silu"}
        config |= {field: self._get(key) for field, key in FIELDS.items()}
        layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
        if not (0 < layers <= len(tensors) and heads > 0):
            raise InvalidWeights(f"{path}: {layers} layers, {heads} heads, {len(tensors)} tensors")
        if "model.embed_tokens.weight" not in tensors:
            raise InvalidWeights(f"{path}: tensor token_embd.weight is missing; get the file again")
        if self._get("expert_count", 0):
            raise UnsupportedModel(f"{path}: a mixture of experts; dense models only")
        head_dim = self._get("attention.key_length", config["hidden_size"] // heads)
        for key in ("attention.value_length", "rope.dimension_count"):
            if self._get(key, head_dim) != head_dim:
                raise UnsupportedModel(f"{path}: {key} is not the head size, {head_dim}")
        config |= {
            "head_dim": head_dim,
            "num_key_value_heads": self._get("attention.head_count_kv", heads),
            "vocab_size": tensors["model.embed_tokens.weight"].shape[0],
            "rope_theta": self._get("rope.freq_base", 10000.0),
            "tie_word_embeddings": "lm_head.weight" not in tensors,
        }
        if self.architecture != "qwen2":  # which always has one, and no field that says so
            config["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in tensors
        return config | {"rope_scaling": self._rope_scaling(config)}

    def _rope_scaling(self, config: dict) -> dict | None:
        if self._rope_freqs is not None:
            return self._llama3_scaling(config)
        kind = self._metadata.get(f"{self.architecture}.rope.scaling.type", "none")
        if kind == "none":
            return None
        if kind == "linear":
            return {"rope_type": "linear", "factor": self._get("rope.scaling.factor")}
        raise UnsupportedModel(
            f"{self.files[0]}: rope.scaling.type {kind!r}; supported: none, linear, Llama 3's"
        )

    def _llama3_scaling(self, config: dict) -> dict:
        """Llama 3.1 and later: the file holds no parameters but their result, a divisor per pair.

        Those models were all made with the same constants but for the factor, which is the largest
        divisor; if these do not give the divisors in the file, the model is another.
        """
        divisors = self._dequantize(self._rope_freqs)  # (D / 2,)
        scaling = {
            "rope_type": "llama3",
            "factor": float(divisors.max(initial=1.0)),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        pairs = np.arange(0, config["head_dim"], 2) / config["head_dim"]
        turns = 8192 / (2 * np.pi * config["rope_theta"] ** pairs)  # in the original context
        kept = np.clip((turns - 1.0) / 3.0, 0.0, 1.0)
        expected = 1.0 / (kept + (1.0 - kept) / scaling["factor"])
        if divisors.shape != expected.shape or not np.allclose(divisors, expected, rtol=1e-3):
            raise UnsupportedModel(f"{self.files[0]}: rope_freqs.weight is not Llama 3's scaling")
        return scaling


def _rename(name: str) -> str:
    """GGUF's name of a tensor to that of `transformers`; one that is not in the tables stays."""
    stem, _, suffix = name.rpartition(".")
    if stem in OUTER:
        return f"{OUTER[stem]}.{suffix}"
    block, _, part = stem.rpartition(".")
    if block.startswith("blk.") and part in LAYER:
        return f"model.layers.{block.removeprefix('blk.')}.{LAYER[part]}.{suffix}"
    return name


def _rows_in_halves(array: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's order of the rows of q and k, (heads * D, C) to the same.

    Its "llama" rotates neighbours (0, 1), (2, 3), ...; `transformers` rotates halves (0, D/2),
    (1, D/2 + 1), ... The GGUF of qwen2 and qwen3 has the rows as they were.
    """
    pairs = array.reshape(heads, -1, 2, *array.shape[1:])  # (heads, D/2, 2, C)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)


def _check_types(tensors: dict[str, _Tensor], path: Path) -> None:
    """Decode a block of zeros of each type: one that `gguf` cannot do fails before the work."""
    for tensor_type, name in {tensor.type: name for name, tensor in tensors.items()}.items():
        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[tensor_type][1]), np.uint8), tensor_type)
        except NotImplementedError:
            raise UnsupportedModel(
                f"{path}: tensor {name} has type {tensor_type.name}, which cannot be dequantised"
            ) from None


def _map(path: Path) -> np.ndarray:
    """The file's bytes, read when they are touched."""
    try:
        return np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
    except (OSError, ValueError) as error:  # ValueError: the file is empty
        raise InvalidWeights(f"{path}: cannot be mapped into memory: {error}") from None


class _Cursor:
    """Reads the header's values one after another, and never past the end of the file."""

    def __init__(self, data: np.ndarray, path: Path):
        self.data, self.path, self.at = memoryview(data), path, 0

    def take(self, count: int) -> memoryview:
        start, self.at = self.at, self.at + count
        if self.at > len(self.data):
            raise InvalidWeights(
                f"{self.path}: the header wants byte {self.at} of a file of {len(self.data)}; "
                "the file is cut short or damaged: get it again"
            )
        return self.data[start : self.at]

    def integer(self, code: str) -> int:
        return struct.unpack("<" + code, self.take(struct.calcsize(code)))[0]

    def string(self) -> str:
        try:
            return str(self.take(self.integer("Q")), "utf-8")
        except UnicodeDecodeError:
            raise InvalidWeights(f"{self.path}: damaged: text at {self.at} is not UTF-8") from None

    def value(self):
        """A metadata value with its type before it: str, int, float, bool or a list of these."""
        kind = self.integer("I")
        if kind != GGUFValueType.ARRAY:
            return self._items(kind, 1)[0]
        return self._items(self.integer("I"), self.integer("Q"))

    def _items(self, kind: int, count: int) -> list:
        if kind == GGUFValueType.STRING:
            return [self.string() for _ in range(count)]
        if kind not in SCALARS:
            raise InvalidWeights(f"{self.path}: damaged: metadata of unknown type {kind}")
        dtype = SCALARS[kind]
        return np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()


def _read_header(data: np.ndarray, path: Path) -> tuple[dict, dict[str, _Tensor]]:
    """Metadata by key, and tensors by GGUF name; all lie inside the file."""
    cursor = _Cursor(data, path)
    if bytes(cursor.take(4)) != b"GGUF":
        raise InvalidWeights(f"{path}: not a GGUF file (it does not start with GGUF)")
    version = cursor.integer("I")
    if version not in (2, 3):
        raise UnsupportedModel(f"{path}: GGUF version {version}; supported: 2 and 3, little endian")
    tensor_count, entry_count = cursor.integer("Q"), cursor.integer("Q")
    metadata = {}
    for _ in range(entry_count):
        key = cursor.string()
        metadata[key] = cursor.value()
    rows = [_read_row(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise InvalidWeights(f"{path}: damaged: general.alignment is {alignment!r}")
    start = -(-cursor.at // alignment) * alignment
    tensors = {row[0]: _locate(*row, start, len(data), path) for row in rows}
    if len(tensors) != len(rows):
        raise InvalidWeights(f"{path}: damaged: two tensors have the same name")
    return metadata, tensors


def _read_row(cursor: _Cursor) -> tuple[str, Shape, int, int]:
    """One line of the table of tensors: name, shape (reversed to (out, in)), type, offset."""
    name = cursor.string()
    rank = cursor.integer("I")
    if rank > 4:
        raise InvalidWeights(f"{cursor.path}: damaged: tensor {name} has {rank} dimensions")
    dimensions = [cursor.integer("Q") for _ in range(rank)]
    return name, tuple(reversed(dimensions)), cursor.integer("I"), cursor.integer("Q")


def _locate(name: str, shape: Shape, kind: int, offset: int, start: int, end: int, path: Path):
    """The tensor's type and its place in the file, which ends at byte `end`."""
    try:
        tensor_type = GGMLQuantizationType(kind)
        weights, size = GGML_QUANT_SIZES[tensor_type]
    except (ValueError, KeyError):
        raise UnsupportedModel(f"{path}: tensor {name} is of unknown type {kind}") from None
    if not shape or shape[-1] % weights:
        raise InvalidWeights(f"{path}: tensor {name}: {shape} is no whole number of blocks")
    tensor = _Tensor(shape, tensor_type, start + offset, math.prod(shape) // weights * size)
    if tensor.start + tensor.size > end:
        raise InvalidWeights(
            f"{path}: tensor {name} ends at byte {tensor.start + tensor.size} of a file of {end}; "
            "the file is cut short: get it again"
        )
    return tensor
