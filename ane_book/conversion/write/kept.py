"""Blocks as coremltools lowered them, kept in the cache by what it was given.

    lowered/KEY      the sha256 of what follows, then a MIL block (protobuf)

The key is a hash of all that decides the block: the traced graph with its constants, the module's
parameters by name and shape and its buffers by value, what else `lower` was told, the versions of
coremltools and torch, the converter's number, and the source of this folder. So the sizes, the
architecture, the form and the options count by what they make of the graph, and code that was
changed, even in a notebook, counts as well. A damaged file is as good as none.
"""

from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
import os
from pathlib import Path
import re
from typing import Any

from ane_book.bundle.cache import lowered
from ane_book.conversion.target.key import code_key, version
from ane_book.errors import InvalidInput
from mlprogram.files import written_whole
from mlprogram.package.files import proto
from torch import Tensor, nn

MOST = 2048  # files, some 15 kB each; those used last stay


def key(traced, module: nn.Module, told: Iterable[object]) -> str:
    """What a block is kept under; `traced` is of torch.jit.trace, `told` is what else decides."""
    graph = traced.inlined_graph
    text = re.sub(r"___torch_mangle_\d+\.", "", graph.str(False))  # they count earlier traces
    constants = [node.output().toIValue() for node in graph.findAllNodes("prim::Constant")]
    parts: list[object] = [code_key(), version("mlprogram"), text, *map(_exact, constants), *told]
    parts += [(name, tuple(value.shape)) for name, value in module.named_parameters()]
    parts += [(name, _exact(value)) for name, value in module.named_buffers()]
    made = sha256(repr(parts).encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        made.update(file.read_bytes())
    return made.hexdigest()


def _exact(value: Any) -> object:
    """A constant of a graph with all its digits, which printing the graph rounds."""
    if not isinstance(value, Tensor):
        return value
    array = value.detach().numpy()
    return array.shape, array.dtype.str, array.tobytes()


def recall(key: str):
    """The MIL_pb2.Block that is kept under a key; None if there is none, or a damaged one."""
    try:
        file = lowered() / key
        content = file.read_bytes()
    except (OSError, InvalidInput):  # InvalidInput: no cache, as nobody's home is known
        return None
    with suppress(OSError):  # a cache that may only be read
        os.utime(file)
        os.utime(file.parent)  # the entry of the cache
    if sha256(content[32:]).digest() != content[:32]:
        return None
    return proto("MIL_pb2").Block.FromString(content[32:])


def keep(key: str, block) -> None:
    """Keep a MIL_pb2.Block under a key, if the cache can be written."""
    content = block.SerializeToString(deterministic=True)
    with suppress(OSError, InvalidInput):
        folder = lowered()
        folder.mkdir(parents=True, exist_ok=True)
        with written_whole(folder / key) as unfinished:
            unfinished.write_bytes(sha256(content).digest() + content)
        for file in sorted(folder.iterdir(), key=os.path.getmtime)[:-MOST]:
            file.unlink()
