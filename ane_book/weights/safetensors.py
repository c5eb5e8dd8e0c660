"""Safetensors: a Hugging Face folder, one weight file or several with an index.

    config.json          what the model is
    model.safetensors    the tensors; or model.safetensors.index.json, which says which of several
                         files (shards) holds which tensor
    tokenizer.json       with tokenizer_config.json, chat_template.jinja, generation_config.json:
                         how to talk to it
    modules.json         of an encoder: how texts become vectors (`ane_book.weights.sentences`)

The package `safetensors` maps the files and checks their headers; torch decodes bfloat16, which
numpy does not have. Reference: https://huggingface.co/docs/safetensors.
"""

from copy import deepcopy
from pathlib import Path

from ane_book.errors import InvalidInput, InvalidWeights, UnsupportedModel, WeightsNotFound
from ane_book.models import find
from ane_book.text.process import TextProcess
from ane_book.weights import (
    Shape,
    TokenizerFiles,
    WeightSource,
    check_file,
    check_tensors,
    first_fault,
    plain_rope,
    read_config,
    read_json,
    read_text,
)
from ane_book.weights.sentences import sentence_files, sentence_settings
from ane_book.weights.tokenizer import with_stops
import numpy as np
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open

__all__ = ["SafetensorsSource"]

INDEX = "model.safetensors.index.json"
DTYPES = ("F32", "F16", "BF16")  # safetensors' names

#: What folders of older `transformers` hold beside the parameters: tables anyone can compute.
BUFFERS = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")


class SafetensorsSource(WeightSource):
    """A folder with `config.json` and `*.safetensors`, or one such file beside `config.json`."""

    kind = "safetensors"

    def __init__(self, path: Path):
        """Raises WeightsNotFound, InvalidWeights or UnsupportedModel; reads headers only."""
        self._folder = path if path.is_dir() else path.parent
        place = self._folder / "config.json"
        if not place.exists():
            raise WeightsNotFound(f"{place} is missing; safetensors need it beside them")
        self._config = plain_rope(read_json(place), str(place))
        config = read_config(self._config, str(place))
        architecture = find(config.architecture)
        sentences = []
        if architecture.task == "embedding":
            sentences = sentence_files(self._folder)
            self._config["sentence_transformers"] = sentence_settings(self._folder)
            config = read_config(self._config, str(place))
        shards = _shards(path)
        self.files = [place, *shards, *self._tokenizer_paths(), *sentences]
        self._open = {shard: _open(shard) for shard in shards}
        self._where = self._locate(architecture.repeats(config))
        self._shapes = architecture.tensors(config)
        found = {name: self._header(name) for name in self._where}
        check_tensors(found, self._shapes, str(path))

    def names(self) -> list[str]:
        return list(self._shapes)

    def shape(self, name: str) -> Shape:
        self._find(name)
        return self._shapes[name]

    def tensor(self, name: str) -> np.ndarray:
        stored = self._open[self._find(name)].get_tensor(name)  # a view of the mapped file
        return np.array(stored.float().numpy())

    def config(self) -> dict:
        return deepcopy(self._config)

    def tokenizer(self) -> TokenizerFiles:
        path = self._folder / "tokenizer.json"
        if not path.exists():
            raise UnsupportedModel(
                f"{path} is missing and no other form of tokenizer is read, but `transformers` "
                "can write it: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            )
        text, tokenizer = read_text(path), TextProcess()
        try:
            tokenizer.load(path)
        except InvalidInput as error:
            raise InvalidWeights(f"{path}: {error}") from None
        settings = self._optional("tokenizer_config.json")
        generation = self._config | self._optional("generation_config.json")
        try:
            files = TokenizerFiles(
                json=text,
                chat_template=self._chat_template(settings),
                eos_token_ids=_ids(generation.get("eos_token_id")),
                bos_token_id=next(iter(_ids(generation.get("bos_token_id"))), None),
                bos_token=_token(settings.get("bos_token")),
                eos_token=_token(settings.get("eos_token")),
            )
        except ValidationError as error:
            raise InvalidWeights(f"{self._folder}: tokenizer: {first_fault(error)}") from None
        return with_stops(files, tokenizer)

    def _tokenizer_paths(self) -> list[Path]:
        names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
        paths = [self._folder / name for name in (*names, "generation_config.json")]
        return [path for path in paths if path.exists()]

    def _optional(self, name: str) -> dict:
        path = self._folder / name
        return read_json(path) if path.exists() else {}

    def _chat_template(self, settings: dict) -> str | None:
        """A file of its own, or a field: one template, or several of which one is the default."""
        path = self._folder / "chat_template.jinja"
        if path.exists():
            return read_text(path)
        template = settings.get("chat_template")
        if isinstance(template, list):
            named = [entry for entry in template if isinstance(entry, dict)]
            return next((e.get("template") for e in named if e.get("name") == "default"), None)
        return template

    def _locate(self, repeats: frozenset[str]) -> dict[str, Path]:
        """Tensor name -> shard, without what is in another tensor as well."""
        where: dict[str, Path] = {}
        for shard, file in self._open.items():
            for name in file.keys():  # noqa: SIM118 - a handle, not a dict
                if name.endswith(BUFFERS) or name in repeats:
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

    def _find(self, name: str) -> Path:
        if name not in self._where:
            raise InvalidWeights(f"{self._folder}: there is no tensor {name}")
        return self._where[name]


def _shards(path: Path) -> list[Path]:
    """The weight files: the one that was named, those of the index, or all there are."""
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


def _token(entry: str | dict | None) -> str | None:
    """tokenizer_config.json writes a special token as its text or as an object with its flags."""
    return entry.get("content") if isinstance(entry, dict) else entry


def _ids(entry: int | list | None) -> tuple[int, ...]:
    """generation_config.json writes one id or a list."""
    if entry is None:
        return ()
    return tuple(entry) if isinstance(entry, list) else (entry,)
