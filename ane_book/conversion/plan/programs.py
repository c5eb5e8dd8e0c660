"""The programs of a plan, each a package: what it holds, and the bytes of its weight files.

Layers are cut into packages by bytes, the vocabulary into parts by rows. All sizes are those of the
weight files as they will be written, quantised or not.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, prod

from ane_book.conversion.quantize.schemes import SCHEMES, Scheme
from ane_book.errors import InvalidInput
from ane_book.models import DecoderConfig, find
from ane_book.models.base.architecture import FULL, TensorSpec
from ane_book.models.base.experts import Experts, even_ranges
from ane_book.options import Recipe
from mlprogram.package.weight_file import HEADER, stored_bytes
from mlprogram.package.weight_files import ALIGNMENT, file_sizes
import numpy as np


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
    """Whole layers: as many in a program as the limit allows, evenly spread, or all of them."""
    kinds, L = find(config.architecture).kinds(config), config.num_layers
    blobs = {kind: layer_blobs(config, scheme, kind) for kind in set(kinds)}
    first, last = end_blobs(config, "first"), end_blobs(config, "last")
    most = L
    if recipe.partition != "whole":
        largest = max(blobs.values(), key=lambda own: sum(file_sizes(own)))
        one = file_sizes(first + last + largest)
        check_limit(one, recipe, "one layer")
        more = sum(file_sizes(first + last + largest * 2)) - sum(one)
        most = 1 + (recipe.shard_limit - sum(one)) // more
    for layers in even_ranges(L, most):
        own = [blob for i in layers for blob in blobs[kinds[i]]]
        own = (first if layers.start == 0 else []) + own + (last if layers.stop == L else [])
        name = f"layers_{layers.start:02d}-{layers.stop:02d}.mlpackage"
        yield Program(name, file_sizes(own), layers)


def cut_experts(
    config: DecoderConfig, recipe: Recipe, scheme: Scheme, mixture: Experts
) -> Iterator[Program]:
    """Cut every layer at its mixture of experts: a package for each expert and trunk.

    Trunk n has the end of layer n - 1, after its mixture, and the start of layer n, before its own.
    There are L + 1 trunks; the last one also has what comes after all layers.
    """
    kinds, L = find(config.architecture).kinds(config), config.num_layers

    def blobs(kind: str, has: Callable[[str], bool]) -> list[int]:
        return layer_blobs(config, scheme, kind, has)

    one = file_sizes(blobs(FULL, lambda name: name.startswith("mixture.groups.0.")))
    after, elsewhere = end_blobs(config, "first"), ("mixture.", *mixture.after)
    for n in range(L + 1):
        before = end_blobs(config, "last")
        if n < L:
            before = blobs(kinds[n], lambda name: not name.startswith(elsewhere))
        # What is behind the last experts may have no weights, and an empty file has a header.
        files = file_sizes([*after, *before]) or (HEADER.size,)
        check_limit(files, recipe, f"what is around the experts of layer {n}")
        yield Program(f"trunk_{n:02d}.mlpackage", files, range(n, min(n + 1, L)), trunk=n)
        if n == L:
            return
        after = blobs(kinds[n], lambda name: name.startswith(mixture.after))
        check_limit(one, recipe, f"an expert of layer {n}")
        for expert in range(mixture.count):
            package = f"layer_{n:02d}_expert_{expert:03d}.mlpackage"
            yield Program(package, one, range(n, n + 1), expert=expert)


def check_limit(files: tuple[int, ...], recipe: Recipe, what: str) -> None:
    """Raise InvalidInput for weight files that are more than a program may have."""
    if (size := sum(files)) > recipe.shard_limit:
        raise InvalidInput(
            f"{what} has {size:,} bytes of weights, more than the shard limit of "
            f"{recipe.shard_limit:,}; raise the limit"
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
            f"(partition {recipe.partition}, {size(splits):,} bytes, shard limit {limit:,}); leave "
            "it out, or choose layers and a higher limit"
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


def blob_bytes(shape: tuple[int, ...], scheme: Scheme) -> list[int]:
    """Bytes of each operand of a projection's weight (O, C, ...), as `encoded.encode` makes it.

    With "auto" it is the matrix's share of the budget, which all together do not exceed.
    """
    if scheme.form == "plain":
        return [stored_bytes("fp16", shape)]
    if scheme.form == "stored":  # at most: what a file has as integers takes less
        return [stored_bytes("fp16", shape) + 2 * ALIGNMENT]
    if scheme.form == "auto":  # two operands, each of which may have to be aligned
        return [ceil(prod(shape) * scheme.budget / 8) + ALIGNMENT, ALIGNMENT]
    outputs, inputs = shape[:2]
    groups = scheme.groups(outputs)
    if scheme.form == "linear":
        scales = groups * scheme.blocks(inputs)
        return [stored_bytes(f"int{scheme.bits}", shape), stored_bytes("fp16", (scales,))]
    palettes = (groups, 1 << scheme.bits)
    return [stored_bytes(f"uint{scheme.bits}", shape), stored_bytes("fp16", palettes)]


def layer_blobs(
    config: DecoderConfig,
    scheme: Scheme,
    kind: str = FULL,
    has: Callable[[str], bool] = lambda name: True,
) -> list[int]:
    """Bytes of every blob of a layer of some kind, in the order in which they are stored.

    has: whether a parameter is one of those, by its name.
    """
    parameters = find(config.architecture).parameters(config, kind).items()
    plain, blobs = SCHEMES["none"], list[int]()
    for shape in (fused(parts) for name, parts in parameters if has(name)):
        blobs += blob_bytes(shape, scheme if len(shape) == 2 else plain)  # matrices alone
    return blobs


def fused(parts: tuple[TensorSpec, ...]) -> tuple[int, ...]:
    """The shape of a parameter, whose parts are stacked."""
    return sum(part.given[0] for part in parts), *parts[0].given[1:]


def end_blobs(config: DecoderConfig, end: str) -> list[int]:
    """Bytes of every blob before the "first" layer, or after the "last"."""
    outer = find(config.architecture).outer(config).items()
    shapes = [tensor.shape for name, tensor in outer if name.startswith(f"{end}.")]
    return [blob for shape in shapes for blob in blob_bytes(shape, SCHEMES["none"])]


def woken(shares: np.ndarray, tokens: int) -> np.ndarray:
    """The expected number of experts that some token of a call chooses, in each of L layers (L,).

    shares: (L, E), the share of tokens that choose an expert: the counts of a router's choices over
    the number of tokens, or k / E everywhere where nothing is known. Exact for tokens that choose
    independently of each other; real ones, which resemble their neighbours, wake fewer.
    """
    return (1.0 - (1.0 - np.asarray(shares, np.float64)) ** tokens).sum(axis=1)


def head_splits(vocabulary: int, rows: int) -> tuple[int, ...]:
    """Rows of each part of the vocabulary: at most `rows`, evenly spread."""
    return tuple(len(part) for part in even_ranges(vocabulary, rows))
