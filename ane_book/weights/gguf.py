"""Read weights, configuration and tokenizer from a GGUF file, llama.cpp's format.

Names, metadata and the order of rows are translated to those of `transformers`, as the
architecture's file in `ane_book.models` says. `gguf_header` parses the layout, and the package
`gguf` dequantises.

References: names as in `gguf`'s constants.py; the meaning of the metadata, the order of rows in q
and k and the base of HunYuan's rotary embedding as in llama.cpp's convert_hf_to_gguf.py.
"""

from collections.abc import Iterator
from dataclasses import replace
import math
from pathlib import Path
from typing import Any

from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.models import find, find_gguf
from ane_book.models.base.architecture import Checkpoint
from ane_book.rope import WIDEST
from ane_book.weights.gguf_header import GGUFTensor, map_file, read_header
from ane_book.weights.gguf_tokenizer import from_gguf
from ane_book.weights.source import (
    TokenizerFiles,
    WeightSource,
    check_tensors,
    piece_shapes,
    read_config,
)
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize
import numpy as np

#: Tensors that are not weights but divisors of the rotary frequencies: Llama 3's, and LongRoPE's
#: for short contexts and long ones.
DIVISORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")

#: Field of a yarn `rope_scaling` -> metadata key after "rope.scaling.", where the file has it.
YARN = {
    "attention_factor": "yarn_attn_factor",
    "beta_fast": "yarn_beta_fast",
    "beta_slow": "yarn_beta_slow",
    "mscale_all_dim": "yarn_log_multiplier",
}

#: Required field of `config.json` -> metadata key after the architecture's name.
FIELDS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}

MOST_EXPERTS = 2048
LAYERS = Checkpoint.layers  # with which names of layers begin, of all families with a GGUF
BLOCKS_AT_ONCE = 2048  # 65,536 weights of Q4 or Q8: temporaries stay in the second cache


class GGUFSource(WeightSource):
    """One `.gguf` file of an architecture whose file in `ane_book.models` has a `GGUF`."""

    kind = "gguf"

    def __init__(self, path: Path):
        """Reads and checks the header; raises InvalidWeights or UnsupportedModel."""
        self.files, self._place = [path], str(path)
        self._data = map_file(path)
        self._metadata, tensors = read_header(self._data, path)
        if self._metadata.get("split.count", 1) != 1:
            raise UnsupportedModel(
                f"{path}: is one of {self._metadata['split.count']} files of a model, which are "
                "not read; make one of them: llama-gguf-split --merge FIRST_FILE ONE_FILE"
            )
        name = self._metadata.get("general.architecture")
        if self._metadata.get(f"{name}.pooling_type"):  # llama.cpp's: 1 mean, 2 cls, 3 last, 4 rank
            raise UnsupportedModel(
                f"{path}: {name} with a pooling_type makes vectors or scores of texts, and such "
                "models are not read of GGUF: take the folder with the model's config.json, "
                "modules.json and safetensors"
            )
        try:
            self._architecture = find_gguf(name)
        except UnsupportedModel as error:
            raise UnsupportedModel(f"{path}: {error}") from None
        assert self._architecture.gguf is not None, "`find_gguf` finds those that have one"
        self._gguf = self._architecture.gguf
        _check_types(tensors, path)
        self._divisors = {name: tensors.pop(name) for name in DIVISORS if name in tensors}
        named = {self._rename(name): tensor for name, tensor in tensors.items()}
        self._tensors = dict(one for pair in named.items() for one in _experts(*pair))
        self._fields = self._read_config()
        self._config = read_config(self._fields, str(path))
        architecture = find(self._config.architecture)
        signatures = architecture.signatures(self._config)
        if self._get("expert_count", 0) and signatures.mixture is None:
            raise UnsupportedModel(f"{path}: {self._gguf.architecture} with a mixture of experts")
        self._shapes = architecture.tensors(self._config)
        self._in_pieces = signatures.pieces(LAYERS)
        expected = piece_shapes(self._shapes, self._in_pieces)
        for name, tensor in self._tensors.items():  # GGUF drops axes of one
            shape = expected.get(name, ())
            if tensor.shape == tuple(size for size in shape if size != 1):
                self._tensors[name] = replace(tensor, shape=shape)
        found = {name: tensor.shape for name, tensor in self._tensors.items()}
        check_tensors(found, expected, str(path))

    def _read(self, name: str) -> np.ndarray:
        array = self._dequantize(self._tensors[name])
        return self._gguf.rows(self._config, name, array)

    def rows(self, name: str, count: int) -> Iterator[np.ndarray]:
        self.shape(name)  # raises
        tensor = self._tensors.get(name)
        if tensor is None or name.rpartition(".")[0] not in self._gguf.outer.values():
            yield from super().rows(name, count)  # of layers, whose rows may have another order
            return
        size = tensor.size // tensor.shape[0]
        for at in range(0, tensor.shape[0], count):
            rows = min(count, tensor.shape[0] - at)
            part = replace(
                tensor,
                shape=(rows, *tensor.shape[1:]),
                start=tensor.start + at * size,
                size=rows * size,
            )
            yield self._gguf.rows(self._config, name, self._dequantize(part))

    def tokenizer(self) -> TokenizerFiles:
        return from_gguf(self._metadata, self._fields["vocab_size"], str(self.files[0]))

    def _rename(self, name: str) -> str:
        """Translate GGUF's name of a tensor to that of `transformers`; keep an unknown one."""
        stem, _, suffix = name.rpartition(".")
        if stem in self._gguf.outer:
            return f"{self._gguf.outer[stem]}.{suffix}"
        if not name.startswith("blk."):
            return name
        number, _, part = name.removeprefix("blk.").partition(".")
        layer, known = f"{LAYERS}.{number}", self._gguf.layer
        if part in known:
            return f"{layer}.{known[part]}"
        part = part.removesuffix(f".{suffix}")
        return f"{layer}.{known[part]}.{suffix}" if part in known else name

    def _dequantize(self, tensor: GGUFTensor) -> np.ndarray:
        """Decode a tensor in runs of quantised blocks, whatever its rows: long runs are fast."""
        weights, size = GGML_QUANT_SIZES[tensor.type]
        blocks = self._data[tensor.start : tensor.start + tensor.size].reshape(-1, size)
        out = np.empty((len(blocks), weights), dtype=np.float32)
        step = max(1, BLOCKS_AT_ONCE * 32 // weights)
        for i in range(0, len(blocks), step):
            part = blocks[i : i + step]
            out[i : i + step] = dequantize(part.reshape(1, -1), tensor.type).reshape(-1, weights)
        return out.reshape(tensor.shape)

    def _get(self, key: str, default: float | None = None) -> Any:
        """A number from the metadata under the architecture's prefix.

        Raises InvalidWeights if it has none and there is no default, UnsupportedModel if it has one
        per layer.
        """
        key = f"{self._gguf.architecture}.{key}"
        value = self._metadata.get(key, default)
        if isinstance(value, int | float) and math.isfinite(value):
            return value
        if isinstance(value, list):
            raise UnsupportedModel(f"{self.files[0]}: {key} differs between layers: {value[:8]}")
        raise InvalidWeights(f"{self.files[0]}: the metadata has no number {key}")

    def _read_config(self) -> dict:
        """Translate the metadata to the fields of a Hugging Face `config.json`."""
        path, tensors = self.files[0], self._tensors
        config: dict[str, Any] = {"model_type": self._architecture.model_type}
        config |= {field: self._get(key) for field, key in FIELDS.items()}
        heads, kv = config["num_attention_heads"], "attention.head_count_kv"
        if heads <= 0:
            raise InvalidWeights(f"{path}: attention.head_count is {heads}")
        if "model.embed_tokens.weight" not in tensors:
            raise InvalidWeights(f"{path}: tensor token_embd.weight is missing; get the file again")
        head_dim = self._get("attention.key_length", config["hidden_size"] // heads)
        if not 0 < head_dim <= WIDEST:
            raise InvalidWeights(f"{path}: heads of {head_dim} dimensions; the file is damaged")
        if self._get("attention.value_length", head_dim) != head_dim:
            raise UnsupportedModel(f"{path}: attention.value_length is not the head size")
        given = self._metadata.get(f"{self._gguf.architecture}.{kv}")  # of other layers it may be 0
        counts = {count for count in given if count} if isinstance(given, list) else set()
        config |= {
            "head_dim": head_dim,
            "num_key_value_heads": counts.pop() if len(counts) == 1 else self._get(kv, heads),
            "vocab_size": tensors["model.embed_tokens.weight"].shape[0],
            "rope_theta": self._get("rope.freq_base", 10000.0),
            "tie_word_embeddings": "lm_head.weight" not in tensors,
        }
        if (rotated := self._get("rope.dimension_count", head_dim)) != head_dim:
            config["partial_rotary_factor"] = rotated / head_dim
        if "model.layers.0.self_attn.q_proj.bias" in tensors:
            config["attention_bias"] = True
        config["sliding_window"] = self._get("attention.sliding_window", 0) or None
        if kinds := self._layer_types(config["num_hidden_layers"]):
            config["layer_types"] = kinds
        if original := self._get("rope.scaling.original_context_length", 0):
            config["original_max_position_embeddings"] = original
        if ahead := self._get("nextn_predict_layers", 0):
            config["num_hidden_layers"] = self._without_last(config["num_hidden_layers"], ahead)
        config["rope_scaling"] = self._rope_scaling(config)
        return self._gguf.fields(config, self._get)

    def _without_last(self, layers: int, count: int) -> int:
        """Leave out the last layers, which guess tokens ahead; returns how many are left."""
        if not isinstance(count, int) or not 0 < count < min(layers, 100):
            raise InvalidWeights(f"{self.files[0]}: {count} of {layers} layers guess tokens ahead")
        known = LAYERS, "blk"  # of tensors that were renamed, and others
        last = tuple(f"{prefix}.{layers - 1 - i}." for prefix in known for i in range(count))
        self._tensors = {n: own for n, own in self._tensors.items() if not n.startswith(last)}
        return layers - count

    def _layer_types(self, layers: int) -> list[str] | None:
        """Which layers have a sliding window, or no attention, where the file says it of each;
        otherwise None."""
        heads = self._metadata.get(f"{self._gguf.architecture}.attention.head_count_kv")
        if isinstance(heads, list) and 0 in heads:
            return ["full_attention" if count else "conv" for count in heads[:layers]]
        sliding = self._metadata.get(f"{self._gguf.architecture}.attention.sliding_window_pattern")
        if not isinstance(sliding, list) or not any(sliding):
            return None
        return ["sliding_attention" if own else "full_attention" for own in sliding[:layers]]

    def _rope_scaling(self, config: dict) -> dict | None:
        factor = self._get("rope.scaling.factor", self._get("rope.scale_linear", 1.0))
        unsaid = "none" if factor == 1.0 else "linear"  # as llama.cpp has it, of older files
        kind = self._metadata.get(f"{self._gguf.architecture}.rope.scaling.type", unsaid)
        if self._divisors and kind not in ("linear", "yarn"):
            return self._divided(config)
        if self._divisors:
            raise UnsupportedModel(
                f"{self.files[0]}: rope.scaling.type {kind!r} beside {min(self._divisors)} is not "
                "supported: one of them scales"
            )
        if kind == "none":
            return None
        if kind == "linear":
            return {"rope_type": "linear", "factor": factor}
        if kind != "yarn":
            raise UnsupportedModel(
                f"{self.files[0]}: rope.scaling.type {kind!r}; supported: none, linear, yarn"
            )
        for key in ("rope.scaling.yarn_ext_factor", "rope.scaling.attn_factor"):
            if (value := self._get(key, 1.0)) != 1.0:
                raise UnsupportedModel(f"{self.files[0]}: {key} = {value} with yarn; only 1 is")
        scaling = {"rope_type": "yarn", "factor": self._get("rope.scaling.factor")}
        for field, key in YARN.items():
            if value := self._get(f"rope.scaling.{key}", 0):
                scaling[field] = value
        if "mscale_all_dim" in scaling:
            scaling["mscale"] = 1.0  # as llama.cpp has it
        return scaling

    def _divided(self, config: dict) -> dict:
        """The `rope_scaling` of stored divisors, one for each rotated pair, as LongRoPE has them:
        for short contexts and for long ones (Phi-3, Phi-4-mini), or the same for both (Llama 3.1
        and later, of whose scaling a file has no other trace)."""
        same = DIVISORS[0] in self._divisors
        scaling: dict[str, Any] = {"rope_type": "longrope"}
        names = (DIVISORS[0], DIVISORS[0]) if same else DIVISORS[1:]
        for field, name in zip(("short_factor", "long_factor"), names, strict=True):
            tensor, size = self._divisors.get(name), config["head_dim"]
            if tensor is None:
                raise InvalidWeights(
                    f"{self.files[0]}: tensor {name} is missing; get the file again"
                )
            if len(tensor.shape) != 1 or tensor.shape[0] > size:
                raise InvalidWeights(
                    f"{self.files[0]}: tensor {name} has shape {tensor.shape}, but heads have "
                    f"{size} dimensions"
                )
            divisors = self._dequantize(tensor)
            if not (np.isfinite(divisors) & (divisors > 0)).all():
                raise InvalidWeights(
                    f"{self.files[0]}: tensor {name} has divisors that are no numbers above 0; get "
                    "the file again"
                )
            scaling[field] = divisors.tolist()
        if factor := 1.0 if same else self._get("rope.scaling.attn_factor", 0):
            scaling["attention_factor"] = factor
        return scaling


def _experts(name: str, tensor: GGUFTensor) -> Iterator[tuple[str, GGUFTensor]]:
    """A tensor under its name; of a stack of experts, which has a * in its name, each one's."""
    count, *shape = tensor.shape
    if "*" not in name or not 0 < count <= MOST_EXPERTS:
        yield name, tensor
        return
    size = tensor.size // count
    for i in range(count):
        start = tensor.start + i * size
        yield name.replace("*", str(i)), GGUFTensor(tuple(shape), tensor.type, start, size)


def _check_types(tensors: dict[str, GGUFTensor], path: Path) -> None:
    """Decode a block of zeros of each type, so that one that `gguf` cannot decode fails early."""
    for tensor_type, name in {tensor.type: name for name, tensor in tensors.items()}.items():
        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[tensor_type][1]), np.uint8), tensor_type)
        except NotImplementedError:
            raise UnsupportedModel(
                f"{path}: tensor {name} has type {tensor_type.name}, which cannot be dequantised"
            ) from None
