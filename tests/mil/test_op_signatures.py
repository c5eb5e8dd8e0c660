"""Every op of the groups that compute takes MIL's inputs, with MIL's defaults."""

from functools import cache
from inspect import signature
from types import SimpleNamespace

from ane_book.mil.ops import OPS
import coremltools as ct
from coremltools.converters.mil.mil import types
from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry
import numpy as np

GROUPS = {
    *("elementwise_unary", "elementwise_binary", "activation", "reduction", "normalization"),
    *("linear", "conv", "pool", "random", "recurrent", "classify"),
}
TARGETS = [ct.target.iOS15, ct.target.iOS16, ct.target.iOS17, ct.target.iOS18]


@cache
def mil_ops():
    """Name -> classes of all versions, for the ops that coremltools defines in our groups."""
    found = {}
    for name in SSAOpRegistry.core_ops:
        classes = {v for t, v in SSAOpRegistry.core_ops[name].items() if t in TARGETS}
        if {c.__module__.split(".")[-1] for c in classes} & GROUPS:
            found[name] = classes
    return found


def test_every_op_of_the_groups_is_there_with_its_inputs():
    assert len(mil_ops()) > 90
    for name, classes in mil_ops().items():
        names = set().union(*(c.input_spec.input_types for c in classes))
        assert OPS[name].parameters - {"_out"} == names, name
        assert OPS[name].static <= names, name
        for key, default in signature(OPS[name].function).parameters.items():
            if key != "_out" and key != "pad_type":  # pools require it, convolutions do not
                required = any(
                    not c.input_spec.input_types[key].optional
                    for c in classes
                    if key in c.input_spec.input_types
                )
                assert (default.default is default.empty) == required, (name, key)


def test_defaults_are_mils():
    """Scalars and names; lists depend on the rank and are None here."""
    compared = set()
    for name, classes in mil_ops().items():
        parameters = signature(OPS[name].function).parameters
        for kind in classes:
            operation = object.__new__(kind)  # default_inputs asks its inputs for no more than this
            operation.x = SimpleNamespace(rank=4, dtype=types.fp32, shape=(1, 2, 3, 4))
            operation.weight = SimpleNamespace(shape=(2, 2, 1, 1), dtype=types.fp32)
            for key, value in operation.default_inputs().items():
                if np.ndim(value) == 0:
                    assert parameters[key].default == value or np.isclose(
                        parameters[key].default, float(value), rtol=1e-6
                    ), (name, key)
                    compared.add(name)
    assert len(compared) > 35
