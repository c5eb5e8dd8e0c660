"""Read a Hugging Face folder with safetensors: one weight file, or several with an index.

    config.json          the architecture and its hyperparameters
    model.safetensors    the tensors; or model.safetensors.index.json, which says which of several
                         files (shards) holds which tensor
    tokenizer.json       the tokenizer, with tokenizer_config.json, chat_template.jinja and
                         generation_config.json
    modules.json         for an encoder: how texts become vectors (`ane_book.weights.sentences`)

The package `safetensors` maps the files and checks their headers; torch decodes bfloat16, which
numpy does not have. Reference: https://huggingface.co/docs/safetensors.
"""

from copy import deepcopy
from pathlib import Path

from ane_book.errors import InvalidWeights, UnsupportedModel, WeightsNotFound
from ane_book.models import find
from ane_book.weights.folder import read_tokenizer, tokenizer_paths
from ane_book.weights.scales import refuse_static_scales
from ane_book.weights.sentences import sentence_files, sentence_settings
from ane_book.weights.source import (
    Shape,
    TokenizerFiles,
    WeightSource,
    check_file,
    check_tensors,
    plain_rope,
    read_config,
    read_json,
)
import numpy as np
from safetensors import SafetensorError, safe_open

__all__ = ["SafetensorsSource"]

INDEX = "model.safetensors.index.json"
DTYPES = ("F32", "F16", "BF16")  # safetensors' names

#: Tables that older `transformers` stored beside the parameters, and that are not needed.
BUFFERS = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")


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
        self._config = plain_rope(read_json(place), str(place))
        config = read_config(self._config, str(place))
        architecture = find(config.architecture)
        sentences = []
        if architecture.task == "embedding":
            sentences = sentence_files(self._folder)
            self._config["sentence_transformers"] = sentence_settings(self._folder)
            config = read_config(self._config, str(place))
        shards = _shards(path)
        self.files = [place, *shards, *tokenizer_paths(self._folder), *sentences]
        self._open = {shard: _open(shard) for shard in shards}
        self._where = self._locate(architecture.repeats(config), architecture.left_out)
        self._shapes = architecture.tensors(config)
        refuse_static_scales(self._config, self._where, str(path))
        found = {name: self._header(name) for name in self._where}
        check_tensors(found, self._shapes, str(path))

    def _read(self, name: str) -> np.ndarray:
        stored = self._open[self._where[name]].get_tensor(name)  # a view of the mapped file
        return np.array(stored.float().numpy())

    def config(self) -> dict:
        return deepcopy(self._config)

    def tokenizer(self) -> TokenizerFiles:
        return read_tokenizer(self._folder, self._config)

    def _locate(self, repeats: frozenset[str], left_out: tuple[str, ...]) -> dict[str, Path]:
        """Tensor name -> the shard that holds it, without `repeats`, `BUFFERS` and what is of
        another model."""
        where: dict[str, Path] = {}
        for shard, file in self._open.items():
            for name in file.keys():  # noqa: SIM118 - a handle, not a dict
                if name.endswith(BUFFERS) or name in repeats or name.startswith(left_out):
                    continue
                if name in where:
                    raise InvalidWeights(f"{shard}: tensor {name} is in {where[name].name} as well")
                where[name] = shard
        return where

    def _header(self, name: str) -> Shape:
        header = self._open[self._where[name]].get_slice(name)
        if header.get_dtype() not in DTYPES:
            raise UnsupportedModel(
                f"{self._where[name]}: tensor {name} is of type {header.get_dtype()}; "
                f"supported: {', '.join(DTYPES)}"
            )
        return tuple(header.get_shape())


def _shards(path: Path) -> list[Path]:
    """The weight files: `path` itself if it is a file, those in the index, or all in the folder."""
    if path.is_file():
        return [path]
    index = path / INDEX
    if not index.exists():
        shards = sorted(path.glob("*.safetensors"))
        if not shards:
            raise WeightsNotFound(f"{path}: config.json is there, but no .safetensors file")
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


def _open(path: Path):
    check_file(path)
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise InvalidWeights(
            f"{path}: cut short or not a safetensors file ({error}); get it again"
        ) from None
