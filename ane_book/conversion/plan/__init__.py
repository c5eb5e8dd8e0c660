"""The plan of a conversion: every program and its bytes, before a weight is read.

`BundleBuilder` follows the same `Plan`, so that what is announced is what is written. A program is
a package, and a dispatch is one call of it: a token passes every program once.

    layers    as many layers in a program as the limit allows, then the head
    whole     all layers in one program, whatever the limit, then the head

A mixture of experts with the strategy `dispatch` is cut otherwise: a program for each expert, which
is called when tokens choose it, and trunks around the mixtures (`programs.cut_experts`,
`ane_book.models.base.experts`).

Taught in the chapters "From a layer to packages" and "Experts".
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, get_args

from ane_book import models
from ane_book.conversion.plan import report
from ane_book.conversion.plan.programs import (
    Program,
    cut_experts,
    cut_head,
    cut_pooled,
    cut_shards,
    fused,
    layer_blobs,
    woken,
)
from ane_book.conversion.quantize.schemes import SCHEMES, Scheme, find_scheme
from ane_book.conversion.stores import stores
from ane_book.errors import InvalidInput
from ane_book.layout import CallShape, Kept, Rows
from ane_book.models import DecoderConfig, find
from ane_book.models.base.lora import slot_shapes
from ane_book.models.base.signature import Signatures
from ane_book.options import Recipe, Strategy
from ane_book.reference import find_reference, reference_models
from ane_book.weights import open_source, read_config
from ane_book.weights.safetensors import read_folder
import numpy as np

#: Bytes of memory that a conversion holds beside a model: Python, torch, and coremltools, which is
#: not imported (140 MB less) where the lowered blocks are in the cache. Measured on Linux.
IMPORTED = 410_000_000


@dataclass(frozen=True)
class WiredBytes:
    """What the loaded programs of a plan hold on a device, in bytes.

    The weights are counted twice, since no machine of this project could measure which is true:
    `shared` is each package once, `copied` once for each of `functions`, those of all packages that
    an answer calls, as Core ML is reported to do (claim `functions-memory`).
    caches: of one conversation in the longest cache, kept in states or by the host, with tails and
    memory. adapter: of the inputs that the host keeps for a LoRA adapter. The host's embedding is
    not in it: it is mapped, and the system can drop its pages.
    """

    functions: int
    shared: int
    copied: int
    caches: int
    adapter: int = 0

    @property
    def least(self) -> int:
        """The bytes in all if the functions of a package share its weights."""
        return self.shared + self.caches + self.adapter

    @property
    def most(self) -> int:
        """The bytes in all if every loaded function holds a copy."""
        return self.copied + self.caches + self.adapter

    def to_json(self) -> dict[str, int]:
        """The parts and both sums, for JSON."""
        return {**asdict(self), "least": self.least, "most": self.most}


@dataclass(frozen=True)
class Plan:
    """The programs that a conversion writes, and what they take.

    shards, head: in the order in which a token passes them. splits: rows of each part of the
    vocabulary. pooled: of an encoder, what is of texts' pooled columns. embedding_bytes: fp16, kept
    by the host.
    """

    config: DecoderConfig
    recipe: Recipe
    shards: tuple[Program, ...]
    head: tuple[Program, ...]
    splits: tuple[int, ...]
    pooled: tuple[Program, ...] = ()

    @property
    def programs(self) -> tuple[Program, ...]:
        """All programs, in order; a decode call runs each once, unless experts are apart."""
        return self.shards + self.head + self.pooled

    @cached_property
    def always(self) -> tuple[Program, ...]:
        """The programs that every call runs, whichever experts its tokens choose."""
        return tuple(program for program in self.programs if program.expert is None)

    @property
    def packages(self) -> dict[str, int]:
        """Bytes of each package's weights, in one file or several."""
        return {program.package: program.bytes for program in self.programs}

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
    def per_layer_bytes(self) -> int:
        """Bytes of the table of layers' own inputs, fp16, of which the host takes rows; 0 without
        one."""
        table = find(self.config.architecture).outer(self.config).get("per_layer.table")
        return 2 * prod(table.shape) if table else 0

    @cached_property
    def signatures(self) -> Signatures:
        return find(self.config.architecture).signatures(self.config)

    @property
    def cache_bytes(self) -> int:
        """Bytes of the keys and values of the whole context, fp16, with the copies that packages
        have of other packages' caches."""
        return self.kept_bytes(Rows)

    def kept_bytes(self, kind: Any = Kept, held: bool = False) -> int:
        """Bytes of what packages keep of a kind, or of all, fp16: that a call takes, or that are
        held, with the columns of all tokens (`ane_book.bundle.manifest`)."""
        call, numbers = CallShape(1, self.recipe.context), 0
        for layers in dict.fromkeys(program.layers for program in self.shards):
            for store in stores(self.signatures, layers, self.recipe.kv):
                if isinstance(store.kind, kind):
                    numbers += prod(store.held(call) if held else store.shape(call))
        return 2 * numbers

    @property
    def adapter_bytes(self) -> int:
        """Bytes of a LoRA adapter in its slots, fp16, which every call of the layers takes as
        inputs; 0 without slots."""
        slots = slot_shapes(self.config, self.recipe.lora_slots).values()
        return 2 * self.config.num_layers * sum(map(prod, slots))

    def functions(self, program: Program) -> dict[str, CallShape]:
        """The functions of a program's package, and the shape of a call of each.

        Those of an encoder take 32, 128, 512, ... tokens, and the whole context.
        """
        S = self.recipe.context
        if not self.head:
            lengths = [T for T in (32 * 4**i for i in range(S.bit_length())) if T < S]
            return {f"encode_{T}": CallShape(T) for T in (*lengths, S)}
        if program.has_cache:
            return self.recipe.calls
        return {name: CallShape(T) for name, T in self.recipe.widths.items()}

    def called(self, program: Program) -> list[str]:
        """The functions of a program's package that answers call, which an app loads and no more.

        The head runs for a prompt's last token alone, in `decode`. Where there is `verify` it takes
        the single tokens of the layers, but for a block at the context's end that is not whole.
        """
        names, recipe = list(self.functions(program)), self.recipe
        if program in self.head:
            return [name for name in names if name != "prefill"]
        if recipe.verify is None:
            return names
        last = ["decode"] if recipe.context % recipe.verify > 1 else []  # the last token never runs
        return [name for name in names if name in last or not name.startswith("decode")]

    @cached_property
    def wired(self) -> WiredBytes:
        """What the loaded programs hold on a device, with both counts of the weights; experts that
        are programs of their own are all counted as loaded."""
        counts = [(len(self.called(program)), program.bytes) for program in self.programs]
        return WiredBytes(
            functions=sum(count for count, _ in counts),
            shared=self.weight_bytes,
            copied=sum(count * size for count, size in counts),
            caches=self.kept_bytes(held=True),
            adapter=self.adapter_bytes,
        )

    @property
    def tiers(self) -> dict[int, "Plan"]:
        """A plan for the cache of each tier alone, by its slots, ascending; {} of an encoder."""
        if not self.head:
            return {}
        alone = {S: {"context": S, "tiers": ()} for S in self.recipe.caches}
        return {
            S: replace(self, recipe=self.recipe.model_copy(update=own)) for S, own in alone.items()
        }

    def axes(self) -> list[int]:
        """The axes of a layer's weights, fused as in the program."""
        parameters = find(self.config.architecture).parameters(self.config).values()
        return [axis for parts in parameters for axis in fused(parts)]

    @property
    def memory_bytes(self) -> int:
        """An estimate of the peak memory of a conversion: `IMPORTED` and the largest of these.

        - A layer as it is lowered, with its stand-ins for weights: what it computes in the longest
          call.
        - Two layers in float32, with the larger half of one about to be stored, and what one
          computes for the golden tokens.
        - The vocabulary in fp16, and three of its parts in float32: one is read, one runs, one is
          about to be stored. Or the whole in float32 and in fp16, where calibration or stored
          integers need it.

        The file of weights is mapped, and not counted: the system takes its pages back.
        """
        config, recipe = self.config, self.recipe
        kinds = set(find(config.architecture).kinds(config))
        layers = 6 * max(sum(layer_blobs(config, SCHEMES["none"], kind)) for kind in kinds)
        vocabulary = self.embedding_bytes
        if recipe.is_calibrated or recipe.is_stored:
            vocabulary *= 3
        elif self.head:
            vocabulary += 3 * 4 * max(self.splits) * config.hidden_size
        call = max(recipe.widths.values()) if self.head else recipe.context
        golden = layers + self._computed(recipe.golden_tokens)
        return IMPORTED + max(self._computed(call), golden, vocabulary)

    def _computed(self, T: int) -> int:
        """The bytes that a layer holds in a call of T tokens, in float32: four values as wide as
        its widest weight, or three of its scores and their masks."""
        slots = self.recipe.context + T if self.head else T
        return 4 * T * max(4 * max(self.axes()), 7 * self.config.num_heads * slots // 2)

    def vocabulary(self, program: Program) -> dict[int, int]:
        """The parts of the vocabulary that a program holds: number -> rows."""
        return {i: self.splits[i] for i in program.parts}

    def groups(self) -> list[tuple[range, list[Program]]]:
        """The ranges of layers that are read together, each with the programs made of them."""
        groups: dict[range, list[Program]] = {}
        for program in self.shards:
            groups.setdefault(program.layers, []).append(program)
        return list(groups.items())

    # --- what a call takes

    def woken(self, tokens: int = 1, shares: np.ndarray | None = None) -> float:
        """The expected number of experts, of all layers, that a call of so many tokens runs.

        shares: what the router chooses (`programs.woken`); by default every expert as often
        as any other. All of them where they are in one graph; 0 of a model without experts.
        """
        if (layout := self.signatures.mixture) is None:
            return 0.0
        L, E = len(self.signatures.mixed), layout.count
        if not self.has_choice:
            return float(L * E)
        uniform = np.full((L, E), layout.taken / layout.choices)
        return float(woken(uniform if shares is None else shares, tokens).sum())

    @property
    def has_choice(self) -> bool:
        """Whether experts are programs of their own, run only when tokens choose them."""
        return len(self.always) < len(self.programs)

    def calls(self, tokens: int = 1, shares: np.ndarray | None = None) -> float:
        """The expected number of dispatches of a call of so many tokens; `shares` as of `woken`."""
        return len(self.always) + (self.woken(tokens, shares) if self.has_choice else 0.0)

    def read_bytes(self, tokens: int = 1, shares: np.ndarray | None = None) -> float:
        """The expected bytes of the weights that these dispatches read, each once."""
        total = float(sum(program.bytes for program in self.always))
        if self.has_choice:
            one = next(program for program in self.programs if program.expert is not None)
            total += self.woken(tokens, shares) * one.bytes
        return total

    @cached_property
    def strategies(self) -> dict[str, "Plan"]:
        """The plan with each strategy for experts that the limit allows; {} of a model without
        experts."""
        plans: dict[str, Plan] = {}
        if self.signatures.mixture is None:
            return plans
        for name in get_args(Strategy):
            with suppress(InvalidInput):  # beyond the limit
                plans[name] = plan(self.config, self.recipe.model_copy(update={"experts": name}))
        return plans

    # --- as JSON and as lines

    def to_json(self) -> dict[str, Any]:
        """The plan in plain JSON values; sizes in bytes."""
        return {
            "architecture": self.config.architecture,
            "layers": self.config.num_layers,
            "recipe": self.recipe.model_dump(mode="json"),
            "packages": self.packages,
            "weight_files": {program.package: program.files for program in self.programs},
            "programs": len(self.programs),
            "weight_bytes": self.weight_bytes,
            "embedding_bytes": self.embedding_bytes,
            "cache_bytes": self.cache_bytes if self.head else 0,
            "tiers": {S: tier.cache_bytes for S, tier in self.tiers.items()},
            "per_token" if self.head else "per_call": {
                "dispatches": self.calls(),
                "weight_bytes": self.read_bytes(),
            },
            "adapter_bytes": self.adapter_bytes,
            "wired_bytes": self.wired.to_json(),
            "conversion_memory_bytes": self.memory_bytes,
            "limits": self.notes(),
        }

    def rows(self, why: bool = False) -> list[tuple[str, str]]:
        """The plan as pairs of heading and text; a heading stands on its first line alone. why:
        with the evidence."""
        return list(report.rows(self, why))

    def notes(self) -> list[str]:
        """What the evidence says of this plan, where it touches a limit."""
        return list(report.notes(self))


def plan(config: DecoderConfig, recipe: Recipe) -> Plan:
    """Cut a model into programs by a recipe.

    Raises InvalidInput when a layer or an expert is beyond the limit, when
    `argmax_output` needs the head in one program and it does not fit, and for experts apart in
    another partition than "layers".
    """
    scheme, head_scheme = find_scheme(recipe.quant), find_scheme(recipe.quant_head)
    if "experts" in type(config).model_fields:
        config = config.model_copy(update={"experts": recipe.experts})
    shards = tuple(_cut(config, recipe, scheme))
    splits, head = cut_head(config, recipe, head_scheme)
    return Plan(config, recipe, shards, head, splits, cut_pooled(config))


def _cut(config: DecoderConfig, recipe: Recipe, scheme: Scheme) -> Iterator[Program]:
    """The programs of the layers."""
    signatures = find(config.architecture).signatures(config)
    layout = signatures.mixture
    if layout is None or not layout.apart:
        return cut_shards(config, recipe, scheme)
    if recipe.partition != "layers":
        raise InvalidInput(
            f"experts {recipe.experts!r} cuts every layer at its mixture, so it goes with "
            f"partition 'layers', not {recipe.partition!r}"
        )
    if dense := sorted({*range(config.num_layers)} - {*signatures.mixed}):
        raise InvalidInput(
            f"experts {recipe.experts!r} cuts every layer at its mixture, and layer {dense[0]} of "
            "this model has none; take 'packed'"
        )
    return cut_experts(config, recipe, scheme, layout)


def find_config(model: str) -> DecoderConfig:
    """Read the configuration of a model that `convert` takes, without its weights.

    model: a reference model's name, a `.gguf` file, or a folder with config.json. Raises
    UnknownModel, WeightsNotFound, InvalidWeights or UnsupportedModel.
    """
    path = Path(model)
    if model in reference_models() or not path.exists():
        return models.read_config(find_reference(model).config)
    file = path / "config.json"
    if not file.exists():
        return models.read_config(open_source(path).config())
    fields, _ = read_folder(path)
    return read_config(fields, str(file))
