"""The bundle: a folder that holds a converted model and everything needed to run it.

    manifest.json       what it is for, its programs as they are, what the host does; where it came
                        from and how it was converted
    layers_00-30.mlpackage ...   layers 0 to 29: functions `decode` (T = 1), `prefill` (T = 64)
    head.mlpackage      final norm and vocabulary projection, the same two functions; head_0,
                        head_1, ... where the shard limit cuts it
    head.aimodel, ...   where they were asked for, the same programs as assets of Core AI
    embedding.npy       float16 (V, C), memory-mapped by the host; an encoder has positions.npy,
                        too, and a decoder whose layers have inputs of their own per_layer.npy
    tokenizer.json      as Hugging Face `tokenizers` reads it
    golden.npz          reference: token ids, hidden state after every shard, last logits and argmax
                        of every position, from PyTorch with the weights in fp16, whatever `quant`
                        makes of them in the packages
    evidence.json       what checks have shown of it since, in four levels

Where the experts of a mixture are apart, each is a package (layer_00_expert_000.mlpackage, ...),
and the layers around them are trunk_00.mlpackage, ...

It is the contract between conversion and everything after it: written whole or not at all, and not
trusted when it is opened. Sizes are checked against the files before memory is taken for them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
import hashlib
import json
import os
from pathlib import Path
import stat
from typing import TYPE_CHECKING

from ane_book.bundle.evidence import (
    Evidence,
    Level,
    LevelName,
    evidence_lock,
    other_format,
    read_evidence,
    write_evidence,
)
from ane_book.bundle.manifest import FORMAT, Manifest
from ane_book.bundle.npy import map_array, read_arrays
from ane_book.bundle.parts import Embedding
from ane_book.errors import (
    InvalidBundle,
    InvalidInput,
    UnsupportedModel,
    first_fault,
    refuse_pointer,
)
from ane_book.options import Recipe
from mlprogram.files import regular_files, sha256, telling, written_whole
import numpy as np
from pydantic import ValidationError

if TYPE_CHECKING:
    from ane_book.models.base.config import ModelConfig

MAX_MANIFEST = 1 << 24  # bytes; a thousand layers, each a package, need less

#: The tasks of bundles: what such a model does, and the command for it.
TASKS = {
    "text-generation": ("generates text", "run {model} PROMPT"),
    "embedding": ("makes vectors of texts", "embed --model {model} TEXT"),
    "token-classification": ("labels what is private in texts", "redact --model {model} FILE"),
}


def check_task(model: object, found: str, wanted: str) -> None:
    """Raise InvalidInput where a model is for another task than the one that is wanted."""
    if found != wanted:
        does, command = TASKS[found]
        raise InvalidInput(f"{model} {does}: `ane-book {command.format(model=model)}`")


def opened(bundle: "Bundle | str | Path", task: str, force: bool = False) -> "Bundle":
    """Open a bundle, given as one or as its folder, to use it for a task.

    Raises InvalidInput if it is for another task, and InvalidBundle, unless forced, if by its
    evidence.json it failed parity with the model that it was made of.
    """
    bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    check_task(bundle.path, bundle.manifest.task, task)
    parity = bundle.evidence.levels["L1"]
    if parity.status == "failed" and not force:
        raise InvalidBundle(
            f"{bundle.path}: failed L1 parity on {parity.date}: {parity.reason}; convert the model "
            "again, or open it as it is by force=True in Python"
        )
    return bundle


def seal(fields: dict) -> str:
    """sha256 of what manifest.json says, the seal itself left out."""
    sealed = {name: value for name, value in fields.items() if name != "seal"}
    return hashlib.sha256(json.dumps(sealed, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, eq=False)
class Bundle:
    """An opened bundle."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path) -> "Bundle":
        """Open a bundle's folder, and check what can be checked without reading all of it.

        Raises InvalidBundle when the manifest cannot be read, is not one of ours or contradicts
        itself, or when a file is missing, cut short, or no regular file. That the packages have the
        manifest's shapes is checked by whoever opens them (`Session`), their bytes by `verify`.
        """
        path = Path(path)
        bundle, sizes = cls(path, read_manifest(path)), regular_files(path)
        for name, size in bundle.manifest.files.items():
            if sizes.get(name) != size:
                state = "is missing, or no regular file"
                if name in sizes:
                    refuse_pointer(path / name, InvalidBundle)
                    state = f"has {sizes[name]:,} bytes"
                raise InvalidBundle(
                    f"{path / name} {state}; manifest.json says {size:,} bytes; convert the "
                    "model again"
                )
        _ = bundle.embedding, bundle.per_layer, bundle.positions
        return bundle

    @cached_property
    def config(self) -> "ModelConfig":
        """The model in numbers, for people and for `conversion`; running a bundle needs none.

        Raises InvalidBundle.
        """
        from ane_book.models import find  # every architecture, and a session needs none

        fields = self.manifest.model
        try:
            return find(fields.get("architecture")).Config.model_validate(fields)
        except (UnsupportedModel, ValidationError) as error:
            reason = str(error).replace("\n", " ")[:300]
            raise InvalidBundle(f"{self.path / 'manifest.json'}: model: {reason}") from None

    @property
    def recipe(self) -> Recipe:
        return self.manifest.recipe

    @cached_property
    def embedding(self) -> np.ndarray:
        """The embedding (V, C), float16, memory-mapped."""
        return self._table(self.manifest.embedding)

    @cached_property
    def per_layer(self) -> np.ndarray | None:
        """What tokens give to all layers (V, L * P), float16, memory-mapped; None without any."""
        table = self.manifest.per_layer
        return None if table is None else self._table(table)

    @cached_property
    def positions(self) -> np.ndarray | None:
        """An encoder's rows by place in a text (context, C), float16, memory-mapped; None without
        any."""
        vectors = self.manifest.vectors
        table = None if vectors is None else vectors.positions
        return None if table is None else self._table(table)

    def _table(self, table: Embedding) -> np.ndarray:
        return map_array(self.path / table.file, table.shape, np.float16)

    def golden(self) -> dict[str, np.ndarray]:
        """Read the reference results of PyTorch, by name.

        All have `tokens` (T,) and `hidden` (n + 1, C, T), the hidden state before the first shard
        and after each of the n. A decoder has `logits` (V,) of the last token, `argmax` (T,) of
        every one, and (R, T) of any other value that shards hand on. An encoder has the `vector`
        (E,) of the tokens, or `logits` (N, T) of N labels.

        Where experts are programs, there are the inputs of every layer's experts, `x` (L, C, T) and
        `gates` (L, E, T), their sum `y` (L, C, T), and in `experts` (L, E, C) each one's output for
        the first token with a gate of 1.
        """
        manifest, (V, C) = self.manifest, self.manifest.embedding.shape
        T = manifest.functions.get("prefill", self.recipe.golden_tokens)
        stages = len({part.layers[1] for part in self.manifest.shards if part.layers})
        types = {"tokens": ((T,), np.int64), "hidden": ((stages + 1, C, T), np.float32)}
        if counts := manifest.experts:
            L, E = len(counts), counts[0]
            shapes = {"x": (L, C, T), "gates": (L, E, T), "y": (L, C, T), "experts": (L, E, C)}
            types |= {name: (shape, np.float32) for name, shape in shapes.items()}
        if manifest.vectors:
            types |= {"vector": ((manifest.vector_size,), np.float32)}
        elif manifest.tags:
            types |= {"logits": ((len(manifest.tags.labels), T), np.float32)}
        else:
            types |= {"logits": ((V,), np.float32), "argmax": ((T,), np.int64)}
            types |= {n: ((R, T), np.float32) for n, R in manifest.handed.items()}
        return read_arrays(self.path / self.manifest.golden, types)

    @property
    def evidence(self) -> Evidence:
        """What evidence.json says now; raises InvalidBundle where it is damaged."""
        return read_evidence(self.path, self.manifest.seal)

    def record(self, name: LevelName, level: Level) -> Level:
        """Put one level ("L0" to "L3") into evidence.json unless what is there is stronger.

        The others stay as they are. Returns the level that holds: this one, or that which was
        there. Writes nothing if the folder cannot be written to.
        """
        with evidence_lock(self.path):
            evidence = self.evidence
            if not evidence.levels[name].gives_way_to(level, name):
                return evidence.levels[name]
            if os.access(self.path, os.W_OK):
                levels = evidence.levels | {name: level}
                write_evidence(self.path, evidence.model_copy(update={"levels": levels}))
        return level

    def add_files(self, names: Iterable[str], **changed: dict) -> None:
        """Put files that were written beside the others into manifest.json, and what else changes
        with them, under a new seal.

        The evidence is of the same packages, and stays. Raises InvalidBundle.
        """
        evidence, path = self.evidence, self.path / "manifest.json"
        fields, sizes = json.loads(path.read_bytes()) | changed, regular_files(self.path)
        for name in names:
            fields["files"][name] = sizes[name]
            fields["sha256"][name] = sha256(self.path / name)
        fields["seal"] = seal(fields)
        with telling(path), written_whole(path) as unfinished:
            unfinished.write_text(json.dumps(fields, indent=2) + "\n")
        write_evidence(self.path, evidence.model_copy(update={"bundle": fields["seal"]}))

    def verify(self) -> None:
        """Read every file, and raise InvalidBundle with the names of those that have changed."""
        changed = []
        for name, expected in self.manifest.sha256.items():
            try:
                actual = sha256(self.path / name)
            except OSError as error:
                raise InvalidBundle(f"{self.path / name}: {error.strerror}") from None
            if actual != expected:
                changed.append(name)
        if self.manifest.seal != seal(json.loads((self.path / "manifest.json").read_bytes())):
            changed.append("manifest.json")
        if changed:
            raise InvalidBundle(
                f"{self.path}: not as it was written: {', '.join(changed)}; convert the model again"
            )


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest.json of a bundle's folder; raises InvalidBundle."""
    path = folder / "manifest.json"
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_MANIFEST:
            raise InvalidBundle(
                f"{path}: not a regular file of at most {MAX_MANIFEST:,} bytes, so not a bundle's"
            )
        text = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidBundle(
            f"{folder}: no manifest.json ({reason}), so not a bundle; give a folder that "
            "`ane-book convert` wrote"
        ) from None
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        first, what = error.errors(include_url=False)[0], first_fault(error)
    mend = "convert the model again"
    if first["loc"] == ("format",):
        what = other_format(first["input"], FORMAT)
        mend = f"{mend}: `ane-book convert MODEL --out {folder} --force`"
    raise InvalidBundle(f"{path}: {what}; {mend}")
