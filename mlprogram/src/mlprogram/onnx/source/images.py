"""Pixels for both sides, and whether both do the same to them before the first layer.

A package with an image input takes pixels of 0 to 255 and begins with the scale and bias that the
conversion was told. The source takes floats, and its file does not say which: pixels, pixels / 255,
or what a transform outside of it makes of them. `Pixels` says what the source is given. Then the
steps that only scale and shift each channel are compared as a whole, on both sides from the pixel
on: so a normalisation that is done twice, or by nobody, or in another order of channels, is named
as such, and not as a fault of the first convolution.

Letters: C channels, H height, W width.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mlprogram.errors import InvalidInput
from mlprogram.onnx.source.graph import SourceGraph, SourceInput
from mlprogram.onnx.source.match import PackageValue
from mlprogram.package.description import Feature
import numpy as np

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
CLOSE = 2e-3  # of the largest value
RAW = 20  # by how much black and white are apart at least where nothing was normalised


@dataclass(frozen=True)
class Affine:
    """scale * pixel + bias, each (C,) float64."""

    scale: np.ndarray
    bias: np.ndarray

    def of(self, pixels: np.ndarray) -> np.ndarray:
        """pixels (1, C, H, W) -> the same shape."""
        shape = (1, -1, 1, 1)
        return pixels * self.scale.reshape(shape) + self.bias.reshape(shape)

    def after(self, first: "Affine") -> "Affine":
        return Affine(self.scale * first.scale, self.scale * first.bias + self.bias)

    def near(self, other: "Affine") -> bool:
        """Whether both make the same of every pixel."""
        room = CLOSE * max(np.abs(self.ends()).max(), np.abs(other.ends()).max())
        return bool(np.abs(self.ends() - other.ends()).max() <= room)

    def ends(self) -> np.ndarray:
        """What black and white become, (2, C)."""
        return np.stack([self.bias, 255 * self.scale + self.bias])

    def __str__(self) -> str:
        return f"{_numbers(self.scale)} x pixel + {_numbers(self.bias)}"


def _affine(scale, bias) -> Affine:
    return Affine(np.broadcast_to(np.asarray(scale, np.float64), 3).copy(),
                  np.broadcast_to(np.asarray(bias, np.float64), 3).copy())


#: What a source may take in a pixel's place, by the names of the option --pixels.
PIXELS = {
    "raw": _affine(1.0, 0.0),
    "unit": _affine(1 / 255, 0.0),
    "signed": _affine(2 / 255, -1.0),
    "imagenet": _affine(1 / 255 / STD, -MEAN / STD),
}


@dataclass(frozen=True)
class Pixels:
    """What the source is given for a pixel. name: of PIXELS, or "package". why: who says so."""

    name: str
    affine: Affine
    why: str
    order: str = "rgb"

    def __str__(self) -> str:
        what = {"raw": "pixels of 0 to 255", "unit": "pixels / 255", "signed": "pixels in [-1, 1]",
                "imagenet": "pixels by ImageNet's mean and deviation",
                "package": "pixels as the package scales them"}[self.name]  # fmt: skip
        return f"{what}, {self.order.upper()} ({self.why})"


@dataclass(frozen=True)
class ImageFault:
    """What both sides do to an image otherwise: a kind, a sentence, the last node of it."""

    kind: str
    text: str
    node: str


def choose_pixels(
    asked: str, order: str, source: SourceGraph, name: str, own: Affine, package: Affine
) -> Pixels:
    """What the source is given.

    asked: of the option, "auto" for what the source shows: the range of its example, else what its
    first ops divide by. own: what they do to the input `name`. package: what the package's ops do.
    """
    if asked != "auto":
        return Pixels(asked, PIXELS[asked], "as --pixels says", order)
    example = source.inputs[name].example
    if example is not None and example.size and 0 <= example.min() < example.max():
        kind = "unit" if example.max() <= 1 else "raw"
        return Pixels(kind, PIXELS[kind], "as its example input is", order)
    white = float(np.abs(own.scale).max())
    if not own.near(Affine(np.ones_like(own.scale), np.zeros_like(own.bias))):
        kind = "raw" if white * 255 < RAW else "unit"
        return Pixels(kind, PIXELS[kind], "by what its first ops divide by", order)
    why = "the source does not show which values it takes; --pixels says it"
    return Pixels("package", package, why, order)


def prepared(
    feature: Feature, wanted: SourceInput, pixels: np.ndarray, given: Pixels
) -> np.ndarray:
    """The source's array for pixels (1, C, H, W) in the package's order of channels."""
    flipped = feature.color == "BGR"
    rgb = pixels[:, ::-1] if flipped else pixels
    made = given.affine.of(rgb[:, ::-1] if given.order == "bgr" else rgb)
    height_first = tuple(made.shape[axis] for axis in (0, 2, 3, 1))
    shape = tuple(size or 1 for size in wanted.shape)
    fits = [size in (None, had) for size, had in zip(wanted.shape, made.shape, strict=False)]
    if len(wanted.shape) == 4 and not all(fits) and shape == height_first:
        made = made.transpose(0, 2, 3, 1)
    elif made.size != int(np.prod([s or 1 for s in wanted.shape])) and None not in wanted.shape:
        raise InvalidInput(
            f"input {feature.name!r} of the package is an image {feature.shape}, and the source "
            f"takes {wanted.shape}: name another source, or convert for its size"
        )
    elif None not in wanted.shape:
        made = made.reshape(shape)
    return np.ascontiguousarray(made).astype(wanted.dtype)


def affine_between(pixels: np.ndarray, array: np.ndarray) -> Affine | None:
    """The scale and bias by channel that make `array` of pixels (1, C, H, W); None if none do."""
    if array.size != pixels.size:
        return None
    if array.shape != pixels.shape:
        moved = array.shape[-1] == pixels.shape[1] and array.ndim == 4
        array = array.transpose(0, 3, 1, 2) if moved else array.reshape(pixels.shape)
    x = pixels.transpose(1, 0, 2, 3).reshape(pixels.shape[1], -1).astype(np.float64)
    y = array.transpose(1, 0, 2, 3).reshape(pixels.shape[1], -1).astype(np.float64)
    dx = x - x.mean(1, keepdims=True)
    scale = (dx * y).sum(1) / np.maximum((dx**2).sum(1), 1e-30)
    bias = y.mean(1) - scale * x.mean(1)
    error = np.abs(y - scale[:, None] * x - bias[:, None]).max()
    if np.abs(scale).min() < 1e-9 or error > CLOSE * max(np.abs(y).max(), 1e-30):
        return None
    return Affine(scale, bias)


def of_package(name: str, values: list[PackageValue]) -> Affine:
    """What a package's ops do to its image input before the first that is more than a scale."""
    pixels = next(value.array for value in values if value.name == name)
    known = {value.name for value in values}
    made, found = {name}, affine_between(pixels, pixels)
    for value in values:
        reads = known.intersection(value.operands)  # the others are constants
        if reads and reads <= made and (one := affine_between(pixels, value.array)):
            made.add(value.name)
            found = one
    assert found is not None  # pixels are affine in themselves
    return found


def of_source(source: SourceGraph, name: str, constants: Mapping) -> tuple[Affine, str]:
    """What a source's first ops do to an input (1, C, H, W) of the numbers 0 to 255, and the last.

    They are run on random numbers: only a scale and a bias by channel count.
    """
    shape = source.inputs[name].shape
    plain = _affine(1.0, 0.0)
    if len(shape) != 4 or None in shape[1:]:
        return plain, ""
    last_axis = shape[3] in (1, 3) and shape[1] not in (1, 3)
    sizes = [int(size or 1) for size in shape]
    array = np.random.default_rng(0).uniform(0, 255, sizes).astype(source.inputs[name].dtype)
    pixels = array.transpose(0, 3, 1, 2) if last_axis else array
    if pixels.shape[1] != 3:
        plain = Affine(np.ones(pixels.shape[1]), np.zeros(pixels.shape[1]))
    values = dict(constants) | {name: array}
    made, last = {name}, ""
    for node in source.nodes:
        known = all(each in values for each in node.inputs)
        live = made.intersection(node.inputs)
        if not known or (node.inputs and not live and any(n in source.inputs for n in node.inputs)):
            continue
        try:
            results = source.run_node(node, values)
        except Exception:  # of any kind: this node is none of those that are looked for
            continue
        if not live:
            values |= results
            continue
        (result, *_) = results.values()
        if isinstance(result, np.ndarray) and (found := affine_between(pixels, result)):
            values |= results
            made.update(results)
            plain, last = found, node.name
    return plain, last


def image_fault(own: Affine, last: str, package: Affine, given: Pixels, color: str | None,
                name: str) -> ImageFault | None:  # fmt: skip
    """The fault, if both sides make something else of a pixel.

    own: what the source's first ops do to what it is given, the last of which is `last`.
    """
    if len(package.scale) == 3 and (color == "BGR") != (given.order == "bgr"):
        text = f"the package takes {color} images, the source is given {given.order.upper()}; " \
            "--channels says what the source takes"
        return ImageFault("channel order", text, last or name)
    wanted = own.after(given.affine)
    if package.near(wanted):
        return None
    flipped = Affine(package.scale[::-1], package.bias[::-1])
    if flipped.near(wanted) and len(package.scale) == 3:
        text = "the package scales the channels in the opposite order, as for the other of RGB, BGR"
        return ImageFault("channel order", text, last or name)
    says = f"the package makes {package} of a pixel, the source {wanted}"
    fed = Affine(package.scale / own.scale, (package.bias - own.bias) / own.scale)
    identity = Affine(np.ones_like(own.scale), np.zeros_like(own.bias))
    if last and not own.near(identity) and _range(fed) < RAW:
        return ImageFault("double normalisation", f"the image's scale and bias normalise, and the "
                          f"source's own ops do it again: {says}", last)  # fmt: skip
    if _range(package) > 1.1 * _range(wanted) and _range(wanted) < RAW:
        return ImageFault("missing normalisation", f"neither the image's scale and bias nor an op "
                          f"normalises as the source does: {says}", last or name)  # fmt: skip
    return ImageFault("normalisation", f"mean or deviation differ: {says}", last or name)


def _range(affine: Affine) -> float:
    """How far black and white are apart."""
    return float(np.abs(255 * affine.scale).max())


def _numbers(array: np.ndarray) -> str:
    same = np.allclose(array, array[0], rtol=1e-4)
    return f"{array[0]:.4g}" if same else "(" + ", ".join(f"{x:.4g}" for x in array) + ")"
