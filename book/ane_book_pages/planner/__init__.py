"""The interactive planner on a page of the book: the predicted speed of a model on a chip.

    from IPython.display import HTML
    HTML(planner())

It is self-contained HTML with data, script and style. The bytes of every package are those of
`ane_book.conversion.plan`, the ranges those of `mlprogram.ane.cost`; the script only adds and
divides, and a test compares it with `predict`.
"""

from html import escape
import json
from pathlib import Path
from typing import Any

from ane_book.conversion.plan import Plan, find_config, plan
from ane_book.conversion.quantize.schemes import SCHEMES
from ane_book.conversion.recipe import make_recipe
from ane_book.errors import InvalidInput
from ane_book.evidence.cost import form_of
from ane_book.layout import Recurrent, Tail
from ane_book.models import DecoderConfig, find
from ane_book.reference import reference_models
from mlprogram.ane.claims import Claim
from mlprogram.ane.cost.chips import chips, parameter

__all__ = ["LIMITS", "planner", "planner_data", "quants"]

LIMITS = ("250MB", "1GB", "2GB")
SCRIPT = Path(__file__).with_name("planner.js")
STYLE = Path(__file__).with_name("planner.css")
CHOICES = (("model", "Model"), ("chip", "Chip"), ("quant", "Weights"), ("limit", "Program at most"))


def quants() -> list[str]:
    """The quantisation schemes that the page offers: the first of each kind and bits that can be
    predicted."""
    found: dict[tuple[str, float], str] = {}
    for name, scheme in SCHEMES.items():
        if not scheme.block:
            found.setdefault((scheme.form, scheme.bits), name)
    return list(found.values())


def planner_data() -> dict[str, Any]:
    """The data of the script, in plain JSON values."""
    models = {
        name: find_config(name)
        for name, model in reference_models().items()
        if find(find_config(name).architecture).task == "text-generation"
    }
    return {
        "chips": {key: _range(chip) | {"name": chip.chip} for key, chip in chips().items()},
        "parameters": {name: _range(parameter(name)) for name in ("packed", "cache", "program")},
        "forms": {quant: form_of(quant) for quant in quants()},
        "models": {name: _model(config) for name, config in models.items()},
    }


def _range(claim: Claim) -> dict[str, Any]:
    low, high = claim.bounds
    return {"low": low, "high": high, "unit": claim.unit, "evidence": claim.evidence}


def _model(config: DecoderConfig) -> dict[str, Any]:
    """Bytes of a slot and of what a call reads of tails and memory, whatever the context; the
    longest context; bytes of packages by scheme and limit."""
    cuts = {quant: {limit: _cut(config, quant, limit) for limit in LIMITS} for quant in quants()}
    known = next(made for limits in cuts.values() for made in limits.values() if made)
    return {
        "slot": known.cache_bytes // known.recipe.context,
        "kept": known.kept_bytes(Tail | Recurrent),
        "longest": config.max_position,
        "plans": {
            quant: {limit: made and _bytes(made) for limit, made in limits.items()}
            for quant, limits in cuts.items()
        },
    }


def _cut(config: DecoderConfig, quant: str, limit: str) -> Plan | None:
    """The plan with this size limit of a package; None if a layer is larger than that."""
    try:
        return plan(config, make_recipe(config, quant=quant, shard_limit=limit))
    except InvalidInput:
        return None


def _bytes(made: Plan) -> dict[str, list[int]]:
    return {
        "shards": [program.bytes for program in made.shards],
        "head": [program.bytes for program in made.head],
    }


def planner(model: str = "phi-4-mini-instruct", chip: str = "m4-max") -> str:
    """The planner as HTML, set to a model and a chip."""
    data = planner_data()
    values = {
        "model": ({name: name for name in data["models"]}, model),
        "chip": ({key: found["name"] for key, found in data["chips"].items()}, chip),
        "quant": ({name: _told(name) for name in data["forms"]}, "int8"),
        "limit": ({limit: limit.replace("B", " B").replace("M ", " M").replace("G ", " G")
                   for limit in LIMITS}, "1GB"),
    }  # fmt: skip
    fields = "".join(_select(name, label, *values[name]) for name, label in CHOICES)
    packed = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f"<style>{STYLE.read_text(encoding='utf-8')}</style>"
        '<form class="ane-planner" onsubmit="return false">'
        f"<fieldset><legend>What would it run like?</legend>{fields}"
        '<label>Context, tokens <input name="context" type="number" value="512" min="2" step="1">'
        '</label></fieldset><output aria-live="polite"></output>'
        f'<script type="application/json">{packed}</script></form>'
        f"<script>{SCRIPT.read_text(encoding='utf-8')}</script>"
    )


def _told(quant: str) -> str:
    return "fp16" if quant == "none" else quant


def _select(name: str, label: str, values: dict[str, str], chosen: str) -> str:
    options = "".join(
        f'<option value="{escape(value)}"{" selected" * (value == chosen)}>{escape(text)}</option>'
        for value, text in values.items()
    )
    return f'<label>{label} <select name="{name}">{options}</select></label>'
