"""Lower one torch module to MIL operations, with its parameters left open for any weights."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
import gc
import hashlib
import shutil

from ane_book.conversion.write import kept
from ane_book.conversion.write.norms import join_norms, sharpen_epsilon
from mlprogram.package.files import proto
from mlprogram.package.messages import immediate
from mlprogram.package.reader import Package
from mlprogram.package.values import Constant
from mlprogram.progress import silent_coremltools
import numpy as np
import torch
from torch import Tensor, nn

OPSET = "CoreML8"  # iOS 18 / macOS 15
LARGE = 1 << 16  # values of a parameter


@dataclass(frozen=True)
class LoweredBlock:
    """A lowered module: MIL ops, its inputs, the names of its outputs, and where its weights go."""

    operations: list  # MIL_pb2.Operation
    inputs: dict[str, tuple[int, ...]]  # shapes, by name
    outputs: tuple[str, ...]
    parameters: dict[str, str]  # name of a constant -> name of the module's parameter


def lower(
    module: nn.Module,
    inputs: dict[str, Tensor],
    outputs: Sequence[str],
    norm_epsilon: float = 0.0,
    output_dtype: type = np.float16,
) -> LoweredBlock:
    """Lower a module to MIL in fp16, with its parameters left open.

    inputs: examples by name, in the order of `module.forward`. outputs: names for its results.
    norm_epsilon: eps of the module's norms, but for those with an `eps` of their own. Half
    precision holds 1e-5 to within 0.1 %, 1e-6 to within 1 % and 1e-10 not at all, so MIL's
    layer_norm gets its eps in single precision.

    What was lowered before is found in the cache (`ane_book.conversion.write.kept`), without
    coremltools, whose import alone takes seconds: other bits or another limit change no block.
    """
    module.eval().requires_grad_(False)  # or the trace keeps every intermediate for a gradient
    own = dict(module.named_parameters(remove_duplicate=False))
    module.load_state_dict(_stand_ins(module), strict=False, assign=True)
    try:
        traced = torch.jit.trace(module, tuple(inputs.values()), check_trace=False)
        layers = [vars(layer) for layer in module.modules()]
        epsilons = [norm_epsilon, *(layer["eps"] for layer in layers if "eps" in layer)]
        told = OPSET, [*inputs], [*outputs], epsilons, np.dtype(output_dtype).str
        key = kept.key(traced, module, told)
        block = kept.recall(key)
        if block is None:
            block = _lower(module, traced, inputs, outputs, epsilons, output_dtype)
            kept.keep(key, block)
    finally:
        module.load_state_dict(own, strict=False, assign=True)
    shapes = {name: tuple(example.shape) for name, example in inputs.items()}
    names = {
        constant: name.immediateValue.tensor.strings.values[0]
        for constant, name in block.attributes.items()
    }
    return LoweredBlock(list(block.operations), shapes, tuple(block.outputs), names)


def _stand_ins(module: nn.Module) -> dict[str, Tensor]:
    """Random values for a module's parameters, which may be on torch's device "meta", for each of
    the names of one that has several; a large one has one value for each row in memory.

    They are distinct, since passes fold special values, such as a norm of ones, and since weights
    are matched by their bytes. With a value for each weight a block of 100 million would take
    400 MB, and coremltools as much again. What moves values within a row of a large weight is not
    noticed therefore; what changes them, or their rows, is.
    """
    generator = torch.Generator().manual_seed(0)
    made = {}
    for name, value in module.named_parameters(remove_duplicate=False):
        shape = tuple(value.shape)
        if value.numel() > LARGE and len(value) > 1:
            shape = (len(value),) + (1,) * (value.dim() - 1)
        made[name] = torch.randn(shape, generator=generator).expand(value.shape)
    return made


@contextmanager
def _spared_collector() -> Iterator[None]:
    """Freeze the objects that exist: coremltools collects garbage at every conversion. What it
    leaves behind, in cycles with all constants, is collected at the end."""
    if gc.get_freeze_count():  # frozen by somebody else, who would miss it
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()


@contextmanager
def _spared_check() -> Iterator[None]:
    """Skip coremltools' check that a constant fits half precision where its least and greatest
    number say so: the check builds indices of ten times the constant's size."""
    from coremltools.converters.mil.mil.passes.defs.quantization import FP16ComputePrecision

    theirs = FP16ComputePrecision.fp16_overflow
    FP16ComputePrecision.fp16_overflow = staticmethod(lambda op: not _holds(op) and theirs(op))
    try:
        yield
    finally:
        FP16ComputePrecision.fp16_overflow = staticmethod(theirs)


def _holds(operation) -> bool:
    """Whether half precision holds all constant inputs of a MIL op."""
    values = [v if isinstance(v, list | tuple) else [v] for v in operation.inputs.values()]
    constants = [np.asarray(var.val) for each in values for var in each if var.val is not None]
    numbers = [array for array in constants if array.dtype.kind == "f" and array.size]
    return all(array.min() >= -65504 and array.max() <= 65504 for array in numbers)


@_spared_collector()
@silent_coremltools()
@_spared_check()
def _lower(
    module: nn.Module,
    traced,
    inputs: dict[str, Tensor],
    outputs: Sequence[str],
    epsilons: list[float],
    output_dtype: type,
):
    """Lower a traced module to a MIL_pb2.Block, whose attributes name the constants that are its
    parameters."""
    import coremltools as ct

    passes = ct.PassPipeline()
    passes.remove_passes({"common::fuse_conv_scale"})  # it changes weights, which here are open
    model = ct.convert(
        traced,
        inputs=[ct.TensorType(n, x.shape, dtype=np.float16) for n, x in inputs.items()],
        outputs=[ct.TensorType(n, dtype=output_dtype) for n in outputs],
        minimum_deployment_target=ct.target.iOS18,
        compute_units=ct.ComputeUnit.CPU_AND_NE,
        skip_model_load=True,
        pass_pipeline=passes,
    )
    spec = model.get_spec()
    block = spec.mlProgram.functions["main"].block_specializations[OPSET]
    package = Package.from_spec(spec, model.weights_dir)
    parameters = _find_parameters(module, package)
    operations = join_norms(list(block.operations))
    sharpen_epsilon(operations, epsilons)
    _inline_constants(operations, package, parameters)
    shutil.rmtree(model.package_path, ignore_errors=True)  # or it stays till exit
    made = proto("MIL_pb2").Block(operations=operations, outputs=block.outputs)
    for constant, name in parameters.items():
        made.attributes[constant].CopyFrom(immediate(name))
    return made


def _inline_constants(operations: list, package: Package, parameters: Collection[str]) -> None:
    """Give constants (MIL_pb2.Operation) their values, but for those named in `parameters`.

    coremltools puts those of more than ten numbers, such as the numbers 0 to E - 1 of experts, into
    a weight file, which is not that of the package that a piece is stamped into.
    """
    from coremltools.converters.mil.backend.mil import helper

    constants = {
        operation.name: operation.inputs["val"][0]
        for operation in package.functions["main"].operations()
        if operation.type == "const" and operation.name not in parameters
    }
    for operation in operations:
        constant = constants.get(operation.outputs[0].name) if operation.outputs else None
        if constant is not None and constant.blob:
            value = helper.create_tensor_value(constant.array())
            operation.attributes["val"].CopyFrom(value)


def _find_parameters(module: nn.Module, package: Package) -> dict[str, str]:
    """Match the program's constants with the module's parameters by their very bytes."""
    by_bytes = {
        _digest(value.detach().half().numpy()): name for name, value in module.named_parameters()
    }
    names = {}
    for operation in package.functions["main"].operations():
        constant = operation.inputs.get("val", [None])[0]
        if isinstance(constant, Constant) and constant.type.dtype == "fp16":
            name = by_bytes.get(_digest(constant.array()))
            if name:
                names[operation.name] = name
    if sorted(names.values()) != sorted(by_bytes.values()):
        lost = sorted(set(by_bytes.values()) ^ set(names.values()))
        raise RuntimeError(f"lowering did not keep these parameters as they are: {lost}")
    return names


def _digest(array: np.ndarray) -> bytes:
    """Hash an array's bytes alone: a parameter's constant may have another shape."""
    return hashlib.sha256(np.ascontiguousarray(array).view(np.uint8).data).digest()
