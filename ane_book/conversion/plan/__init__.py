"""The plan of a conversion: every program and its bytes, before a weight is read.

`BundleBuilder` follows the same `Plan`, so that what is announced is what is written. A program is
a package, and a dispatch is one call of it: a token passes every program once.

    layers        as many layers in a program as the limit allows, then the head
    whole         all layers in one program, whatever the limit, then the head
    projections   each of a layer's seven matrices a program, each part of the head another; what
                  is between them is the host's, programs too, which count for no dispatch

`projections` is how the first complete language model on the engine was built, out of kernels of
one matrix each (maderix/ANE, pull request 26: Qwen2.5-0.5B in 24 x 7 of them, and the head).

Taught in chapter 4.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from ane_book import models
from ane_book.conversion.plan import limits
from ane_book.conversion.plan.shards import (
    blob_bytes,
    end_blobs,
    even_ranges,
    file_bytes,
    head_splits,
    host_blobs,
    layer_blobs,
    layer_ranges,
    projections,
)
from ane_book.conversion.quantize import SCHEMES, Scheme, find_scheme, loss_of, scheme_warning
from ane_book.errors import InvalidInput
from ane_book.models import DecoderConfig, find
from ane_book.options import Recipe
from ane_book.reference import find_reference, reference_models
from ane_book.weights import open_source, read_config, read_json

__all__ = ["Plan", "Program", "find_config", "plan"]

#: Bytes of memory that a conversion holds before any weight is read: Python, torch, coremltools.
#: Measured on Linux (a test holds a conversion to it).
IMPORTED = 650_000_000


@dataclass(frozen=True)
class Program:
    """One package: what it holds, and the bytes of its weight file.

    layers: those of a shard. projection: the one matrix that it has of them, or None for all.
    stretch: what the host runs between matrices, the n-th of its package; None for the device.
    parts: of the vocabulary, those of a program of the head.
    """

    package: str
    bytes: int
    layers: range = range(0)
    projection: str | None = None
    stretch: int | None = None
    parts: range = range(0)


@dataclass(frozen=True)
class Plan:
    """What a conversion writes, and what it takes.

    shards, head: in the order of a token's way. splits: rows of each part of the vocabulary.
    embedding_bytes: fp16, kept by the host.
    """

    config: DecoderConfig
    recipe: Recipe
    shards: tuple[Program, ...]
    head: tuple[Program, ...]
    splits: tuple[int, ...]

    @property
    def steps(self) -> tuple[Program, ...]:
        """All that a token passes, in order."""
        return self.shards + self.head

    @property
    def programs(self) -> tuple[Program, ...]:
        """Those of the device; as many calls does a token of decode take."""
        return tuple(step for step in self.steps if step.stretch is None)

    @property
    def packages(self) -> dict[str, int]:
        """Bytes of each package's weight file."""
        return {step.package: step.bytes for step in self.steps}

    @property
    def weight_bytes(self) -> int:
        return sum(self.packages.values())

    @property
    def is_tight(self) -> bool:
        """Whether a program with more than its planned bytes could be beyond the limit."""
        most = max(program.bytes for program in self.programs)
        return self.recipe.partition != "whole" and 2 * most > self.recipe.shard_limit

    @property
    def embedding_bytes(self) -> int:
        outer = find(self.config.architecture).outer(self.config)
        tables = [outer[name] for name in ("embedding", "positions") if name in outer]
        return sum(2 * prod(tensor.shape) for tensor in tables)

    @property
    def cache_bytes(self) -> int:
        """Of keys and values of the whole context, fp16."""
        config = self.config
        row = config.num_kv_heads * config.head_dim
        return 2 * 2 * config.num_layers * self.recipe.context * row

    @property
    def memory_bytes(self) -> int:
        """An estimate of the most that a conversion holds; `IMPORTED` says what it rests on.

        The embedding once as it is read and once in fp16 (4 + 2 bytes a weight); or two layers in
        float32, with the larger half of one about to be stored; or in fp16 the head, in float32 the
        rows of one program of it, and a part about to be stored.
        """
        config = self.config
        part = 8 * max(self.splits, default=0) * config.hidden_size
        rows = max((sum(self.rows(program).values()) for program in self.head), default=0)
        head = self.embedding_bytes + 4 * rows * config.hidden_size + part
        kinds = set(find(config.architecture).kinds(config))
        layer = 6 * max(sum(layer_blobs(config, SCHEMES["none"], kind)) for kind in kinds)
        return IMPORTED + max(3 * self.embedding_bytes, layer, head)

    def rows(self, program: Program) -> dict[int, int]:
        """Number and rows of each part of the vocabulary that a program holds."""
        return {i: self.splits[i] for i in program.parts}

    def groups(self) -> list[tuple[range, list[Program]]]:
        """Layers that are read together, each with the programs that come of them."""
        groups: dict[range, list[Program]] = {}
        for program in self.shards:
            groups.setdefault(program.layers, []).append(program)
        return list(groups.items())

    def facts(self) -> list[tuple[str, str]]:
        """The plan as lines: a heading, once, and a text."""
        config, recipe, calls = self.config, self.recipe, len(self.programs)
        more = ", and more of it to calibrate" if recipe.is_calibrated else ""
        return [
            ("model", f"{config.architecture}, {config.num_layers} layers"),
            ("recipe", f"{recipe.partition}, quant {recipe.quant}, head {recipe.quant_head}"),
            ("quality", _quality(recipe)),
            *_listed("shards", list(self._shown())),
            *_listed("head", list(self._heads())),
            ("embedding", f"{_size(self.embedding_bytes)}, fp16, kept by the host"),
            *_listed("cache", list(self._cache())),
            ("programs", f"{calls}, {_size(self.weight_bytes)} of weights in all"),
            ("per token", f"{calls} dispatches in decode")
            if self.head
            else ("per call", f"{calls} dispatches, up to {recipe.context} tokens"),
            ("to convert", f"about {self.memory_bytes / 1e9:.1f} GB of memory{more}"),
            *_listed("limits", list(self.notes())),
        ]

    def _heads(self) -> Iterator[str]:
        if self.head:
            low, high = min(self.splits), max(self.splits)
            rows = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            sizes = [program.bytes for program in self.head if program.parts]
            several = f" in {len(sizes)} programs, the largest" if len(sizes) > 1 else ""
            yield f"{len(self.splits)} parts of {rows} rows{several}: {_size(max(sizes))}"

    def _cache(self) -> Iterator[str]:
        if self.head:
            yield f"{_size(self.cache_bytes)}, for a context of {self.recipe.context}"

    def _shown(self) -> Iterator[str]:
        """The shards in words; of projections those of one layer, since all layers are equal."""
        for shard in self.shards:
            layers = f"layers {shard.layers.start} to {shard.layers.stop - 1}"
            if shard.projection is None and shard.stretch is None:
                yield f"{layers}: {_size(shard.bytes)}"
            elif shard.layers.start == 0 and shard.projection:
                yield f"{shard.projection} of every layer: {_size(shard.bytes)}"

    def notes(self) -> Iterator[str]:
        """What the evidence says of this plan, where it touches a limit."""
        largest, smallest = (
            choose(self.programs, key=lambda program: program.bytes) for choose in (max, min)
        )
        for limit in limits.WEIGHTS:
            if largest.bytes > limit.value:
                yield limit.note(f"{largest.package}, {_size(largest.bytes)}")
        small = [p for p in self.programs if p.bytes < limits.SMALL.value]
        if small:
            where = f"{len(small)} of {len(self.programs)} programs, from {_size(smallest.bytes)}"
            yield limits.SMALL.note(where)
        if self.weight_bytes > limits.LOADED.value:
            yield limits.LOADED.note(f"{_size(self.weight_bytes)} in all")
        for limit in limits.AXIS:
            if self._longest > limit.value:
                yield limit.note(f"an axis of {self._longest:,}")
        if len(self.programs) > limits.MANY:
            yield limits.CALLS.note(f"{len(self.programs)} dispatches a token")
        if warning := scheme_warning(self.recipe.quant, self.recipe.quant_head):
            yield warning

    @property
    def _longest(self) -> int:
        """The longest axis of a weight, fused as in the program."""
        if self.recipe.partition == "projections":
            shapes = list(projections(self.config).values())
        else:
            parameters = find(self.config.architecture).parameters(self.config).values()
            shapes = [(sum(p.given[0] for p in parts), *parts[0].given[1:]) for parts in parameters]
        return max([axis for shape in shapes for axis in shape] + list(self.splits))


def plan(config: DecoderConfig, recipe: Recipe) -> Plan:
    """Cut a model by a recipe.

    Raises InvalidInput when a layer or a projection is beyond the limit, or `argmax_output` needs
    the head in one program and it does not fit.
    """
    scheme, head_scheme = find_scheme(recipe.quant), find_scheme(recipe.quant_head)
    if "experts" in type(config).model_fields:
        config = config.model_copy(update={"experts": recipe.experts})
    cut = _projections if recipe.partition == "projections" else _shards
    shards = tuple(cut(config, recipe, scheme))
    splits, head = (), []
    if find(config.architecture).task == "text-generation":
        splits, head = _head(config, recipe, head_scheme)
    return Plan(config, recipe, shards, tuple(head), splits)


def _shards(config: DecoderConfig, recipe: Recipe, scheme: Scheme) -> Iterator[Program]:
    whole = recipe.partition == "whole"
    everything = [range(config.num_layers)]
    kinds = find(config.architecture).kinds(config)
    blobs = {kind: layer_blobs(config, scheme, kind) for kind in set(kinds)}
    for layers in everything if whole else layer_ranges(config, recipe.shard_limit, scheme):
        name = f"layers_{layers.start:02d}-{layers.stop:02d}.mlpackage"
        first = [] if layers.start else end_blobs(config, "first")
        last = end_blobs(config, "last") if layers.stop == config.num_layers else []
        size = file_bytes([*first, *(blob for i in layers for blob in blobs[kinds[i]]), *last])
        yield Program(name, size, layers)


def _projections(config: DecoderConfig, recipe: Recipe, scheme: Scheme) -> Iterator[Program]:
    architecture, sizes = find(config.architecture), dict(_matrix_bytes(config, scheme))
    for name, size in sizes.items():
        if size > recipe.shard_limit:
            raise InvalidInput(
                f"projection {name} has {size / 1e6:.1f} MB of weights, more than the shard "
                f"limit of {recipe.shard_limit / 1e6:.1f} MB; raise the limit"
            )
    for layer, kind in enumerate(architecture.kinds(config)):
        layers, package = range(layer, layer + 1), f"layer_{layer:02d}_{{}}.mlpackage".format
        host = Program(package("host"), file_bytes(host_blobs(config, kind)), layers)
        matrices = architecture.matrices(config).values()
        for stretch, names in enumerate(matrices):
            yield replace(host, stretch=stretch)
            for name in names:
                yield Program(package(name), sizes[name], layers, name)
        yield replace(host, stretch=len(matrices))


def _matrix_bytes(config: DecoderConfig, scheme: Scheme) -> Iterator[tuple[str, int]]:
    """Every matrix of a layer, with the bytes of its program's weight file."""
    architecture = find(config.architecture)
    parameters = architecture.parameters(config)
    for projection, matrices in architecture.matrices(config).items():
        for name, (outputs, inputs) in matrices.items():
            blobs = blob_bytes((outputs, inputs, 1, 1), scheme)
            if f"{projection}.bias" in parameters:
                blobs += blob_bytes((outputs,), SCHEMES["none"])
            yield name, file_bytes(blobs)


def _head(
    config: DecoderConfig, recipe: Recipe, scheme: Scheme
) -> tuple[tuple[int, ...], list[Program]]:
    """Rows of each part of the vocabulary, and the programs that hold them."""
    C, limit = config.hidden_size, recipe.shard_limit
    own = recipe.partition == "projections"  # a program for every part, the norm on the host
    norm = blob_bytes((C,), SCHEMES["none"])

    def size(splits: tuple[int, ...]) -> int:
        parts = [blob for rows in splits for blob in blob_bytes((rows, C, 1, 1), scheme)]
        return file_bytes(parts if own else norm + parts)

    splits = head_splits(config.vocab_size, recipe.head_rows)
    most = len(splits)  # parts in one program
    if recipe.partition != "whole":
        while max(splits) > 1 and size(splits[-1:]) > limit:
            splits = head_splits(config.vocab_size, max(splits) - 1)
        most = max(n for n in range(1, len(splits) + 1) if n == 1 or size(splits[-n:]) <= limit)
    ranges = even_ranges(len(splits), 1 if own else most)
    if recipe.argmax_output and len(ranges) > 1:
        raise InvalidInput(
            f"argmax_output picks the token inside one program, and the head makes {len(ranges)} "
            f"(partition {recipe.partition}, {size(splits) / 1e6:.1f} MB, shard limit "
            f"{limit / 1e6:.1f} MB); leave it out, or choose layers and a higher limit"
        )
    one = len(ranges) == 1
    host = [Program("head_host.mlpackage", file_bytes(norm), stretch=0)] if own else []
    return splits, host + [
        Program(
            "head.mlpackage" if one else f"head_{i:02d}.mlpackage",
            size(splits[part.start : part.stop]),
            parts=part,
        )
        for i, part in enumerate(ranges)
    ]


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _listed(heading: str, texts: list[str]) -> list[tuple[str, str]]:
    return [(heading if i == 0 else "", text) for i, text in enumerate(texts)]


def _quality(recipe: Recipe) -> str:
    if recipe.is_plain:
        return "as the source, rounded to fp16"
    return f"{loss_of(recipe.quant, recipe.quant_head)}, on SmolLM2-135M"


def find_config(model: str) -> DecoderConfig:
    """The configuration of what `convert` takes, without its weights.

    model: a reference model's name, a `.gguf` file, or a folder with config.json. Raises
    UnknownModel, WeightsNotFound, InvalidWeights or UnsupportedModel.
    """
    path = Path(model)
    if model in reference_models() or not path.exists():
        return models.read_config(find_reference(model).config)
    file = path / "config.json"
    if not file.exists():
        return models.read_config(open_source(path).config())
    return read_config(read_json(file), str(file))
