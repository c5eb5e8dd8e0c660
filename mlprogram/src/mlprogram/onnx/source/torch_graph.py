"""A source in PyTorch: a graph of `torch.export`, each node by its module and its line.

    from_file("module.pt2", trusted=True)   # what torch.export.save wrote
    from_factory("python:model.py:make")    # make() returns a module and its example inputs

A factory's module is exported here, so that both forms are one: ATen ops in order, by the name of
the node, the path of the module that it came from and the line of its code.
"""

from collections.abc import Mapping
import importlib
import importlib.util
import logging
from pathlib import Path
import sys
from typing import Any
import warnings

from mlprogram.errors import InvalidInput
from mlprogram.onnx.source.graph import SourceGraph, SourceInput, SourceNode
import numpy as np
import torch
from torch import fx


class TorchSourceGraph(SourceGraph):
    """The graph of a `torch.export.ExportedProgram`."""

    def __init__(self, program: torch.export.ExportedProgram, title: str):
        self.title = title
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = program.module()
        self._nodes = {  # without those that only check the inputs' shapes
            n.name: n for n in module.graph.nodes if n.op != "call_module" or n.users
        }
        examples = iter(torch.utils._pytree.tree_leaves(program.example_inputs or ()))
        self.inputs, self.constants, self.nodes = {}, {}, []
        self.outputs = []
        for name, node in self._nodes.items():
            if node.op == "placeholder":
                self.inputs[name] = _input(node, next(examples, None))
            elif node.op == "get_attr":
                found = _attribute(module, str(node.target))
                if isinstance(found, torch.Tensor):
                    self.constants[name] = _array(found)
            elif node.op == "output":
                leaves = torch.utils._pytree.tree_leaves(node.args[0])
                self.outputs = [n.name for n in leaves if isinstance(n, fx.Node)]
            else:
                self.nodes.append(_described(node))
        made = {name for node in self.nodes for name in node.outputs}
        self.outputs = [name for name in self.outputs if name in made]

    def run_node(
        self, node: SourceNode, values: Mapping[str, Any], settings: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        found = self._nodes[node.name]

        def value(at: fx.Node) -> Any:
            held = values[at.name]
            if not isinstance(held, np.ndarray):
                return held
            dtype = getattr(at.meta.get("val"), "dtype", None)
            tensor = torch.from_numpy(np.array(held))  # a copy: an op may write where it reads
            return tensor if dtype is None else tensor.to(dtype)

        args = fx.map_arg(found.args, value)
        kwargs: dict = dict(fx.map_arg(found.kwargs, value))
        if settings is None:
            result = _called(found.target, args, kwargs)
        else:
            changed, named = _changed(found, args, kwargs, settings)
            result = _called(found.target, changed, named)
        return {node.name: _array(result) if isinstance(result, torch.Tensor) else result}


def from_file(path: str, trusted: bool) -> TorchSourceGraph:
    """Open a .pt2, which may run code of its author: PyTorch unpickles it, evaluates its symbolic
    sizes as Python and loads its libraries, whatever is checked before. Raises InvalidInput."""
    if not Path(path).is_file():
        raise InvalidInput(f"{path}: no such file")
    if not trusted:
        raise InvalidInput(
            f"{path}: to open a .pt2 is to run code that its author may have put into it; add "
            "--trust-source (trust_source=True) if you would run a program by that author, or give "
            "an ONNX file"
        )
    disabled = logging.root.manager.disable
    logging.disable()  # it prints tracebacks of what it catches and of what is raised as well
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.load(path)
    except Exception as error:  # of many kinds: zipfile, pickle, torch's own
        raise InvalidInput(
            f"{path}: not what torch.export.save writes ({_first_line(error)})"
        ) from None
    finally:
        logging.disable(disabled)
    return TorchSourceGraph(program, f"{path}, run by PyTorch {torch.__version__}")


def from_factory(text: str) -> TorchSourceGraph:
    """Call the factory python:FILE.py:FUNCTION or python:MODULE:FUNCTION. Raises InvalidInput.

    It returns a module and its inputs: a tuple, or a dict by the names that `forward` has.
    """
    function = _function(text)
    try:
        module, inputs = function()
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"{text} has to return a module and its inputs, as in `return model, (x,)`: {error}"
        ) from None
    if not isinstance(module, torch.nn.Module) or not isinstance(inputs, tuple | list | dict):
        raise InvalidInput(
            f"{text} has to return a torch.nn.Module and its inputs (a tuple, or a dict by name), "
            f"not {type(module).__name__} and {type(inputs).__name__}"
        )
    named = inputs if isinstance(inputs, dict) else {}
    ordered = tuple(inputs) if not named else ()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.export.export(module.eval(), ordered, dict(named))
    except Exception as error:  # whatever the module raises, and torch.export's own
        raise InvalidInput(
            f"{text}: torch.export does not take the module ({_first_line(error)}); give an ONNX "
            "file of it, or a part of it that it takes"
        ) from None
    return TorchSourceGraph(program, f"{text}, run by PyTorch {torch.__version__}")


def _function(text: str):
    place, _, name = text.removeprefix("python:").rpartition(":")
    if not place or not name:
        raise InvalidInput(f"--source {text} is not like python:FILE.py:FUNCTION")
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(place).stem, place)
            assert spec and spec.loader  # which a name that ends in .py has
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module  # where torch.export looks for its classes
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
        return getattr(module, name)
    except (ImportError, OSError, AttributeError) as error:
        raise InvalidInput(f"--source {text}: {_first_line(error)}") from None


def _called(target: Any, args: Any, kwargs: dict) -> Any:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return target(*args, **kwargs)


def _input(node: fx.Node, example: object) -> SourceInput:
    held = node.meta.get("val", example)
    if not isinstance(held, torch.Tensor):
        raise InvalidInput(f"the module's input {node.name!r} is no tensor, but {held!r:.80}")
    shape = tuple(size if isinstance(size, int) else None for size in held.shape)
    array = _array(example) if isinstance(example, torch.Tensor) else None
    return SourceInput(_array(torch.zeros((), dtype=held.dtype)).dtype, shape, array)


def _described(node: fx.Node) -> SourceNode:
    modules = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values() if path]
    target: Any = node.target
    op = str(getattr(target, "__name__", target)) if callable(target) else str(target)
    reads = tuple(dict.fromkeys(each.name for each in node.all_input_nodes))
    return SourceNode(node.name, op, reads, (node.name,), _where(node, modules), _settings(node))


def _where(node: fx.Node, modules: list[str]) -> str:
    """The module's path, and the line of code that called the op."""
    lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines()]
    code = [line for line in lines if line and not line.startswith("File ")]
    return ", ".join([*modules[-1:], *(f"`{line}`" for line in code[-1:])])


def _settings(node: fx.Node) -> dict[str, Any]:
    """The arguments of a node that are no values, by the names in the op's schema."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {}
    given = {}
    for at, argument in enumerate(schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        value = node.args[at] if at < len(node.args) else node.kwargs.get(argument.name, default)
        if not any(isinstance(leaf, fx.Node) for leaf in torch.utils._pytree.tree_leaves(value)):
            given[argument.name] = list(value) if isinstance(value, list | tuple) else value
    return given


def _changed(node: fx.Node, args, kwargs: dict, settings: Mapping[str, Any]) -> tuple[list, dict]:
    """The arguments of a node with other settings."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return list(args), kwargs
    given, named = [], {}
    for at, argument in enumerate(schema.arguments):
        name = argument.name
        default = argument.default_value if argument.has_default_value() else None
        value = args[at] if at < len(args) else kwargs.get(name, default)
        value = settings.get(name, value)
        if argument.kwarg_only:
            named[name] = value
        else:
            given.append(value)
    return given, named


def _attribute(module: torch.nn.Module, path: str) -> object:
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name)
    return found


def _array(tensor: torch.Tensor) -> np.ndarray:
    """numpy has no bfloat16."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:200]}"
