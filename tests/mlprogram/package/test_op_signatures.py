"""Every op of the groups that compute takes MIL's inputs, with MIL's defaults."""

from functools import cache
from inspect import signature
from types import SimpleNamespace

import coremltools as ct
from coremltools.converters.mil.mil import types
from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry
from coremltools.converters.mil.mil.passes.pass_registry import PASS_REGISTRY
from mlprogram.ops import OPS
import numpy as np

TARGETS = [ct.target.iOS15, ct.target.iOS16, ct.target.iOS17, ct.target.iOS18]

#: What `compile.py` turns into Python itself; `_const_symbolic` never leaves the converter.
STRUCTURE = {"const", "_const_symbolic", "cond", "while_loop"}

#: Ops that never reach a package, by the start of their name: what makes others of them.
LOWERED = {
    "complex": "common::lower_complex_dialect_ops",
    "tf_": "tensorflow::tf_lstm_to_core_lstm",
    "torch_tensor_assign": "torch::torch_tensor_assign_to_core",
    "torch_upsample": "torch::torch_upsample_to_core_upsample",
}

#: MIL's default is False; None is a program of iOS 15 or 16, which has no such input.
UNKNOWN_BEFORE_IOS17 = {"validate_indices"}


@cache
def mil_ops():
    """Name -> classes of all versions, for all core ops of coremltools that compute."""
    found = {}
    for name, versions in SSAOpRegistry.core_ops.items():
        classes = {version for target, version in versions.items() if target in TARGETS}
        if classes and name not in STRUCTURE:
            found[name] = classes
    return found


def test_every_op_is_there_with_its_inputs():
    assert len(mil_ops()) == 164  # those of coremltools 9.0
    assert set(OPS) == set(mil_ops())
    for name, classes in mil_ops().items():
        names = set().union(*(c.input_spec.input_types for c in classes))
        assert OPS[name].parameters - {"_out"} == names, name
        assert OPS[name].static <= names, name
        for key, default in signature(OPS[name].function).parameters.items():
            if key != "_out" and key != "pad_type":  # pools require it, convolutions do not
                specs = [c.input_spec.input_types.get(key) for c in classes]
                required = all(specs) and not all(spec.optional for spec in specs)
                assert (default.default is default.empty) == required, (name, key)


def test_ops_of_dialects_become_ops_that_are_there():
    dialects = {n for n in SSAOpRegistry.dialect_ops if not n.startswith(tuple(LOWERED))}
    assert dialects == {"coreml_update_state"}  # in a package: `write_state` and `read_state`
    assert set(LOWERED.values()) <= set(PASS_REGISTRY.passes)


def test_defaults_are_mils():
    """Scalars and names; lists depend on the rank and are None here."""
    compared = set()
    for name, classes in mil_ops().items():
        parameters = signature(OPS[name].function).parameters
        for kind in classes:
            operation = object.__new__(kind)  # default_inputs asks its inputs for no more than this
            tensor = SimpleNamespace(rank=4, dtype=types.fp32, shape=(1, 2, 3, 4), val=True)
            vars(operation).update(dict.fromkeys(kind.input_spec.input_types, tensor))
            operation.weight = SimpleNamespace(shape=(2, 2, 1, 1), dtype=types.fp32)
            for key, value in operation.default_inputs().items():
                if np.ndim(value) == 0 and key not in UNKNOWN_BEFORE_IOS17:
                    assert parameters[key].default == value or np.isclose(
                        parameters[key].default, float(value), rtol=1e-6
                    ), (name, key)
                    compared.add(name)
    assert len(compared) > 35
