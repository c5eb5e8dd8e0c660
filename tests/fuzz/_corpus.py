"""The packages that the fuzzer starts from: small, real, one for each part of the format.

Most are made by coremltools: weights in a file, compressed weights of iOS 16 and iOS 18, two
functions, a state, flexible shapes, control flow, lists, an image, a classifier, ops whose
attributes shape what they do, and what the compiled kernels take (`_kernels.py`). Beside them stand
random programs whose constants lie in the ops (`tests/mlprogram/_inline.py`), which it does not
write.
"""

from collections.abc import Callable
from pathlib import Path
import sys

from _kernels import KERNELS
from _mutate_types import read, write
from _pymil import IOS16, IOS18, config, convert, spec, weights
import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
import coremltools.optimize.coreml as cto
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT), str(ROOT / "mlprogram")]  # `make fuzz` runs without pytest's paths
from _inline import make_program  # noqa: E402

INLINE = 4  # random programs


def mlp(target=IOS18):
    """Two products with weights in the weight file, one as a 1x1 convolution."""

    @mb.program(input_specs=[spec(1, 32, 1, 4)], opset_version=target)
    def program(x):
        h = mb.silu(x=mb.conv(x=x, weight=weights(48, 32, 1, 1), bias=weights(48)))
        h = mb.transpose(x=mb.squeeze(x=h, axes=[2]), perm=[0, 2, 1])  # -> (1, 4, 48)
        return mb.linear(x=h, weight=weights(16, 48), bias=weights(16), name="y")

    return convert(program, target)


def palettized(model):
    return cto.palettize_weights(
        model, config(cto.OpPalettizerConfig(mode="uniform", nbits=4, weight_threshold=64))
    )


def grouped(model):
    palette = cto.OpPalettizerConfig(
        mode="uniform", nbits=3, weight_threshold=64, granularity="per_grouped_channel",
        group_size=8,
    )  # fmt: skip
    return cto.palettize_weights(model, config(palette))


def int8(model):
    return cto.linear_quantize_weights(
        model, config(cto.OpLinearQuantizerConfig(mode="linear", weight_threshold=64))
    )


def int4(model):
    quantizer = cto.OpLinearQuantizerConfig(
        mode="linear", dtype="int4", granularity="per_block", block_size=8, weight_threshold=64
    )
    return cto.linear_quantize_weights(model, config(quantizer))


def sparse(model):
    return cto.prune_weights(
        model, config(cto.OpMagnitudePrunerConfig(target_sparsity=0.6, weight_threshold=64))
    )


def sparse_int8(model):
    quantizer = cto.OpLinearQuantizerConfig(mode="linear_symmetric", weight_threshold=64)
    return cto.linear_quantize_weights(sparse(model), config(quantizer), joint_compression=True)


def functions(parts: dict[str, Path]) -> ct.utils.MultiFunctionDescriptor:
    """One function of each package."""
    description = ct.utils.MultiFunctionDescriptor()
    for name, path in parts.items():
        description.add_function(str(path), src_function_name="main", target_function_name=name)
    description.default_function_name = min(parts)
    return description


def state():
    """Rows are written into a state at a position that is an input."""
    inputs = [
        spec(1, 2, 4, dtype=types.fp16),
        spec(1, dtype=types.int32),
        mb.StateTensorSpec((1, 8, 4), dtype=types.fp16),
    ]

    @mb.program(input_specs=inputs, opset_version=IOS18)
    def program(rows, position, memory):
        before = mb.read_state(input=memory)
        zero = np.zeros(1, np.int32)
        begin = mb.concat(values=[zero, position, zero], axis=0)
        end = mb.add(x=begin, y=np.array([1, 2, 4], np.int32))
        after = mb.slice_update(x=before, update=rows, begin=begin, end=end)
        mb.coreml_update_state(state=memory, value=after)
        return mb.reduce_sum(x=mb.read_state(input=memory), axes=[1], keep_dims=False, name="y")

    return convert(program)


def flexible():
    """A size that is known at run time only, and one of three shapes."""

    @mb.program(
        input_specs=[
            mb.TensorSpec((1, ct.converters.mil.mil.get_new_symbol("length"), 8)),
            mb.TensorSpec((1, 8)),
        ],
        opset_version=IOS18,
    )
    def program(x, y):
        sizes = mb.shape(x=x)
        flat = mb.reshape(x=x, shape=mb.concat(values=[mb.slice_by_size(
            x=sizes, begin=[1], size=[1]), np.array([8], np.int32)], axis=0))  # fmt: skip
        return mb.softmax(x=mb.matmul(x=flat, y=y, transpose_y=True), axis=0, name="z")

    shapes = [
        ct.TensorType("x", (1, ct.RangeDim(1, 16, default=4), 8)), ct.TensorType("y", (1, 8)),
    ]  # fmt: skip
    return convert(program, inputs=shapes)


def control():
    """A branch and a loop."""

    @mb.program(input_specs=[spec(2)], opset_version=IOS18)
    def program(x):
        total = mb.reduce_sum(x=x, axes=[0], keep_dims=False)
        start = mb.cond(
            pred=mb.greater(x=total, y=np.float32(10)),
            _true_fn=lambda: mb.mul(x=x, y=2.0), _false_fn=lambda: mb.abs(x=x),
        )  # fmt: skip
        count, result = mb.while_loop(
            _cond=lambda n, v: mb.less(x=n, y=np.int32(5)),
            _body=lambda n, v: (mb.add(x=n, y=np.int32(1)), mb.add(x=mb.mul(x=v, y=0.5), y=x)),
            loop_vars=(np.int32(0), start),
        )
        return mb.mul(x=result, y=mb.cast(x=count, dtype="fp32"), name="y")

    return convert(program, compute_precision=ct.precision.FLOAT32)


def lists():
    """A list that a loop fills."""

    @mb.program(input_specs=[spec(3, 2)], opset_version=IOS18)
    def program(x):
        ls = mb.make_list(init_length=3, elem_shape=(2,), dtype="fp32")

        def body(n, ls):
            row = mb.gather(x=x, indices=n, axis=0)
            return mb.add(x=n, y=np.int32(1)), mb.list_write(ls=ls, index=n, value=row)

        _, ls = mb.while_loop(
            _cond=lambda n, ls: mb.less(x=n, y=np.int32(3)), _body=body,
            loop_vars=(np.int32(0), ls),
        )  # fmt: skip
        rows = mb.list_gather(ls=ls, indices=np.array([2, 0], np.int32))
        return mb.add(x=rows, y=mb.list_read(ls=ls, index=np.int32(1)), name="y")

    return convert(program, compute_precision=ct.precision.FLOAT32)


def image():
    """An image through a convolution, pooling and resizing becomes another image."""

    @mb.program(input_specs=[spec(1, 3, 16, 16)], opset_version=IOS18)
    def program(x):
        h = mb.conv(
            x=x, weight=weights(4, 3, 3, 3), strides=[2, 2], pad_type="custom", pad=[1, 1, 1, 1]
        )
        h = mb.max_pool(x=mb.relu(x=h), kernel_sizes=[2, 2], strides=[2, 2], pad_type="valid")
        h = mb.upsample_bilinear(x=h, scale_factor_height=2, scale_factor_width=2)
        h = mb.conv_transpose(x=h, weight=weights(4, 3, 2, 2), strides=[2, 2], pad_type="valid")
        h = mb.instance_norm(x=h, gamma=np.ones(3, np.float32), beta=np.zeros(3, np.float32))
        return mb.resize_bilinear(
            x=h, target_size_height=10, target_size_width=7, sampling_mode="ALIGN_CORNERS", name="y"
        )

    picture = ct.ImageType("x", (1, 3, 16, 16), scale=1 / 255, color_layout=ct.colorlayout.RGB)
    return convert(program, inputs=[picture], outputs=[ct.ImageType("y")])


def classifier():
    """Three labels, two of them likely."""

    @mb.program(input_specs=[spec(1, 8)], opset_version=IOS18)
    def program(x):
        return mb.softmax(x=mb.linear(x=x, weight=weights(3, 8)), axis=-1)

    return convert(program, classifier_config=ct.ClassifierConfig(["ant", "bee", "cat"]))


def attention():
    """What a transformer is made of."""

    @mb.program(input_specs=[spec(1, 4, 16), spec(1, 4, dtype=types.int32)], opset_version=IOS18)
    def program(x, ids):
        h = mb.layer_norm(x=x, axes=[-1], gamma=np.ones(16, np.float32), epsilon=1e-5)
        heads = mb.transpose(x=mb.reshape(x=h, shape=[1, 4, 2, 8]), perm=[0, 2, 1, 3])
        h = mb.scaled_dot_product_attention(query=heads, key=heads, value=heads)
        first, second = mb.split(x=h, num_splits=2, axis=1)
        h = mb.squeeze(x=mb.concat(values=[second, first], axis=3), axes=[1])
        h = mb.add(x=h, y=mb.gather(x=weights(11, 16), indices=ids, axis=0))
        h = mb.slice_by_index(x=h, begin=[0, 1, 0], end=[0, 4, 16], begin_mask=[True, False, True],
                              end_mask=[True, False, True], stride=[1, 2, 1])  # fmt: skip
        values, indices = mb.topk(x=mb.gelu(x=h), k=3, axis=-1)
        return mb.mul(x=values, y=mb.cast(x=indices, dtype="fp32"), name="z")

    return convert(program)


def moves():
    """Ops whose attributes are sizes, axes and indices."""

    @mb.program(input_specs=[spec(1, 4, 6, 6)], opset_version=IOS18)
    def program(x):
        h = mb.pad(x=x, pad=[1, 1, 2, 2], mode="reflect")
        h = mb.depth_to_space(x=h, block_size=2)
        h = mb.space_to_depth(x=h, block_size=2)
        h = mb.avg_pool(x=h, kernel_sizes=[3, 3], strides=[2, 2], pad_type="same",
                        exclude_padding_from_average=True)  # fmt: skip
        h = mb.tile(x=h, reps=[1, 1, 2, 1])
        h = mb.cumsum(x=mb.reverse(x=h, axes=[3]), axis=2, exclusive=True)
        h = mb.band_part(x=h, lower=1, upper=2)
        h = mb.crop(x=h, crop_height=[1, 1], crop_width=[0, 1])
        h = mb.sliding_windows(x=h, axis=2, size=2, stride=2)
        h = mb.reduce_log_sum_exp(x=h, axes=[3], keep_dims=False)
        h = mb.flatten2d(x=h, axis=2)
        picked = mb.gather_nd(x=h, indices=np.array([[0, 1], [3, 2]], np.int32), batch_dims=0)
        h = mb.scatter(data=h, indices=np.array([0], np.int32), axis=0, mode="add",
                       updates=np.ones((1, h.shape[1]), np.float32))  # fmt: skip
        two = mb.cast(x=mb.cos(x=mb.mul(x=mb.reduce_sum(x=x), y=0.0)), dtype="int32")  # 1 = cos 0
        two = mb.add(x=two, y=two)  # computed, so that what follows is not folded away
        count = mb.range_1d(start=np.int32(0), end=two, step=np.int32(1))
        hot = mb.one_hot(indices=count, one_hot_vector_size=two, on_value=1.0, off_value=0.0)
        filled = mb.fill(shape=mb.expand_dims(x=two, axes=[0]), value=0.5)
        filled = mb.matmul(x=hot, y=mb.expand_dims(x=filled, axes=[1]))
        picked = mb.add(x=picked, y=mb.reshape(x=filled, shape=[-1]))
        h = mb.gather_along_axis(x=h, indices=mb.argsort(x=h, axis=0), axis=0)
        return mb.concat(values=[mb.reshape(x=h, shape=[-1]), picked], axis=0, name="y")

    return convert(program, compute_precision=ct.precision.FLOAT32)


def recurrent():
    """A recurrent layer over a sequence."""

    @mb.program(input_specs=[spec(3, 1, 4)], opset_version=IOS18)
    def program(x):
        _, h, _ = mb.lstm(x=x, initial_h=weights(1, 5), initial_c=weights(1, 5),
                          weight_ih=weights(20, 4), weight_hh=weights(20, 5),
                          bias=weights(20), direction="forward")  # fmt: skip
        return mb.identity(x=h, name="y")

    return convert(program, compute_precision=ct.precision.FLOAT32)


MODELS: dict[str, Callable] = {
    "mlp": mlp, "state": state, "flexible": flexible, "control": control, "lists": lists,
    "image": image, "classifier": classifier, "attention": attention, "moves": moves,
    "recurrent": recurrent, **KERNELS,
}  # fmt: skip

COMPRESSED = {
    "palette-16": (palettized, IOS16), "int8-16": (int8, IOS16), "sparse-16": (sparse, IOS16),
    "palette": (grouped, IOS18), "int4": (int4, IOS18), "sparse-int8": (sparse_int8, IOS18),
}  # fmt: skip


def make(folder: Path) -> None:
    """Make every package in `folder`."""
    paths = {name: folder / f"{name}.mlpackage" for name in [*MODELS, *COMPRESSED, "functions"]}
    for name, build in MODELS.items():
        build().save(str(paths[name]))
    for name, (change, target) in COMPRESSED.items():
        change(mlp(target)).save(str(paths[name]))
    parts = {name: paths[name] for name in ("mlp", "attention")}
    ct.utils.save_multifunction(functions(parts), str(paths["functions"]))
    for seed in range(INLINE):
        make_program(seed).write(folder / f"inline-{seed}.mlpackage")
    for path in paths.values():
        write(path, read(path))  # in the same order every time
