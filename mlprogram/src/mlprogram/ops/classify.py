"""The op that ends a classifier.

Reference: coremltools `defs/iOS15/classify.py`.
"""

from torch import Tensor

from . import op


@op()
def classify(
    probabilities: Tensor, classes: list[str] | list[int]
) -> tuple[str | int, dict[str | int, float]]:
    """The likeliest class, and every class with its probability; Python values, no tensors.

    probabilities: any shape with as many elements as there are classes.
    """
    flat = probabilities.flatten()
    return classes[int(flat.argmax())], dict(zip(classes, flat.tolist(), strict=True))
