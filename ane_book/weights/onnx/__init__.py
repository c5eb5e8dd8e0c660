"""Read a language model's weights from a folder of ONNX Runtime GenAI.

    genai_config.json    a short configuration; config.json, where it is beside, says more
    model.onnx           a graph in ONNX Runtime's operators, with its tensors in model.onnx.data
    tokenizer.json       and the other tokenizer files, as beside safetensors

`OnnxSource` recognises the graph as one of our architectures and gives its tensors the names of
`transformers`. What the configuration lacks is read from the graph: sizes from the shapes, epsilon
from the norms.

    recognise.py   matches the decoder and its blocks, from the logits backwards
    attention.py   matches attention
    products.py    matches projections and the embedding
    steps.py       steps from a value to the node that computes it
    matrices.py    decodes stored matrices, plain or block-quantised
    rotary.py      infers the rotary embedding from its tables
    mask.py        checks the mask that a graph computes
"""

from copy import deepcopy
import math
from pathlib import Path

from ane_book.errors import InvalidWeights, UnsupportedModel, WeightsNotFound
from ane_book.models import architectures, find
from ane_book.models.base.config import DecoderConfig
from ane_book.weights.folder import read_tokenizer, tokenizer_paths
from ane_book.weights.onnx.mask import check_mask
from ane_book.weights.onnx.matrices import Matrix, MatrixPart
from ane_book.weights.onnx.products import embedding_of
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
    plain_rope,
    read_config,
    read_json,
)
from mlprogram.onnx.file import OnnxGraph, StoredTensor
import numpy as np

__all__ = ["OnnxSource", "is_bundle"]

GENAI = "genai_config.json"
PARTS = "decoder", "embedding"

#: Tensors that some architectures store fused -> their parts, in order.
FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}


def is_bundle(path: Path) -> bool:
    """Whether `OnnxSource` should open `path`: a folder with an ONNX model, or an `.onnx` file
    whose configuration is that of a language model. It refuses those without genai_config.json."""
    if path.is_dir():
        places = (path.glob(name) for name in (GENAI, "*.onnx", "onnx/*.onnx"))
        return any(any(files) for files in places)
    if path.suffix != ".onnx" or path.with_name(GENAI).exists():
        return path.suffix == ".onnx"
    config = path.with_name("config.json")
    if path.parent.name == "onnx" and not config.exists():
        config = path.parent.with_name("config.json")
    kind = _of_text(read_json(config)).get("model_type") if config.exists() else None
    known = architectures().get(kind) if isinstance(kind, str) else None
    return known is not None and known.task == "text-generation"


def _of_text(fields: dict) -> dict:
    """The fields of the language model in a `config.json`, which may be under `text_config`."""
    text = fields.get("text_config")
    return text if isinstance(text, dict) else fields


class OnnxSource(WeightSource):
    """The decoder in a folder, or in one `.onnx` file of it."""

    kind = "onnx"

    def __init__(self, path: Path):
        """Reads the graph; raises WeightsNotFound, InvalidWeights or UnsupportedModel."""
        folder = path if path.is_dir() else path.parent
        self._genai = _read_genai(folder)
        if not self._genai:
            raise UnsupportedModel(
                f"{path}: ONNX without {GENAI}, as transformers.js and optimum export it, is not "
                "read as a language model; convert the safetensors of the same model instead: "
                "`ane-book convert FOLDER`"
            )
        model = path
        if path.is_dir():
            name = self._genai["decoder"].get("filename") or "model.onnx"
            model = _beside(folder, name, folder / GENAI)
        self._folder, graph = folder, OnnxGraph(model)
        self._graphs = graphs = [graph]
        decoder = decoder_of(DecoderWalk(graph))
        embedding = decoder.embedding
        if embedding is None:
            name = self._genai["embedding"].get("filename")
            if not name:
                raise WeightsNotFound(
                    f"{model}: takes embeddings, and {GENAI} names no file that computes them"
                )
            graphs.append(OnnxGraph(_beside(folder, name, folder / GENAI)))
            embedding = embedding_of(DecoderWalk(graphs[1]), graphs[1].outputs[0])
        if embedding is None:
            raise UnsupportedModel(f"{graphs[1].path}: it looks up no embedding of tokens")
        tables = tables_of(graph, _only(decoder, "tables", graph))
        if mask := _only(decoder, "mask", graph):
            check_mask(graph, mask, tables.positions)
        self._fields = self._read_fields(decoder, embedding, graph, tables)
        config = read_config(self._fields, str(folder))
        if not isinstance(config, DecoderConfig):
            raise UnsupportedModel(f"{folder}: the configuration is not that of a decoder")
        _check(decoder, config, tables, graph)
        architecture = find(config.architecture)
        self._pieces = _tensors(decoder, embedding, architecture.checkpoint(config).layers)
        self._shapes = architecture.tensors(config)
        self._join()
        shapes = {name: _shape(pieces) for name, pieces in self._pieces.items()}
        check_tensors(shapes, self._shapes, str(path))
        configs = [folder / name for name in (GENAI, "config.json")]
        self.files = [file for file in configs if file.exists()]
        self.files += [file for one in graphs for file in one.files] + tokenizer_paths(folder)
        self._place = str(self.files[0])

    def _read(self, name: str) -> np.ndarray:
        pieces = [piece.read() for piece in self._pieces[name]]
        self._let_go()
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def integers(self, name: str) -> Integers | None:
        self.shape(name)  # raises
        integers = joined([piece.integers() for piece in self._pieces[name]])
        self._let_go()
        return integers

    def has_integers(self) -> bool:
        return any(piece.is_integers for pieces in self._pieces.values() for piece in pieces)

    def _let_go(self) -> None:
        """Release the memory of mapped files: pages that were read would stay resident."""
        for graph in self._graphs:
            graph.let_go()

    def config(self) -> dict:
        return deepcopy(self._fields)

    def tokenizer(self) -> TokenizerFiles:
        keys = self._genai.keys() & {"eos_token_id", "bos_token_id"}
        return read_tokenizer(self._folder, self._fields | {key: self._genai[key] for key in keys})

    def _read_fields(
        self, decoder: OnnxDecoder, embedding: Matrix, graph: OnnxGraph, tables: Tables
    ) -> dict:
        """The fields of `config.json`, if there is one, or those that the graph and
        genai_config.json imply."""
        place, genai = self._folder / "config.json", self._folder / GENAI
        tied = {"tie_word_embeddings": _is_tied(decoder, embedding)}
        if place.exists():
            return plain_rope(_of_text(read_json(place)), str(place)) | tied
        context = self._genai.get("context_length")
        if not isinstance(context, int) or not 0 < context < 1 << 31:
            raise InvalidWeights(f"{genai}: context_length is {context!r}")
        first, heads = decoder.blocks[0], _only(decoder, "heads", graph)
        V, C = embedding.shape
        sizes = {
            "hidden_size": C,
            "head_dim": first.attention.parts["q"][0].shape[0] // heads,
            "num_hidden_layers": len(decoder.blocks),
            "num_attention_heads": heads,
            "num_key_value_heads": _only(decoder, "kv_heads", graph),
        }
        asked = self._genai["decoder"] | {"head_dim": self._genai["decoder"].get("head_size")}
        for name, size in sizes.items():
            if asked.get(name) not in (None, size):
                there = f"{name} is {asked[name]!r}, but the graph has {size}"
                raise InvalidWeights(f"{genai}: {there}")
        fields = {
            "model_type": self._genai.get("type"),
            "max_position_embeddings": context,
            "vocab_size": V,
            "intermediate_size": first.weights["mlp.gate_proj.weight"].shape[0],
            "rms_norm_eps": decoder.norm.epsilon,
            "sliding_window": _only(decoder, "window", graph),
        }
        return fields | sizes | tied | rope_fields(tables, sizes["head_dim"], context)

    def _join(self) -> None:
        """Fuse tensors that the architecture stores fused: see FUSED."""
        for name in self._shapes:
            stem, suffix = name.rpartition(".")[::2]
            for fused, parts in FUSED.items():
                if stem.endswith(fused):
                    names = [f"{stem.removesuffix(fused)}{part}.{suffix}" for part in parts]
                    if all(part in self._pieces for part in names):
                        self._pieces[name] = [p for part in names for p in self._pieces.pop(part)]


def _read_genai(folder: Path) -> dict:
    """`model` in genai_config.json, with its `decoder` and `embedding`; {} if there is no file."""
    place = folder / GENAI
    if not place.exists():
        return {}
    model = read_json(place).get("model")
    parts = [model.get(part) or {} for part in PARTS] if isinstance(model, dict) else [None]
    if not all(isinstance(part, dict) for part in parts):
        raise InvalidWeights(f"{place}: has no object `model` with an object `decoder`")
    return model | dict(zip(PARTS, parts, strict=True))


def _beside(folder: Path, name: str, said: Path) -> Path:
    """The path of a file that a configuration names; it has to be in the same folder."""
    if not isinstance(name, str) or Path(name).name != name:
        raise InvalidWeights(f"{said}: names the file {name!r}, outside of its folder")
    if not (folder / name).exists():
        raise WeightsNotFound(f"{said}: names the file {name}, which is missing; get it")
    return folder / name


# --- what the graph says


def _is_tied(decoder: OnnxDecoder, embedding: Matrix) -> bool:
    return decoder.head.matrix.key == embedding.key and decoder.head.bias is None


def _tensors(decoder: OnnxDecoder, embedding: Matrix, prefix: str) -> dict[str, list[MatrixPart]]:
    """All tensors of the graph by their `transformers` names, without a tied head."""
    weight, bias = decoder.head.whole()
    pieces = {
        "model.embed_tokens.weight": _whole(embedding),
        "model.norm.weight": _whole(decoder.norm.weight),
    }
    if not _is_tied(decoder, embedding):
        pieces["lm_head.weight"] = weight
    if bias is not None:
        pieces["lm_head.bias"] = bias
    for i, block in enumerate(decoder.blocks):
        norms = {"input_layernorm": block.before, "post_attention_layernorm": block.after}
        norms |= {f"self_attn.{part}_norm": n for part, n in block.attention.norms.items()}
        pieces |= {f"{prefix}.{i}.{name}": piece for name, piece in block.weights.items()}
        pieces |= {f"{prefix}.{i}.{n}.weight": _whole(norm.weight) for n, norm in norms.items()}
    return {name: [piece] for name, piece in pieces.items()}


def _whole(source: Matrix | StoredTensor) -> MatrixPart:
    return MatrixPart(source, 0, source.shape[0])


def _shape(pieces: list[MatrixPart]) -> Shape:
    return sum(piece.shape[0] for piece in pieces), *pieces[0].shape[1:]


def _only(decoder: OnnxDecoder, name: str, graph: OnnxGraph):
    """The attribute `name` of attention. Raises UnsupportedModel if it differs between blocks."""
    values = {getattr(block.attention, name) for block in decoder.blocks}
    if len(values) > 1:
        raise UnsupportedModel(
            f"{graph.path}: {name} differs between blocks: {sorted(values, key=str)[:4]}"
        )
    return values.pop()


def _check(decoder: OnnxDecoder, config: DecoderConfig, tables: Tables, graph: OnnxGraph) -> None:
    """Raise InvalidWeights if the graph contradicts the configuration."""
    sizes = {
        "num_layers": len(decoder.blocks),
        "num_heads": _only(decoder, "heads", graph),
        "num_kv_heads": _only(decoder, "kv_heads", graph),
        "sliding_window": _only(decoder, "window", graph),
    }
    for name, size in sizes.items():
        if getattr(config, name) != size:
            raise InvalidWeights(
                f"{graph.path}: the graph has {name} {size}, the configuration "
                f"{getattr(config, name)}"
            )
    scale = config.rotary.attention_scale or config.head_dim**-0.5
    for block in decoder.blocks:
        for norm in (block.before, block.after, *block.attention.norms.values(), decoder.norm):
            if not math.isclose(norm.epsilon, config.rms_norm_eps, rel_tol=1e-5):
                raise InvalidWeights(
                    f"{graph.path}: the norm of {norm.weight.name} has epsilon {norm.epsilon:g}, "
                    f"the configuration {config.rms_norm_eps:g}"
                )
        if not math.isclose(block.attention.scale or config.head_dim**-0.5, scale, rel_tol=1e-5):
            raise InvalidWeights(
                f"{graph.path}: attention's scale is {block.attention.scale:g}, not {scale:g}"
            )
    check_tables(tables, config.rotary)
