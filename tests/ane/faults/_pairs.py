"""Pairs of small packages, one that has a fault and one that nearly has it, by the MIL builder.

Where the builder refuses to make what is wanted, its protobuf is edited.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
import tomllib
from typing import Any

import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import Function, Program, types
from mlprogram.ane import faults, laws
from mlprogram.ane.faults import fault

HALF, SINGLE, INT, INT8 = types.fp16, types.fp32, types.int32, types.int8


@dataclass(frozen=True)
class Form:
    """inputs, states: (shape, dtype). functions: how many, all alike. edit: of the protobuf."""

    inputs: tuple = ()
    states: tuple = ()
    target: Any = ct.target.iOS18
    functions: int = 1
    edit: Callable | None = None


@dataclass(frozen=True)
class Case:
    """network: builds a function; told first whether to plant the fault, then its inputs."""

    fault: str
    network: Callable
    form: Form
    near: dict = field(default_factory=dict)  # of the form, in the near miss, which is not edited
    others: frozenset = frozenset()  # faults that both have

    def seen(self, planted: bool) -> set[str]:
        """The faults found in the package that has it, or nearly has it, but for `others`."""
        findings = laws.check(self.made(planted), faults.load()).findings
        return {finding.rule.id for finding in findings} - self.others

    def made(self, planted: bool) -> ct.models.MLModel:
        form = self.form if planted else replace(self.form, **{"edit": None, **self.near})
        return _made(self.network, planted, form)


class Cases(list):
    def __call__(self, fault: str, *inputs, near=None, others=(), **options):
        """Enter a network into the list, for the fault of this name."""

        def enter(network):
            form = Form(inputs, **options)
            self.append(Case(fault, network, form, near or {}, frozenset(others)))
            return network

        return enter

    @staticmethod
    def of_file(name: str) -> set[str]:
        """The faults that a file of data/ records."""
        return set(tomllib.loads((fault.DATA / name).read_text(encoding="utf-8")))


def _made(network: Callable, planted: bool, form: Form) -> ct.models.MLModel:
    program = Program()
    for number in range(form.functions):
        given = {
            name: mb.placeholder(shape=shape, dtype=dtype)
            for name, (shape, dtype) in zip("xyz", form.inputs, strict=False)
        } | {
            f"state_{i}": mb.state_tensor_placeholder(shape=shape, dtype=dtype)
            for i, (shape, dtype) in enumerate(form.states)
        }
        with Function(given, opset_version=form.target) as function:
            function.set_outputs([network(planted, *function.inputs.values())])
            program.add_function(f"f{number}" if number else "main", function)
    program.export_as_multifunction = form.functions > 1
    made = ct.convert(
        program,
        convert_to="mlprogram",
        pass_pipeline=ct.PassPipeline.EMPTY,
        minimum_deployment_target=form.target,
        skip_model_load=True,
    )
    if form.edit is None:
        return made
    spec = made.get_spec()
    form.edit(spec)
    return ct.models.MLModel(spec, weights_dir=made.weights_dir, skip_model_load=True)


def ops(spec):
    """The ops of a package's function main."""
    (block,) = spec.mlProgram.functions["main"].block_specializations.values()
    return block.operations
