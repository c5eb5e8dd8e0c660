"""Operators whose results depend on shapes alone, such as `Shape` and `Range`.

With constant inputs, or for `Shape` and `Size` with any input of known shape, they are folded
(`GraphWalk` in translate.py). These functions are left to refuse the rest.
"""

from . import Constant, Unsayable, operator
from ._common import Tensor


@operator("Shape", "Size", "EyeLike")
def of_shape(x: Tensor, **attributes) -> Tensor:
    raise Unsayable("the sizes of a tensor that are not known")


@operator("ConstantOfShape")
def constant_of_shape(shape: Constant, *, value=None) -> Tensor:
    raise Unsayable("a shape that is not known")


@operator("Range")
def count(start: Constant, limit: Constant, delta: Constant, *, stash_type=1) -> Tensor:
    raise Unsayable("a count that is not known")


@operator("Constant")
def constant(**attributes) -> Tensor:
    raise Unsayable("a constant without a value")
