"""Core ML on the CPU alone, in a process that imports this before it opens a model.

A virtual Mac has no Neural Engine, and Core ML would look for one for half an hour, wherever a
notebook leaves the compute units to it.
"""

from coremltools.models import model


class OnCPU(model._MLModelProxy):
    """Core ML's class, whose second argument names the compute units."""

    def __init__(self, path, compute_units, *others):
        super().__init__(path, "CPU_ONLY", *others)


model._MLModelProxy = OnCPU
