"""Ops that gather, scatter, move space to depth and sample images, against independent oracles.

The oracles are as in `test_shapes_slices.py`, whose helpers this file uses.
"""

from _oracle import FLOATS, run
from mlprogram.errors import InvalidInput
import numpy as np
import pytest
from test_shapes_slices import DTYPES, grid, numbers, same
import torch
from torch.nn import functional as F

# --- gather and scatter -----------------------------------------------------------------------


OPERATORS = {
    "update": lambda old, new: new,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
}


def combine(mode, data, writes):
    """`data` with one write after the other, (index, update), in float64; cut for integers."""
    y = data.astype(np.float64)
    for index, update in writes:
        y[index] = OPERATORS[mode](y[index], update.astype(np.float64))
    return np.trunc(y) if data.dtype == np.int32 else y


@pytest.mark.parametrize("dtype, mode", grid(DTYPES, OPERATORS))
def test_scatter(dtype, mode):
    tolerance = {np.float32: 1e-5, np.float16: 2e-3, np.int32: 0}[dtype]
    data = numbers(4, 3, 2, dtype=dtype)
    indices = np.int32([2, 0, 2 if mode != "update" else -1])
    updates = numbers(4, 3, 2, seed=1, dtype=dtype, low=1)
    y = run("scatter", data=data, indices=indices, updates=updates, axis=1, mode=mode)
    writes = [((slice(None), i), updates[:, n]) for n, i in enumerate(indices % 3)]
    same(y, combine(mode, data, writes), dtype, tolerance)
    more = {"indices": indices[:, None], "updates": updates[:, :, None]}  # indices of two axes
    same(run("scatter", data=data, **more, axis=1, mode=mode), y, dtype, 0)

    along = np.stack([np.roll(np.int32([2, 0, 1]), i) for i in range(8)], 1).reshape(3, 4, 2)
    along = np.moveaxis(along, 0, 1)
    y = run("scatter_along_axis", data=data, indices=along, updates=updates, axis=1, mode=mode)
    writes = [((p[0], along[p], p[2]), updates[p]) for p in np.ndindex(along.shape)]
    same(y, combine(mode, data, writes), dtype, tolerance)

    points = np.int32([[3, 1], [0, 2], [3, 1 if mode != "update" else 0]])
    rows = updates[:3, 0]
    y = run("scatter_nd", data=data, indices=points, updates=rows, mode=mode)
    writes = [(tuple(p), rows[n]) for n, p in enumerate(points)]
    same(y, combine(mode, data, writes), dtype, tolerance)


def test_scatter_of_nothing_leaves_all_as_it_was():
    data, none = numbers(6, 2), np.zeros((0, 1), np.int32)
    updates = np.zeros((0, 2), np.float32)
    same(run("scatter_nd", data=data, indices=none, updates=updates, mode="update"), data)
    same(run("scatter", data=data, indices=none[:, 0], updates=updates, mode="update"), data)


def test_scatter_of_half_is_rounded_once():
    data, updates = np.float16([2048]), np.ones((4,), np.float16)
    same(run("scatter", data=data, indices=np.zeros(4, np.int32), updates=updates), [2052])


@pytest.mark.parametrize("index, validate", [(3, None), (-4, None), (-1, True), (3, True)])
def test_indices_outside_are_refused(index, validate):
    x, at = numbers(3, 2), {"indices": np.int32([index]), "validate_indices": validate}
    along, nd = np.full((1, 2), index, np.int32), np.int32([[index]])
    with pytest.raises(InvalidInput, match=r"outside \[0, 3\)"):
        run("gather", x=x, **at)
    with pytest.raises(InvalidInput, match="gather_along_axis"):
        run("gather_along_axis", x=x, **at | {"indices": along})
    with pytest.raises(InvalidInput, match="gather_nd"):
        run("gather_nd", x=x, **at | {"indices": nd})
    with pytest.raises(InvalidInput, match="scatter"):
        run("scatter", data=x, updates=x[:1], **at)
    with pytest.raises(InvalidInput, match="scatter_nd"):
        run("scatter_nd", data=x, updates=x[:1], **at | {"indices": nd})


def test_unchecked_indices_outside_stay_in_memory():
    """`validate_indices` False: a read takes an element of x, an update is left out."""
    x, index, row = numbers(3, 2), np.int32([-4, 1, 3]), np.full((1, 2), 9, np.float32)
    nd, along = index[:, None], np.repeat(index[:, None], 2, 1)
    for name, indices in {"gather": index, "gather_along_axis": along, "gather_nd": nd}.items():
        y = run(name, x=x, indices=indices, validate_indices=False)
        np.testing.assert_array_equal(y, x[[0, 1, 2]], name)
    updates = np.repeat(row, 3, 0)
    expected = np.stack([x[0], row[0], x[2]])
    for name, indices in {"scatter": index, "scatter_along_axis": along, "scatter_nd": nd}.items():
        at = {"indices": indices, "validate_indices": False, "mode": "update"}
        np.testing.assert_array_equal(run(name, data=x, updates=updates, **at), expected, name)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_gather_takes_small_integers(dtype):
    x, indices = np.arange(12).reshape(3, 4).astype(dtype), np.array([[2, 0]]).astype(dtype)
    same(run("gather", x=x, indices=indices), x[[[2, 0]]], dtype)
    along = np.zeros((1, 4), dtype)
    same(run("gather_along_axis", x=x, indices=along), x[:1], dtype)


# --- images -----------------------------------------------------------------------------------

#: Grids from MIL's documentation of resize_bilinear: two pixels, 0 and 1, resized to five or six.
GRIDS = {
    "STRICT_ALIGN_CORNERS": ([0, 0.25, 0.5, 0.75, 1], [0, 0.2, 0.4, 0.6, 0.8, 1]),
    "ALIGN_CORNERS": ([0, 0.25, 0.5, 0.75, 1], [0, 0.2, 0.4, 0.6, 0.8, 1]),
    "DEFAULT": ([0, 0.4, 0.8, 1, 1], [0, 1 / 3, 2 / 3, 1, 1, 1]),
    "OFFSET_CORNERS": ([0.1, 0.3, 0.5, 0.7, 0.9], [(2 * i + 1) / 12 for i in range(6)]),
    "UNALIGN_CORNERS": ([0, 0.1, 0.5, 0.9, 1], [0, 0, 1 / 3, 2 / 3, 1, 1]),
}


@pytest.mark.parametrize("mode, dtype", grid(GRIDS, FLOATS))
def test_resize_bilinear_grids(mode, dtype):
    for want in GRIDS[mode]:
        x, size = dtype([[[0, 1]]]), len(want)
        wide = run("resize_bilinear", x=x, target_size_height=1, target_size_width=size,
                    sampling_mode=mode)  # fmt: skip
        same(wide, [[want]], dtype, 1e-3)
        tall = run("resize", x=x.mT, shape=[9, size, 0], resized_dims=2, sampling_mode=mode)
        same(tall[0, :, 0], want, dtype, 1e-3)
    one = run("resize_bilinear", x=np.float32([[[2, 4, 9]]]), sampling_mode=mode)
    same(one, [[[{"ALIGN_CORNERS": 4, "OFFSET_CORNERS": 4, "UNALIGN_CORNERS": 4}.get(mode, 2)]]])


@pytest.mark.parametrize("height, width", [(9, 4), (3, 12), (2, 7), (5, 6)])
def test_nearest_neighbours_are_torchs(height, width):
    x = numbers(1, 2, 5, 6, dtype=np.float16)
    image = torch.from_numpy(x).float()
    exact = F.interpolate(image, (height, width), mode="nearest-exact").numpy()
    arguments = {"target_size_height": height, "target_size_width": width}
    same(run("resize_nearest_neighbor", x=x, **arguments), exact, np.float16)
    arguments = {
        "shape": [height, width],
        "resized_dims": 2,
        "interpolation_mode": "NEAREST_NEIGHBOR",
    }
    same(run("resize", x=x, **arguments), exact, np.float16)
    floor = F.interpolate(image, (height, width), mode="nearest").numpy()
    factors = {"scale_factor_height": (height + 1e-4) / 5, "scale_factor_width": (width + 1e-4) / 6}
    same(run("upsample_nearest_neighbor", x=x, **factors), floor, np.float16)


#: Boxes and results of Apple's op tests (defs tests, iOS 14, 16 and 17) on a 4 x 4 image of 1..16.
IMAGE = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
CROPS = [
    ([1, 1, 2, 2], 2, [6, 7, 10, 11]),
    ([1, 1, 2, 2], 1, [8.5]),
    ([2, 2, 1, 1], 2, [11, 10, 7, 6]),
    ([0, 1, 0, 1], 2, [2, 2, 2, 2]),
]


@pytest.mark.parametrize("box, size, want", CROPS)
def test_crop_resize_in_every_box_mode(box, size, want):
    top, left, bottom, right = box
    centre = [(top + bottom) / 2, (left + right) / 2, bottom - top, right - left]
    modes = {"CORNERS_HEIGHT_FIRST": box, "CORNERS_WIDTH_FIRST": [left, top, right, bottom],
             "CENTER_SIZE_HEIGHT_FIRST": centre,
             "CENTER_SIZE_WIDTH_FIRST": [centre[1], centre[0], centre[3], centre[2]]}  # fmt: skip
    sizes = {"target_height": size, "target_width": size, "sampling_mode": "ALIGN_CORNERS"}
    want = np.float32(want).reshape(size, size)
    for mode, coordinates in modes.items():
        sizes["box_coordinate_mode"] = mode
        table = np.float32(coordinates)
        y = run("crop_resize", x=np.concatenate([IMAGE, -IMAGE]), **sizes,
                 boxes=np.stack([table, table]))  # fmt: skip
        same(y, np.stack([want, -want])[:, None])
        y = run("crop_resize", x=np.concatenate([IMAGE, -IMAGE]), **sizes,
                 roi=(table / 2).reshape(1, 1, 4, 1, 1), spatial_scale=2.0)  # fmt: skip
        same(y, np.stack([want, -want])[None, :, None])


@pytest.mark.parametrize(
    "mode, box, want",
    [
        ("ALIGN_CORNERS", [-0.5, 0, 1, 0], [9, 2, 5]),  # rows -0.5, 0.25 and 1 of 1, 5, 9, 13
        ("OFFSET_CORNERS", [1, 0, 1.3, 0], [37 / 6, 7.5, 53 / 6]),  # a box has a pixel at least
        ("OFFSET_CORNERS", [-3, 0, 1.5, 0], [9, 1.5, 4.5]),  # rows -2.25, -0.75 and 0.75
        ("UNALIGN_CORNERS", [1, 0, 3, 0], [5, 9, 13]),
        ("DEFAULT", [0, 0, 4, 0], [1, 23 / 3, 13]),  # rows 0, 5/3 and 10/3
    ],
)
def test_crop_resize_rows(mode, box, want):
    y = run("crop_resize", x=IMAGE, boxes=np.float32([box]), target_height=3, sampling_mode=mode,
             pad_value=9.0)  # fmt: skip
    same(y.reshape(-1), np.float32(want), np.float32, 1e-5)


@pytest.mark.parametrize("mode", GRIDS)
def test_crop_resize_of_the_whole_image_is_resize_bilinear(mode):
    x = numbers(1, 3, 5, 4)
    size = {"target_height": 7, "target_width": 3, "sampling_mode": mode}
    y = run(
        "crop_resize", x=x, boxes=np.float32([[0, 0, 1, 1]]), normalized_coordinates=True, **size
    )
    want = run(
        "resize_bilinear", x=x, target_size_height=7, target_size_width=3, sampling_mode=mode
    )
    same(y, want, tolerance=1e-6)


PADDINGS = {
    ("constant", True): ("zeros", True),
    ("constant", False): ("zeros", False),
    ("border", True): ("border", True),
    ("border", False): ("border", False),
    ("reflection", True): ("reflection", True),  # torch mirrors at centres when corners align,
    ("symmetric", False): ("reflection", False),  # and at the edges when they do not
}


@pytest.mark.parametrize("case, sampling, dtype", grid(PADDINGS, ["bilinear", "nearest"], FLOATS))
def test_resample_is_torchs_grid_sample(case, sampling, dtype):
    (padding, align), (torch_padding, _) = case, PADDINGS[case]
    x, where = numbers(2, 3, 4, 5, dtype=dtype), numbers(2, 6, 7, 2, low=-3, high=3)
    want = F.grid_sample(
        torch.from_numpy(x).float(), torch.from_numpy(where), sampling, torch_padding, align
    )
    common = {"x": x, "sampling_mode": sampling, "padding_mode": padding, "padding_value": 0.0}
    y = run("resample", coordinates=where, coordinates_mode="normalized_minus_one_to_one",
             align_corners=align, **common)  # fmt: skip
    tolerance = 1e-4 if dtype == np.float32 else 1e-2
    same(y, want.numpy(), dtype, tolerance)
    unit = run("resample", coordinates=(where.astype(np.float64) + 1) / 2, **common,
                coordinates_mode="normalized_zero_to_one", align_corners=align)  # fmt: skip
    same(unit, want.numpy(), dtype, tolerance)


@pytest.mark.parametrize("align, batch", grid([True, False], [1, 2]))
def test_affine_is_torchs(align, batch):
    x, matrix = numbers(2, 3, 4, 5), numbers(batch, 6, low=-2, high=2)
    grid = F.affine_grid(
        torch.from_numpy(matrix).reshape(-1, 2, 3).expand(2, -1, -1), [2, 3, 6, 7], align
    )
    want = F.grid_sample(torch.from_numpy(x), grid, align_corners=align).numpy()
    y = run("affine", x=x, transform_matrix=matrix, output_height=6, output_width=7,
             sampling_mode="bilinear", padding_mode="constant", padding_value=0.0,
             coordinates_mode="normalized_minus_one_to_one", align_corners=align)  # fmt: skip
    same(y, want, np.float32, 1e-4)
