"""What a program is computed in, by name: "fp16", "fp32" or "ane".

"ane" is half precision with activations as the engine is published to compute them;
`native_forms.py` has the sources. It is not the engine, of which more is published and most is not.
"""

from mlprogram.errors import InvalidInput

#: Each precision in a few words, to follow "computed".
PRECISIONS = {"fp16": "as declared", "fp32": "in fp32", "ane": "with the engine's own activations"}


def check_precision(precision: str) -> str:
    """The precision as it is given. Raises InvalidInput for one that there is not."""
    if precision not in PRECISIONS:
        raise InvalidInput(
            f'precision must be "fp16", "fp32" or "ane", which has no parts, not {precision!r}'
        )
    return precision
