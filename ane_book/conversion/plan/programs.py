"""The programs of a plan, each a package: what it holds, and the bytes of its weight files."""

from collections.abc import Iterator
from dataclasses import dataclass

from ane_book.conversion.plan.shards import (
    blob_bytes,
    end_blobs,
    even_ranges,
    expert_blobs,
    head_splits,
    layer_blobs,
    layer_ranges,
    trunk_blobs,
)
from ane_book.conversion.quantize import SCHEMES, Scheme
from ane_book.errors import InvalidInput
from ane_book.models import DecoderConfig, find
from ane_book.options import Recipe
from mlprogram.package.weight_file import HEADER
from mlprogram.package.weight_files import file_sizes


@dataclass(frozen=True)
class Program:
    """One package: what it holds, and the bytes of each of its weight files.

    layers: empty for the head. parts: of the vocabulary, for a program of the head. trunk: the
    number of the layer whose experts come after this trunk. expert: the expert's number in its
    layer. trunk and expert are None for all other programs.
    """

    package: str
    files: tuple[int, ...]
    layers: range = range(0)
    parts: range = range(0)
    trunk: int | None = None
    expert: int | None = None

    @property
    def bytes(self) -> int:
        """Bytes of its weight files together."""
        return sum(self.files)

    @property
    def is_whole(self) -> bool:
        """Whether it has whole layers: it is a shard, no trunk or expert."""
        return bool(self.layers) and self.expert is None and self.trunk is None

    @property
    def has_cache(self) -> bool:
        """Whether, in a decoder, its functions exist once for every tier of the cache."""
        return self.expert is None and not self.parts


def cut_shards(config: DecoderConfig, recipe: Recipe, scheme: Scheme) -> Iterator[Program]:
    whole = recipe.partition == "whole"
    everything = [range(config.num_layers)]
    kinds = find(config.architecture).kinds(config)
    blobs = {kind: layer_blobs(config, scheme, kind) for kind in set(kinds)}
    for layers in everything if whole else layer_ranges(config, recipe.shard_limit, scheme):
        name = f"layers_{layers.start:02d}-{layers.stop:02d}.mlpackage"
        first = [] if layers.start else end_blobs(config, "first")
        last = end_blobs(config, "last") if layers.stop == config.num_layers else []
        own = [*first, *(blob for i in layers for blob in blobs[kinds[i]]), *last]
        yield Program(name, file_sizes(own), layers)


def cut_experts(
    config: DecoderConfig, recipe: Recipe, scheme: Scheme, count: int
) -> Iterator[Program]:
    """Cut every layer at its mixture of `count` experts: a package for each expert and trunk.

    Trunk n has the end of layer n - 1, after its mixture, and the start of layer n, before its own.
    There are L + 1 trunks; the last one also has what comes after all layers.
    """
    architecture, L = find(config.architecture), config.num_layers
    kinds = architecture.kinds(config)
    sides = {kind: trunk_blobs(config, scheme, kind) for kind in set(kinds)}
    one = file_sizes(expert_blobs(config, scheme))
    after = end_blobs(config, "first")
    for n in range(L + 1):
        before = sides[kinds[n]][0] if n < L else end_blobs(config, "last")
        # What is behind the last experts may have no weights, and an empty file has a header.
        files = file_sizes([*after, *before]) or (HEADER.size,)
        _check(files, recipe, f"what is around the experts of layer {n}")
        yield Program(f"trunk_{n:02d}.mlpackage", files, range(n, min(n + 1, L)), trunk=n)
        if n == L:
            return
        after = sides[kinds[n]][1]
        _check(one, recipe, f"an expert of layer {n}")
        for expert in range(count):
            package = f"layer_{n:02d}_expert_{expert:03d}.mlpackage"
            yield Program(package, one, range(n, n + 1), expert=expert)


def _check(files: tuple[int, ...], recipe: Recipe, what: str) -> None:
    if (size := sum(files)) > recipe.shard_limit:
        raise InvalidInput(
            f"{what} has {size / 1e6:.1f} MB of weights, more than the shard limit of "
            f"{recipe.shard_limit / 1e6:.1f} MB; raise the limit"
        )


def cut_head(
    config: DecoderConfig, recipe: Recipe, scheme: Scheme
) -> tuple[tuple[int, ...], tuple[Program, ...]]:
    """Rows of each part of the vocabulary, and the programs that hold them; an encoder has none."""
    if find(config.architecture).task != "text-generation":
        return (), ()
    C, limit = config.hidden_size, recipe.shard_limit
    norm = blob_bytes((C,), SCHEMES["none"])

    def files(splits: tuple[int, ...]) -> tuple[int, ...]:
        parts = [blob for rows in splits for blob in blob_bytes((rows, C, 1, 1), scheme)]
        return file_sizes(norm + parts)

    def size(splits: tuple[int, ...]) -> int:
        return sum(files(splits))

    splits = head_splits(config.vocab_size, recipe.head_rows)
    most = len(splits)  # parts in one program
    if recipe.partition != "whole":
        while max(splits) > 1 and size(splits[-1:]) > limit:
            splits = head_splits(config.vocab_size, max(splits) - 1)
        most = max(n for n in range(1, len(splits) + 1) if n == 1 or size(splits[-n:]) <= limit)
    ranges = even_ranges(len(splits), most)
    if recipe.argmax_output and len(ranges) > 1:
        raise InvalidInput(
            f"argmax_output picks the token inside one program, and the head makes {len(ranges)} "
            f"(partition {recipe.partition}, {size(splits) / 1e6:.1f} MB, shard limit "
            f"{limit / 1e6:.1f} MB); leave it out, or choose layers and a higher limit"
        )
    one = len(ranges) == 1
    names = ["head.mlpackage"] if one else [f"head_{i:02d}.mlpackage" for i in range(len(ranges))]
    return splits, tuple(
        Program(name, files(splits[part.start : part.stop]), parts=part)
        for name, part in zip(names, ranges, strict=True)
    )


def cut_pooled(config: DecoderConfig) -> tuple[Program, ...]:
    """The program of what is of texts' pooled columns, if there is anything."""
    blobs = end_blobs(config, "pooled")
    return (Program("head.mlpackage", file_sizes(blobs)),) if blobs else ()
