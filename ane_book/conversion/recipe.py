"""The options of a conversion, as people give them, made a recipe."""

import inspect
from typing import get_args

from ane_book.bundle import Bundle, Recipe
from ane_book.conversion.plan.shards import parse_bytes
from ane_book.conversion.quantize import find_scheme
from ane_book.errors import InvalidInput
from ane_book.models import DecoderConfig, find

__all__ = ["hold_to", "make_recipe"]


def make_recipe(
    config: DecoderConfig | None = None,
    *,
    kv: str = "state",
    context: int | None = None,
    prefill: int | None = None,
    shard_limit: str | int = "1GB",
    head_rows: int = 16384,
    argmax_output: bool = False,
    quant: str = "none",
    quant_head: str | None = None,
    partition: str = "layers",
) -> Recipe:
    """The options of `convert` as a recipe; raises InvalidInput for a value that it does not take.

    The model's configuration bounds the context. In projections the cache is always the host's.
    """
    _one_of("kv", kv), _one_of("partition", partition)
    if config is not None and find(config.architecture).task == "embedding":
        _refuse_generation(kv, prefill, argmax_output, quant_head, partition)
    context = _context(config, context)
    prefill = prefill or min(64, context)
    if not 2 <= prefill <= context:
        raise InvalidInput(
            f"prefill must be between 2 and the context of {context} tokens, not {prefill}"
        )
    if head_rows < 1:
        raise InvalidInput(f"a part of the vocabulary needs at least one row, not {head_rows}")
    find_scheme(quant), find_scheme(quant_head or quant)
    return Recipe(
        kv="host" if partition == "projections" else kv,
        context=context,
        prefill=prefill,
        shard_bytes=parse_bytes(shard_limit),
        head_rows=head_rows,
        argmax_output=argmax_output,
        quant=quant,
        quant_head=quant_head or quant,
        partition=partition,
    )


def _one_of(field: str, value: str) -> None:
    """Refuse what the recipe's field does not know."""
    names = get_args(Recipe.model_fields[field].annotation)
    if value not in names:
        known = ", ".join(f'"{name}"' for name in names)
        raise InvalidInput(f"{field} must be one of {known}, not {value!r}")


def _refuse_generation(kv, prefill, argmax_output, quant_head, partition) -> None:
    """Refuse what an encoder has no use for."""
    given = {
        "kv": kv != "state",
        "prefill": prefill is not None,
        "argmax_output": argmax_output,
        "quant_head": quant_head is not None,
        "partition": partition == "projections",
    }
    for option in (option for option, wanted in given.items() if wanted):
        raise InvalidInput(f"{option} goes with models that generate text, and this one does not")


def _context(config: DecoderConfig | None, wanted: int | None) -> int:
    """The context that was asked for, or 512 tokens, or as many as the model can take if fewer."""
    if config is None:
        return 512 if wanted is None else wanted
    if wanted is None:
        return getattr(config, "max_tokens", min(512, config.max_position))
    if wanted > config.max_position:
        raise InvalidInput(
            f"context {wanted} is beyond the model's {config.max_position} positions"
        )
    return wanted


def hold_to(bundle: Bundle, options: dict) -> None:
    """Refuse options of `convert` that a bundle, converted long ago, cannot follow any more.

    Raises InvalidInput; TypeError for what is no option.
    """
    known = inspect.signature(make_recipe).parameters.keys() - {"config"}
    for option in options.keys() - known - {"progress"}:
        if option in ("out", "source", "force"):
            raise InvalidInput(f"{option} goes with a model's name, and {bundle.path} is a bundle")
        raise TypeError(f"no option {option!r}; there are: {', '.join(sorted(known))}")
    names = {"shard_bytes": "shard_limit"}  # fields that the options call otherwise
    made = {names.get(field, field): value for field, value in bundle.recipe}
    wanted = {name: value for name, value in options.items() if name in known and value is not None}
    for field, value in make_recipe(**made | wanted):
        name = names.get(field, field)
        if made[name] != value:
            raise InvalidInput(
                f"{bundle.path} was converted with {name} = {made[name]!r}, not {value!r}; "
                "convert the model again to change it"
            )
