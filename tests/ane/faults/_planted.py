"""Packages with one op or few, built op by op, and the rule that finds one fault."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from mlprogram.ane import faults
from mlprogram.ane.faults import mendable
from mlprogram.ane.laws.rule import Rule

TARGET = ct.target.iOS18
DTYPES = {"fp16": types.fp16, "fp32": types.fp32, "int32": types.int32}


def program(build: Callable, dtype: str = "fp16", **inputs):
    """A program of one function: build(name=value, ...) gives its outputs.

    inputs: shapes by name, or (shape, dtype) where it is another than `dtype`.
    """
    specs, names = [], [*inputs]
    for given in inputs.values():
        shape, kind = given if isinstance(given[-1], str) else (given, dtype)
        specs.append(mb.TensorSpec(shape=shape, dtype=DTYPES[kind]))
    namespace: dict = {"build": build}
    source = f"def main({', '.join(names)}): return build({', '.join(f'{n}={n}' for n in names)})"
    exec(source, namespace)  # the builder reads the names of the parameters
    return mb.program(input_specs=specs, opset_version=TARGET)(namespace["main"])


def number(value, like):
    """A constant in the dtype of a value."""
    return types.nptype_from_builtin(like.dtype)(value)


def dtype_of(like) -> str:
    return types.builtin_to_string(like.dtype)


def saved(made, path: Path, passes: bool = False) -> Path:
    """Write a program as a package, by default without a pass that changes its ops."""
    pipeline = ct.PassPipeline.DEFAULT if passes else ct.PassPipeline.EMPTY
    ct.convert(
        made, pass_pipeline=pipeline, compute_precision=ct.precision.FLOAT32,
        minimum_deployment_target=TARGET, skip_model_load=True,
    ).save(str(path))  # fmt: skip
    return path


def alone(fault: str) -> Mapping[str, Rule]:
    """One fault, found by its pattern in whatever is made by whoever."""
    known = mendable()[fault]
    if not isinstance(known, faults.Fault):
        return {fault: known}
    return {fault: replace(known, of="Core ML", find=lambda graph, _: known.look(graph))}
