"""Schemas of tools that a client wants kept where that can be, and not more."""

from typing import Any

WHOLE = {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
PLAIN = {
    "type", "required", "enum", "const", "$ref", "minItems", "maxItems", "minLength", "maxLength",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
}  # fmt: skip


def loosened(tool: dict) -> dict:
    """A tool whose schema has left the keywords that calls of every form can be held to.

    Others, such as format, pattern and propertyNames, are for the model to read.
    """
    function = tool["function"]
    if not function.get("parameters"):
        return tool
    schema = {"type": "object"} | _kept(function["parameters"])
    whole = {key: value for key, value in schema.items() if key in WHOLE}
    return tool | {"function": function | {"parameters": whole}}


def _kept(schema: Any) -> Any:
    """A schema without the keywords that are left out; one of several is any of them."""
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key in PLAIN}
    for key, value in schema.items():
        if key in ("properties", "$defs", "definitions") and isinstance(value, dict):
            kept[key] = {name: _kept(each) for name, each in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict | bool):
            kept[key] = _kept(value)
        elif key in ("anyOf", "oneOf") and isinstance(value, list):
            kept["anyOf"] = [_kept(each) for each in value]
    return kept
