"""`Feature`: an input or output as the model's description has it, beyond its type in the program.

The program knows only tensors. The description says which shapes a flexible input may have, which
input may be left out, which tensor is an image, and that the outputs of a classifier are a label
and a dictionary. `MLProgram.predict` follows it, as coremltools' `MLModel.predict` does.

Sources: `mlmodel/format/FeatureTypes.proto` of apple/coremltools for shapes, defaults and colour
spaces; `coremlpython/CoreMLPythonUtils.mm` and coremltools' tests of image outputs for what
becomes of a PIL image; scale and bias of an image are ops of the program.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
import re
from typing import Any
import warnings

from mlprogram.errors import InvalidInput, InvalidType
from mlprogram.package.reader import Package
from mlprogram.package.values import TensorType
import numpy as np

#: ImageFeatureType.ColorSpace -> its name, the mode of a PIL image in it
COLOR_SPACES = {10: ("GRAYSCALE", "L"), 20: ("RGB", "RGB"), 30: ("BGR", "RGB"),
                40: ("GRAYSCALE_FLOAT16", "F")}  # fmt: skip

#: dtypes that numpy has under another name or not at all
NUMPY = {"fp16": "float16", "fp32": "float32", "fp64": "float64", "bf16": "float32"}

UNBOUNDED = -1  # the upper bound of a size without a limit


@dataclass(frozen=True)
class Feature:
    """An input or output of a function.

    type: its declared type in the program. shape: its default shape. shapes: the shapes that are
    enumerated, else (). bounds: (lowest, highest) of each size, where sizes have a range; highest
    is negative where there is none. fill: the value of an input that may be left out. color: the
    colour space of an image, whose tensor is (1, channels, height, width), with values of 0 to 255
    unless it is GRAYSCALE_FLOAT16.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...] = ()
    bounds: tuple[tuple[int, int], ...] = ()
    fill: float | None = None
    color: str | None = None
    mode: str | None = None  # of the PIL image

    @cached_property
    def _dtype(self) -> np.dtype:
        return np.dtype(NUMPY.get(self.type.dtype, self.type.dtype))

    def admits(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape may be given."""
        fixed = len(shape) == len(self.type.shape) and all(
            size in (None, given) for size, given in zip(self.type.shape, shape, strict=True)
        )
        if not fixed or (self.shapes and shape not in self.shapes):
            return False
        bounds = self.bounds or [(0, UNBOUNDED)] * len(shape)
        return len(bounds) == len(shape) and all(
            lowest <= size and (highest < 0 or size <= highest)
            for size, (lowest, highest) in zip(shape, bounds, strict=True)
        )

    @property
    def allowed(self) -> str:
        """The declared dtype and the allowed shapes, as text."""
        if self.shapes:
            return f"{self.type.dtype} of shape " + " or ".join(map(str, self.shapes))
        if not self.bounds:
            return str(self.type)
        sizes = ", ".join(
            str(lowest) if lowest == highest
            else f"{lowest} or more" if highest < 0
            else f"{lowest} to {highest}"
            for lowest, highest in self.bounds
        )  # fmt: skip
        return f"{self.type.dtype}({sizes})"

    def array(self, value) -> np.ndarray:
        """Convert the caller's value to an array for the program.

        For an input of floats it may have any dtype of numbers, which torch then converts.

        value: anything that numpy makes an array of, a torch tensor, or for an image also a PIL
        image of its mode, or the pixels, uint8 (height, width, 3) in RGB or (height, width). Whole
        floats become integers, as in Core ML. Raises InvalidInput, and InvalidType (a subclass) for
        anything but an array of numbers.
        """
        is_as_declared = type(value) is np.ndarray and value.dtype == self._dtype
        if is_as_declared and value.shape == self.shape and not self.mode:
            return value
        array = value
        if type(value) is not np.ndarray or value.dtype.kind not in "fiub":
            array = to_array(value, f"input {self.name!r} must be {self.allowed}", self.mode)
        if self.mode in ("RGB", "L"):
            self._warn_of_range(array)
        if self.mode and array.ndim in (2, 3):
            array = self._from_pixels(array)
        return self._typed(array if array.shape == self.shape else self._shaped(array))

    def _warn_of_range(self, array: np.ndarray) -> None:
        """Warn of an image with values in [0, 1], which would be nearly black here."""
        if array.dtype.kind == "f" and array.size and 0 < array.max() <= 1:
            warnings.warn(
                f"input {self.name!r} is an image, with values of 0 to 255; given are floats of at "
                "most 1, which is black. Multiply them by 255",
                stacklevel=2,
            )

    def _from_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """Pixels (H, W) or (H, W, 3) -> (1, C, H, W), in the program's order of channels."""
        if pixels.ndim != (3 if self.mode == "RGB" else 2) or pixels.shape[2:] not in ((), (3,)):
            wanted = "(height, width, 3)" if self.mode == "RGB" else "(height, width)"
            raise InvalidInput(
                f"input {self.name!r} is a {self.color} image: give a PIL image, its pixels "
                f"{wanted}, or {self.allowed}, not an array of shape {pixels.shape}"
            )
        if self.mode != "RGB":
            return pixels[None, None]
        channels = pixels[..., ::-1] if self.color == "BGR" else pixels
        return channels.transpose(2, 0, 1)[None]

    def _shaped(self, array: np.ndarray) -> np.ndarray:
        if self.admits(array.shape):
            return array
        # MIL's scalars are multi-arrays of one element in a description; Python's have no shape.
        if array.size == prod(self.shape) == 1 and () in (array.shape, self.shape):
            return array.reshape(self.shape)
        raise InvalidInput(
            f"input {self.name!r} must be {self.allowed}, not an array of shape {array.shape}"
            + self._in_core_mls_words(array.shape)
        )

    def _in_core_mls_words(self, shape: tuple[int, ...]) -> str:
        """Core ML's own error message for a shape that is not allowed; people search for it."""
        if self.shapes and not self.color:
            sizes = " x ".join(map(str, shape))
            return f": MultiArray Shape ({sizes}) was not in enumerated set of allowed shapes"
        if len(shape) == len(self.bounds):
            for axis, (size, (lowest, highest)) in enumerate(zip(shape, self.bounds, strict=True)):
                if size < lowest or size > highest >= 0:
                    range_ = f"({lowest}..{highest})"
                    return f": Size ({size}) of dimension ({axis}) is not in allowed range {range_}"
        return ""

    def _typed(self, array: np.ndarray) -> np.ndarray:
        dtype = self._dtype
        if array.dtype == dtype:
            return array
        if dtype.kind == "f":  # torch rounds, but does not know big-endian and extended floats
            known = array.dtype.isnative and array.dtype.itemsize <= 8
            return array if known else array.astype(np.float64)
        with np.errstate(invalid="ignore"):  # NaN and what is too large for the dtype
            whole = array.astype(dtype)
        wrong = whole != array
        if wrong.any():
            raise InvalidInput(
                f"input {self.name!r} must be {self.type}; {array[wrong].flat[0]} is none"
            )
        return whole

    def default(self) -> np.ndarray:
        """The default array of an optional input, filled with `fill`."""
        return np.full(self.shape, self.fill)

    def random(self, generator: np.random.Generator) -> np.ndarray:
        """A random array of the default shape: normal floats, pixels, or integers that are 0 or 1.

        Integers are often indices, and 0 and 1 are valid indices into almost anything.
        """
        dtype = self._dtype
        if self.color:
            return generator.integers(0, 256, self.shape).astype(dtype)
        if dtype.kind == "f":
            return generator.standard_normal(self.shape).astype(dtype)
        return generator.integers(0, 2, self.shape).astype(dtype)

    def image(self, array: np.ndarray):
        """Convert an output (1, C, H, W) to the PIL image that coremltools returns: RGBA, L or F.

        8-bit channels are rounded and clipped to 0..255; Apple does not say how Core ML rounds.
        """
        from PIL import Image  # only programs with image outputs need Pillow

        if self.mode == "F":
            return Image.fromarray(array[0, 0].astype(np.float32))
        pixels = np.clip(np.rint(array[0].astype(np.float32)), 0, 255).astype(np.uint8)
        if self.mode == "L":
            return Image.fromarray(pixels[0])
        channels = pixels[::-1] if self.color == "BGR" else pixels
        opaque = np.full((1, *pixels.shape[1:]), 255, np.uint8)
        return Image.fromarray(np.concatenate([channels, opaque]).transpose(1, 2, 0).copy())


def to_array(value: Any, must: str, mode: str | None = None) -> np.ndarray:
    """Convert a value to an array of numbers: whatever numpy takes, a torch tensor, an image.

    mode: of an image. must: the beginning of the message of the InvalidType that is raised for
    anything else.
    """
    try:
        if hasattr(value, "detach"):  # torch's: numpy wants it let go of, in a dtype that it has
            value = value.detach().cpu()
            value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        elif mode and hasattr(value, "convert") and value.mode != mode:  # coremltools refuses it
            raise TypeError(f"a PIL image of mode {mode}, not {value.mode}: .convert({mode!r})")
        array = np.asarray(value)
    except Exception as error:  # unequal rows, too many axes, whatever a foreign object raises
        reason = str(error).split("\n")[0][:200]
        raise InvalidType(f"{must} ({reason})") from None
    if array.dtype.kind not in "fiub":
        raise InvalidType(f"{must}, not {array.dtype}")
    return array


def by_name(inputs: Mapping[str, object], names: Collection[str]) -> Mapping[str, object]:
    """Rename the inputs to the program's names.

    coremltools cleans the names of a source model (`x/0` becomes `x_0`); both are accepted here.
    Raises InvalidType unless `inputs` is a mapping of names.
    """
    if isinstance(inputs, dict | Mapping) and inputs.keys() <= {*names}:
        return inputs
    if not isinstance(inputs, Mapping) or not all(isinstance(name, str) for name in inputs):
        raise InvalidType(
            f"inputs must be a dict of arrays by name, or a list of these; not {inputs!r:.80}"
        )
    return {_cleaned(name, inputs, names): value for name, value in inputs.items()}


def _cleaned(name: str, inputs: Mapping[str, object], names: Collection[str]) -> str:
    """A name as cleaned by coremltools' `NameSanitizer`, if that is an input not yet given.

    Source: coremltools `converters/mil/mil/passes/defs/preprocess.py`.
    """
    plain = re.sub("[^a-zA-Z0-9_]", "_", name)
    made = (name, plain, f"var_{plain}", f"{plain}_workaround")  # for a first digit, for "state"
    return next((n for n in made if n in names and (n == name or n not in inputs)), name)


def features(
    package: Package, function: str, part: str, types: dict[str, TensorType]
) -> dict[str, Feature]:
    """The features of a function. part: "input" or "output". types: as the program declares them.

    An input or output without a description has the feature that follows from its type.
    """
    described = package.described(function, part)
    return {name: _feature(name, type_, described.get(name)) for name, type_ in types.items()}


def _feature(name: str, type_: TensorType, described) -> Feature:
    plain = Feature(name, type_, tuple(1 if size is None else size for size in type_.shape))
    kind = described.WhichOneof("Type") if described is not None else None
    if kind == "imageType":
        feature = _image(plain, described.imageType)
    elif kind == "multiArrayType":
        feature = _multi_array(plain, described)
    else:
        feature = plain
    # Shapes that the program itself cannot take are not the caller's to choose among.
    return feature if feature.admits(feature.shape) else replace(plain, fill=feature.fill)


def _multi_array(plain: Feature, described) -> Feature:
    declared = described.multiArrayType
    field = declared.WhichOneof("defaultOptionalValue")
    fill = getattr(declared, field) if described.isOptional and field else None
    if None not in plain.type.shape:
        return replace(plain, fill=fill)
    shapes = tuple(tuple(shape.shape) for shape in declared.enumeratedShapes.shapes)
    bounds = tuple((r.lowerBound, r.upperBound) for r in declared.shapeRange.sizeRanges)
    # FeatureTypes.proto: without a default it is the first shape, or the lowest sizes.
    default = tuple(declared.shape) or (shapes or (tuple(low for low, _ in bounds),))[0]
    return replace(plain, shape=default, shapes=shapes, bounds=bounds, fill=fill)


def _image(plain: Feature, declared) -> Feature:
    """The feature of an image: the description has width and height, its tensor (1, C, H, W)."""
    leading = plain.shape[:2]
    color, mode = COLOR_SPACES.get(declared.colorSpace, (None, None))
    shapes = tuple((*leading, s.height, s.width) for s in declared.enumeratedSizes.sizes)
    bounds: tuple = ()
    if declared.WhichOneof("SizeFlexibility") == "imageSizeRange":
        ranges = (declared.imageSizeRange.heightRange, declared.imageSizeRange.widthRange)
        bounds = tuple((size, size) for size in leading)
        bounds += tuple((r.lowerBound, r.upperBound) for r in ranges)
    default = (*leading, declared.height, declared.width)
    return replace(plain, shape=default, shapes=shapes, bounds=bounds, color=color, mode=mode)


def random_inputs(inputs: dict[str, Feature], seed: int = 0) -> dict[str, np.ndarray]:
    """An array for every input; the same seed gives the same arrays."""
    generator = np.random.default_rng(seed)
    try:
        return {name: feature.random(generator) for name, feature in inputs.items()}
    except MemoryError as error:
        raise InvalidInput(f"random inputs do not fit into memory ({error})") from None


def load_inputs(path: str | Path) -> dict[str, np.ndarray]:
    """Read the arrays of an `.npz` file by name. Raises InvalidInput for anything else."""
    try:
        if not Path(path).is_file():  # a pipe would be waited for
            raise FileNotFoundError("no such file")
        with open(path, "rb") as file:
            if file.read(2) != b"PK":  # no zip file, which numpy would advise to unpickle
                raise ValueError("np.savez(file, NAME=array) writes one")
            file.seek(0)
            with np.load(file) as arrays:
                return dict(arrays)
    except Exception as error:  # of a dozen kinds, from numpy, zipfile and zlib
        raise InvalidInput(f"{path}: not a .npz file of named arrays ({error})") from None
