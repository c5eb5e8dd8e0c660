"""Checkpoints whose weights are quantised: rules that make plain tensors of what is stored.

A folder's `config.json` says in `quantization_config` who quantised the weights. Each form has a
function here that returns a `WeightRule` for every tensor that is not stored plainly. What a rule
makes is float32 under the plain tensor's name, so that nobody else knows that the checkpoint was
quantised. Modules that were left as they are (`modules_to_not_convert`, `ignore`) have no such
tensors and get no rule. A form's function reads headers, and tensors of a few bytes that say what
a matrix is.

The layouts are those that the tools' own readers unpack; each file names them.
"""

from collections.abc import Callable

from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.weights.quantised.packed import awq, compressed_tensors, gptq
from ane_book.weights.quantised.scaled import fp8
from ane_book.weights.quantised.stored import ADVICE, FLOATS, Stored, WeightRule

__all__ = ["FORMS", "Stored", "WeightRule", "rules"]


#: `quant_method` -> the function of its form.
FORMS: dict[str, Callable[[Stored, dict], dict[str, WeightRule]]] = {
    "fp8": fp8,
    "compressed-tensors": compressed_tensors,
    "awq": awq,
    "gptq": gptq,
}

#: How names of tensors end that only a quantised checkpoint has.
MARKS = (".qweight", ".weight_packed", ".SCB", ".absmax", "_scale_inv", ".weight_scale")


def rules(config: dict, stored: Stored) -> dict[str, WeightRule]:
    """The rule of each tensor that is stored quantised, by its plain name. config: of config.json.

    Raises InvalidWeights where parts are missing or do not fit, and UnsupportedModel for a form or
    a variant of one that is not read. A configuration may name a form beside plain weights, as
    fake-quantised ones are.
    """
    settings = config.get("quantization_config")
    if not isinstance(settings, dict):
        if marked := [name for name in stored.headers if name.endswith(MARKS)]:
            raise InvalidWeights(
                f"{stored.place}: tensor {marked[0]} is of a quantised checkpoint, but config.json "
                "has no quantization_config that says how to read it; get its config.json, or "
                "write the field by hand (older tools kept it in quantize_config.json)"
            )
        return {}
    if form := FORMS.get(_method(settings)):
        return form(stored, settings)
    for name, header in stored.headers.items():
        if header.dtype not in FLOATS or name.endswith(MARKS):
            raise UnsupportedModel(
                f"{stored.place}: {name} is quantised by {_method(settings)!r:.40} "
                f"(quantization_config.quant_method), which is not read; {', '.join(FORMS)} are; "
                f"{ADVICE}"
            )
    return {}


def _method(settings: dict) -> str:
    if settings.get("load_in_4bit") or settings.get("load_in_8bit"):
        return "bitsandbytes"  # whose older configurations do not name it
    method = str(settings.get("quant_method"))
    return "fp8" if method == "modelopt" and settings.get("quant_algo") == "FP8" else method
