"""The graph of a source: what a package was converted from, as ops in order that can be run alone.

    source = open_source("model.onnx")            # or module.pt2, or python:file.py:function
    for node in source.nodes:
        values |= source.run_node(node, values)   # name -> array

A node is run by whoever defines it: ONNX Runtime, or PyTorch. So a node can be run on the values
that a package has at its inputs, and with one of its settings changed.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlprogram.errors import InvalidInput
from mlprogram.onnx.file import load_onnx
import numpy as np


@dataclass(frozen=True)
class SourceNode:
    """One op. inputs, outputs: names of values. where: module path or line, "" if not known.

    settings: its attributes by name, defaults included: the part that is no tensor.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    where: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        return f"{self.op} {self.name!r}" + (f" in {self.where}" if self.where else "")


@dataclass(frozen=True)
class SourceInput:
    """An input. shape: None stands for an open size. example: an array that the source brings."""

    dtype: np.dtype
    shape: tuple[int | None, ...]
    example: np.ndarray | None = None


class SourceGraph(ABC):
    """A source.

    title: what it is and who runs it. nodes: in an order in which each value is made before it is
    read. constants: arrays by name; whoever compares may replace them, such as by what a package
    stores. Values that are no arrays (a tuple of several results) are nobody's business outside.
    """

    title: str
    inputs: dict[str, SourceInput]
    outputs: list[str]
    nodes: list[SourceNode]
    constants: dict[str, np.ndarray]

    @abstractmethod
    def run_node(
        self, node: SourceNode, values: Mapping[str, Any], settings: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """What a node makes of `values`, by name. settings: its own if None."""

    def plausible(self, shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
        """Arrays for inputs of these shapes that mean something; none where nothing tells."""
        return {}


def open_source(text: str, trusted: bool = False) -> SourceGraph:
    """Open a source by its name on the command line. Raises InvalidInput and what reading raises.

    text: FILE.onnx; FILE.pt2, which `torch.export.save` wrote; or python:FILE.py:FUNCTION or
    python:MODULE:FUNCTION, of a function without arguments that returns a module and its inputs.
    trusted: whether a .pt2, which is a program, may run.
    """
    if text.startswith("python:"):
        from mlprogram.onnx.source.torch_graph import from_factory

        return from_factory(text)
    if text.endswith(".pt2"):
        from mlprogram.onnx.source.torch_graph import from_file

        return from_file(text, trusted)
    if text.endswith(".onnx"):
        load_onnx()  # which it imports
        from mlprogram.onnx.source.onnx_graph import OnnxSourceGraph

        return OnnxSourceGraph(text)
    raise InvalidInput(
        f"--source {text} is not FILE.onnx, FILE.pt2 or python:FILE.py:FUNCTION; save a module by "
        "torch.onnx.export or torch.export.save, or write a function that returns it"
    )
