"""Read a language model's weights from a folder of ONNX Runtime GenAI.

    genai_config.json    a short configuration
    model.onnx           a graph in ONNX Runtime's operators, with its tensors in model.onnx.data
    tokenizer.json       and the other tokenizer files, as beside safetensors

`OnnxSource` recognises the graph as one of our architectures and gives its tensors the names of
`transformers`. What the configuration lacks is read from the graph: sizes from the shapes, epsilon
from the norms. `recognise.py` matches the decoder, from the logits backwards.
"""

import math
from pathlib import Path
from shlex import quote

from ane_book.errors import InvalidWeights, UnsupportedModel, WeightsNotFound
from ane_book.models import find
from ane_book.models.base.config import DecoderConfig
from ane_book.weights.onnx.attention import OnnxAttention
from ane_book.weights.onnx.matrices import MatrixPart, Plain, whole
from ane_book.weights.onnx.recognise import OnnxDecoder, decoder_of
from ane_book.weights.onnx.rotary import Tables, check_tables, rope_fields, tables_of
from ane_book.weights.onnx.steps import DecoderWalk
from ane_book.weights.source import (
    Integers,
    Shape,
    TokenizerFiles,
    WeightSource,
    check_tensors,
    joined,
    read_config,
    read_json,
)
from ane_book.weights.tokenizer import read_tokenizer, tokenizer_paths
from mlprogram.onnx.file import OnnxGraph
import numpy as np

__all__ = ["GENAI", "OnnxSource"]

GENAI = "genai_config.json"

#: Tensors that some architectures store fused -> their parts, in order.
FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}


class OnnxSource(WeightSource):
    """The decoder in a folder, or in one `.onnx` file of it."""

    kind = "onnx"

    def __init__(self, path: Path):
        """Reads the graph; raises WeightsNotFound, InvalidWeights or UnsupportedModel."""
        folder = path if path.is_dir() else path.parent
        self._folder, self._place = folder, str(folder / GENAI)
        self._genai = _read_genai(folder / GENAI, path)
        self._graph = graph = OnnxGraph(self._model() if path.is_dir() else path)
        try:
            decoder = decoder_of(DecoderWalk(graph))
        except IndexError:
            raise InvalidWeights(
                f"{graph.path}: a node has fewer inputs than its operator takes; get the file again"
            ) from None
        attention = _alike(decoder, graph)
        tables = tables_of(graph, attention.tables)
        self._fields = self._read_fields(decoder, attention, tables)
        config = read_config(self._fields, str(folder))
        if not isinstance(config, DecoderConfig):
            raise UnsupportedModel(f"{folder}: the configuration is not that of a decoder")
        _check(decoder, attention, config, graph)
        check_tables(tables, config.rotary)
        architecture = find(config.architecture)
        self._pieces = _tensors(decoder, architecture.checkpoint(config).layers)
        self._shapes = architecture.tensors(config)
        self._join()
        shapes = {name: _shape(pieces) for name, pieces in self._pieces.items()}
        check_tensors(shapes, self._shapes, str(path))
        self.files = [folder / GENAI, *graph.files, *tokenizer_paths(folder)]

    def _read(self, name: str) -> np.ndarray:
        pieces = [piece.read() for piece in self._pieces[name]]
        self._graph.let_go()  # pages of mapped files that were read would stay resident
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def integers(self, name: str) -> Integers | None:
        self.shape(name)  # raises
        integers = joined([piece.integers() for piece in self._pieces[name]])
        self._graph.let_go()
        return integers

    def has_integers(self) -> bool:
        return any(piece.source.is_integers for pieces in self._pieces.values() for piece in pieces)

    def tokenizer(self) -> TokenizerFiles:
        keys = self._genai.keys() & {"eos_token_id", "bos_token_id"}
        return read_tokenizer(self._folder, self._fields | {key: self._genai[key] for key in keys})

    def _model(self) -> Path:
        """The file that genai_config.json names; it has to be in the same folder."""
        name = self._genai["decoder"].get("filename") or "model.onnx"
        if not isinstance(name, str) or Path(name).name != name:
            raise InvalidWeights(f"{self._place}: names the file {name!r}, outside of its folder")
        if not (self._folder / name).exists():
            raise WeightsNotFound(f"{self._place}: names the file {name}, which is missing; get it")
        return self._folder / name

    def _read_fields(self, decoder: OnnxDecoder, attention: OnnxAttention, tables: Tables) -> dict:
        """The fields of a `config.json` that the graph and genai_config.json imply."""
        context = self._genai.get("context_length")
        if not isinstance(context, int) or not 0 < context < 1 << 31:
            raise InvalidWeights(f"{self._place}: context_length is {context!r}")
        V, C = decoder.embedding.shape
        head_dim = attention.parts["q"].weight.shape[0] // attention.heads
        sizes = {
            "hidden_size": C,
            "head_dim": head_dim,
            "num_hidden_layers": len(decoder.blocks),
            "num_attention_heads": attention.heads,
            "num_key_value_heads": attention.kv_heads,
        }
        asked = self._genai["decoder"] | {"head_dim": self._genai["decoder"].get("head_size")}
        for name, size in sizes.items():
            if asked.get(name) not in (None, size):
                raise InvalidWeights(
                    f"{self._place}: {name} is {asked[name]!r}, but the graph has {size}"
                )
        fields = {
            "model_type": self._genai.get("type"),
            "max_position_embeddings": context,
            "vocab_size": V,
            "intermediate_size": decoder.blocks[0].weights["mlp.gate_proj.weight"].shape[0],
            "rms_norm_eps": decoder.norm.epsilon,
            "sliding_window": attention.window,
            "tie_word_embeddings": _is_tied(decoder),
        }
        return fields | sizes | rope_fields(tables, head_dim, context)

    def _join(self) -> None:
        """Fuse tensors that the architecture stores fused: see FUSED."""
        for name in self._shapes:
            stem, suffix = name.rpartition(".")[::2]
            for fused, parts in FUSED.items():
                if stem.endswith(fused):
                    names = [f"{stem.removesuffix(fused)}{part}.{suffix}" for part in parts]
                    if all(part in self._pieces for part in names):
                        self._pieces[name] = [p for part in names for p in self._pieces.pop(part)]


def _read_genai(place: Path, graph: Path) -> dict:
    """`model` in genai_config.json, with its `decoder`."""
    if not place.exists():
        raise UnsupportedModel(
            f"{graph}: no {GENAI} beside it, so a graph and not a language model; `mlprogram "
            f"convert {quote(str(graph))} --out NAME.mlpackage` makes a package of it, and "
            "`ane-book convert FOLDER` takes the safetensors of the same model"
        )
    model = read_json(place).get("model")
    if not isinstance(model, dict) or not isinstance(model.get("decoder"), dict):
        raise InvalidWeights(f"{place}: has no object `model` with an object `decoder`")
    return model


# --- what the graph says


def _is_tied(decoder: OnnxDecoder) -> bool:
    head, embedding = decoder.head, decoder.embedding
    same = head.weight.source.key == embedding.key and head.weight.shape == embedding.shape
    return same and head.bias is None


def _tensors(decoder: OnnxDecoder, prefix: str) -> dict[str, list[MatrixPart]]:
    """All tensors of the graph by their `transformers` names, without a tied head."""
    pieces = {"model.embed_tokens.weight": whole(decoder.embedding)}
    norms = {"model.norm": decoder.norm}
    if not _is_tied(decoder):
        pieces["lm_head.weight"] = decoder.head.weight
    if decoder.head.bias is not None:
        pieces["lm_head.bias"] = decoder.head.bias
    for i, block in enumerate(decoder.blocks):
        norms[f"{prefix}.{i}.input_layernorm"] = block.before
        norms[f"{prefix}.{i}.post_attention_layernorm"] = block.after
        for part, norm in block.attention.norms.items():
            norms[f"{prefix}.{i}.self_attn.{part}_norm"] = norm
        pieces |= {f"{prefix}.{i}.{name}": piece for name, piece in block.weights.items()}
    pieces |= {f"{name}.weight": whole(Plain(norm.weight)) for name, norm in norms.items()}
    return {name: [piece] for name, piece in pieces.items()}


def _shape(pieces: list[MatrixPart]) -> Shape:
    return sum(piece.shape[0] for piece in pieces), *pieces[0].shape[1:]


def _alike(decoder: OnnxDecoder, graph: OnnxGraph) -> OnnxAttention:
    """The first block's attention; raises UnsupportedModel unless all have the same options."""
    for name in ("heads", "kv_heads", "scale", "window", "tables"):
        values = {getattr(block.attention, name) for block in decoder.blocks}
        if len(values) > 1:
            raise UnsupportedModel(
                f"{graph.path}: {name} differs between blocks: {sorted(values, key=str)[:4]}"
            )
    return decoder.blocks[0].attention


def _check(
    decoder: OnnxDecoder, attention: OnnxAttention, config: DecoderConfig, graph: OnnxGraph
) -> None:
    """Raise InvalidWeights if the graph computes something else than the architecture."""
    if attention.window != config.sliding_window:
        raise InvalidWeights(
            f"{graph.path}: the graph has sliding_window {attention.window}, the configuration "
            f"{config.sliding_window}"
        )
    usual = config.head_dim**-0.5
    scale = config.rotary.attention_scale or usual
    if not math.isclose(attention.scale or usual, scale, rel_tol=1e-5):
        raise InvalidWeights(
            f"{graph.path}: attention's scale is {attention.scale:g}, not {scale:g}"
        )
    for block in decoder.blocks:
        for norm in (block.before, block.after, *block.attention.norms.values()):
            if not math.isclose(norm.epsilon, config.rms_norm_eps, rel_tol=1e-5):
                raise InvalidWeights(
                    f"{graph.path}: the norm of {norm.weight.name} has epsilon {norm.epsilon:g}, "
                    f"the last one {config.rms_norm_eps:g}"
                )
