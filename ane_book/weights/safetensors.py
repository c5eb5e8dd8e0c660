"""Read a Hugging Face folder with safetensors: one weight file, or several with an index.

    config.json          the architecture and its hyperparameters
    model.safetensors    the tensors; or model.safetensors.index.json, which says which of several
                         files (shards) holds which tensor
    tokenizer.json       the tokenizer, with tokenizer_config.json, chat_template.jinja and
                         generation_config.json
    modules.json         for an encoder: how texts become vectors (`ane_book.weights.sentences`)

The package `safetensors` maps the files and checks their headers; torch decodes bfloat16, which
numpy does not have. Weights that are quantised are read by the rules of
`ane_book.weights.quantised`. Reference: https://huggingface.co/docs/safetensors.
"""

from collections.abc import Iterator
from pathlib import Path
import warnings

from ane_book.errors import InvalidWeights, ScalesLeftOut, UnsupportedModel, WeightsNotFound
from ane_book.models import find
from ane_book.models.base.architecture import Checkpoint
from ane_book.models.base.config import plain_rope
from ane_book.weights.quantised import Stored, WeightRule, rules
from ane_book.weights.quantised.stored import FLOATS, Header
from ane_book.weights.sentences import Sentences, read_steps, sentence_settings
from ane_book.weights.source import (
    PICKLED,
    Shape,
    TokenizerFiles,
    WeightSource,
    check_tensors,
    piece_shapes,
    read_config,
    read_json,
)
from ane_book.weights.tokenizer import read_tokenizer, tokenizer_paths
from mlprogram.files import check_file
import numpy as np
from safetensors import SafetensorError, safe_open
import torch

INDEX = "model.safetensors.index.json"

#: Tables that older `transformers` stored beside the parameters, and that are not needed.
BUFFERS = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")

#: How names of static scales end, by which another engine rounds activations or its cache; they say
#: nothing of the weights beside them. ModelOpt's `pre_quant_scale` does, and is refused.
SCALES = (
    ".input_scale", ".input_global_scale", ".input_zero_point", ".act_scale",
    ".activation_scale", ".k_scale", ".v_scale", ".input_quantizer._amax",
)  # fmt: skip


class SafetensorsSource(WeightSource):
    """A folder with `config.json` and `*.safetensors`, or one such file beside `config.json`."""

    kind = "safetensors"

    def __init__(self, path: Path):
        """Raises WeightsNotFound, InvalidWeights or UnsupportedModel; reads headers only."""
        self._folder = path if path.is_dir() else path.parent
        self._place = str(self._folder)
        place = self._folder / "config.json"
        if not place.exists():
            raise WeightsNotFound(
                f"{path}: {place} is missing, which says what the tensors are of; get it as well"
            )
        self._fields, sentences = read_folder(self._folder)
        config = read_config(self._fields, str(place))
        architecture = find(config.architecture)
        shards = _shards(path)
        self.files = [place, *shards, *tokenizer_paths(self._folder), *sentences.files]
        weights = (*shards, *sentences.dense.values())
        self._open = {file: open_safetensors(file) for file in weights}
        self._shapes, names = architecture.tensors(config), architecture.checkpoint(config)
        self._where = self._locate(names, sentences.dense)
        self._leave_out_scales(str(path))
        pieces = architecture.signatures(config).pieces(names.layers)
        self._rules = self._find_rules(pieces, str(path))

    def _leave_out_scales(self, place: str) -> None:
        """Leave out static scales, with a warning: a bundle computes its activations in fp16."""
        scales = [n for n in self._where if n.endswith(SCALES) and n not in self._shapes]
        for name in scales:
            del self._where[name]
        if scales:
            told = (
                f"{place}: {len(scales)} static scales of quantised activations, such as "
                f"{scales[0]}, are left out: a bundle computes activations in fp16, and its "
                "weights are the same without"
            )
            warnings.warn(ScalesLeftOut(told), stacklevel=2)

    def _find_rules(self, pieces: dict, place: str) -> dict[str, WeightRule]:
        """The rules of quantised tensors, after every tensor was found to be as expected."""
        headers = {name: self._header(name) for name in self._where}
        stored = Stored(headers, self._get, place)
        made = rules(self._fields, stored)
        parts = {part for rule in made.values() for part in rule.parts}
        plain = {name: self._plain(name, own) for name, own in headers.items() if name not in parts}
        found = plain | {name: rule.shape for name, rule in made.items()}
        for name in made:  # some versions of AutoGPTQ gave every module a bias, of zeros
            bias = f"{name.removesuffix('.weight')}.bias"
            if bias in found and bias not in self._shapes and not stored.read(bias).any():
                del found[bias]
        self._in_pieces = {name: own for name, own in pieces.items() if name not in found}
        check_tensors(found, piece_shapes(self._shapes, self._in_pieces), place)
        if made:  # what is read from here on is a plain model
            del self._fields["quantization_config"]
        return made

    def where(self, name: str) -> str:
        place = self._where[name][0] if name in self._where else self._place
        return f"{place}: tensor {name}"

    def _get(self, name: str) -> torch.Tensor:
        shard, own = self._where[name]
        return self._open[shard].get_tensor(own)  # a view of the mapped file

    def _read(self, name: str) -> np.ndarray:
        if name in self._rules:
            return self._rules[name].make().numpy()
        return self._get(name).to(torch.float32, copy=True).numpy()

    def rows(self, name: str, count: int) -> Iterator[np.ndarray]:
        if name in self._rules or name in self._in_pieces:
            yield from super().rows(name, count)
            return
        self.shape(name)  # raises
        whole = self._get(name)  # mapped: rows are read when their turn comes
        for at in range(0, len(whole), count):
            yield whole[at : at + count].to(torch.float32, copy=True).numpy()

    def tokenizer(self) -> TokenizerFiles:
        return read_tokenizer(self._folder, self._fields)

    def _locate(self, names: Checkpoint, dense: dict[str, Path]) -> dict[str, tuple[Path, str]]:
        """Tensor name -> the file that holds it and its name there, without `repeats`, `BUFFERS`
        and what is of another model. dense: files whose names get a folder's in front."""
        where: dict[str, tuple[Path, str]] = {}
        known = self._shapes.keys() | names.repeats
        folders = {file: f"{folder}." for folder, file in dense.items()}
        for shard, file in self._open.items():
            for own in file.keys():  # noqa: SIM118 - a handle, not a dict
                name, base = folders.get(shard, "") + own, names.base
                other = name.removeprefix(base) if name.startswith(base) else base + name
                if name not in known and other in known:
                    name = other  # by the class that saved it, names have the prefix or lack it
                left_out = name.startswith(names.left_out)
                if name.endswith(BUFFERS) or name in names.repeats or left_out:
                    continue
                if name in where:
                    raise InvalidWeights(
                        f"{shard}: tensor {own} is in {where[name][0].name} as well"
                    )
                where[name] = shard, own
        return where

    def _header(self, name: str) -> Header:
        shard, own = self._where[name]
        header = self._open[shard].get_slice(own)
        return Header(header.get_dtype(), tuple(header.get_shape()))

    def _plain(self, name: str, header: Header) -> Shape:
        if header.dtype not in FLOATS:
            shard, own = self._where[name]
            raise UnsupportedModel(
                f"{shard}: tensor {own} is of type {header.dtype}; supported: {', '.join(FLOATS)}"
            )
        return header.shape


def read_folder(folder: Path) -> tuple[dict, Sentences]:
    """The fields of a folder's `config.json` after `plain_rope`, with the settings of
    sentence-transformers as `sentence_transformers` where it is a model of vectors; and what their
    files say. Raises InvalidWeights or UnsupportedModel."""
    place = folder / "config.json"
    fields = plain_rope(read_json(place), str(place))
    pooled = "Pooling" in dict(read_steps(folder))
    if pooled or find(read_config(fields, str(place)).architecture).task == "embedding":
        sentences = sentence_settings(folder)
        return fields | {"sentence_transformers": sentences.settings}, sentences
    return fields, Sentences({}, [], {})


def _shards(path: Path) -> list[Path]:
    """The weight files: `path` itself if it is a file, those in the index, or all in the folder."""
    if path.is_file():
        return [path]
    index = path / INDEX
    if not index.exists():
        shards = sorted(path.glob("*.safetensors"))
        if not shards:
            pickled = sorted([*path.glob("*.bin"), *path.glob("*.pt"), *path.glob("*.pth")])
            what = f"{pickled[0].name} is {PICKLED}" if pickled else "get the model's weights so"
            raise WeightsNotFound(f"{path}: config.json is there, but no .safetensors file; {what}")
        return shards
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise InvalidWeights(f"{index}: has no weight_map from tensor names to files")
    shards = [path / name for name in sorted(set(weight_map.values()))]
    for shard in shards:
        if shard.parent != path:
            raise InvalidWeights(f"{index}: names the file {shard}, outside of its folder")
        if not shard.exists():
            raise InvalidWeights(f"{index}: names the shard {shard.name}, which is missing; get it")
    return shards


def open_safetensors(path: Path):
    """A handle of a file, whose header is checked. Raises InvalidWeights for a damaged one."""
    check_file(path)
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise InvalidWeights(
            f"{path}: cut short or not a safetensors file ({error}); get it again"
        ) from None
