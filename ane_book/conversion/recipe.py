"""Make the recipe of a conversion from its options, so that it fits the model."""

from ane_book.bundle import Bundle
from ane_book.conversion.quantize.schemes import STORED, find_scheme
from ane_book.errors import InvalidInput
from ane_book.models import DecoderConfig, find
from ane_book.models.base.lora import targets
from ane_book.options import Recipe, checked

BLOCK = 8  # tokens of the only function: as many as cost what one costs (claim `rows-eight`)
#: The options of models that generate no text.
OTHERS = {"context", "shard_limit", "head_rows", "quant", "partition", "experts"}


def make_recipe(config: DecoderConfig | None = None, **options) -> Recipe:
    """Make a `Recipe` from options of `convert`, fitted to a model.

    The model's configuration limits the context, and the smallest cache limits the tokens of a
    prefill call. Raises InvalidInput for a value that an option does not take, TypeError for an
    unknown option.
    """
    if config is not None and find(config.architecture).task != "text-generation":
        _refuse_generation(options)
    mixture = config is None or "experts" in type(config).model_fields
    if options.get("experts") is not None and not mixture:
        raise InvalidInput("experts goes with mixtures of experts, and this model is none")
    recipe = checked(Recipe, options)
    find_scheme(recipe.quant), find_scheme(recipe.quant_head)
    if recipe.kv == "host" and recipe.state_write == "select":
        raise InvalidInput("state_write select goes with kv state: the host's cache is no state")
    if recipe.is_calibrated and recipe.is_stored:
        raise InvalidInput(f"quant {recipe.quant} and {recipe.quant_head} do not go together")
    if (recipe.is_calibrated or recipe.is_stored) and recipe.experts == "dispatch":
        raise InvalidInput(
            f"quant {recipe.quant} chooses for the matrices of whole layers; with experts "
            '"dispatch" take a scheme by its name'
        )
    if recipe.is_calibrated and config:
        _check_chain(config, recipe)
    if recipe.functions == "one":  # `verify`, which does all
        if "prefill" in recipe.model_fields_set and recipe.prefill != recipe.verify:
            raise InvalidInput(
                "prefill goes with functions two; with one function verify says how many tokens a "
                "call takes"
            )
        K = recipe.verify or BLOCK
        recipe = recipe.model_copy(update={"verify": K, "prefill": K})
    context = _context(config, recipe)
    if recipe.functions == "one" and "context" not in recipe.model_fields_set:
        context = max(context - context % recipe.prefill, recipe.prefill)
    tiers = tuple(slots for slots in recipe.tiers if slots != context)
    if tiers and tiers[-1] > context:
        raise InvalidInput(
            f"tiers: a cache of {tiers[-1]} slots is larger than the context of {context} tokens; "
            f"give context {tiers[-1]}, or leave it out"
        )
    recipe = recipe.model_copy(update={"context": context, "tiers": tiers})
    recipe = recipe.model_copy(update={"prefill": _prefill(recipe)})
    odd = [slots for slots in recipe.caches if slots % recipe.prefill]
    if recipe.functions == "one" and odd:  # no other function could take what is left at its end
        fit = odd[0] - odd[0] % recipe.prefill
        raise InvalidInput(
            f"functions one: a cache of {odd[0]} slots is no multiple of the {recipe.prefill} "
            f"tokens of a call; take {fit or recipe.prefill}"
        )
    if config is not None and recipe.lora_slots:
        targets(config)  # raises
    return recipe


def _check_chain(config: DecoderConfig, recipe: Recipe) -> None:
    """Raise InvalidInput where a budget for bits cannot be allotted: gradients of a layer's
    projections go from layer to layer by the hidden state alone."""
    signatures, what = find(config.architecture).signatures(config), ""
    if signatures.mixture:
        what = "experts"
    elif signatures.carried or any(own.own for own in signatures):
        what = "layers that share keys and values, or have inputs of their own"
    if what:
        raise InvalidInput(
            f"quant {recipe.quant} chooses for models whose layers are seven matrices; "
            f"{config.architecture} models have {what}: take a scheme by its name, such as int8"
        )


def _prefill(recipe: Recipe) -> int:
    """Tokens of a prefill call: the recipe's, or the smallest cache where that is less.

    Raises InvalidInput where `prefill` or `verify` was asked for and is more than that.
    """
    least = recipe.caches[0]
    which = f"the {'smallest tier' if recipe.tiers else 'context'} of {least} tokens"
    if least < 2:
        raise InvalidInput(f"a context needs at least 2 tokens, not {least}")
    for name in ("verify", "prefill"):
        tokens = getattr(recipe, name)
        if tokens is not None and tokens > least and name in recipe.model_fields_set:
            raise InvalidInput(f"{name} must be between 2 and {which}, not {tokens}")
    return min(recipe.prefill, least)


def _context(config: DecoderConfig | None, recipe: Recipe) -> int:
    """The context that was asked for, or else what the model was made for, or can take."""
    if config is None:
        return recipe.context
    if "context" not in recipe.model_fields_set:
        return getattr(config, "max_tokens", min(recipe.context, config.max_position))
    if recipe.context > config.max_position:
        raise InvalidInput(
            f"context {recipe.context} is beyond the model's {config.max_position} positions; "
            f"give at most {config.max_position} (--context)"
        )
    return recipe.context


def _refuse_generation(options: dict) -> None:
    """Raise InvalidInput for options that only text generation has."""
    quant = str(options.get("quant"))
    odd = [
        name
        for name, value in options.items()
        if name in Recipe.model_fields.keys() - OTHERS
        and value not in (None, Recipe.model_fields[name].default)
    ]
    odd += ["stored as quant"] if quant == STORED else []
    odd += ["a budget as quant"] if quant.startswith("auto") else []
    if odd:
        raise InvalidInput(f"{odd[0]} goes with models that generate text, and this one does not")


def hold_to(bundle: Bundle, options: dict) -> None:
    """Raise InvalidInput for options of `convert` that differ from those of a finished bundle.

    Raises TypeError for an unknown option.
    """
    for option in options.keys() & {"out", "source"}:
        raise InvalidInput(f"{option} goes with a model's name, and {bundle.path} is a bundle")
    given = {n: v for n, v in options.items() if n != "progress" and v is not None}
    asked = checked(Recipe, dict(bundle.recipe) | given)
    asked = asked.model_copy(update={"tiers": asked.caches[:-1]})
    for name in given:
        old, new = getattr(bundle.recipe, name), getattr(asked, name)
        if old != new:
            raise InvalidInput(
                f"{bundle.path} was converted with {name} {old}, not {new}; convert the model "
                "again to change it"
            )
