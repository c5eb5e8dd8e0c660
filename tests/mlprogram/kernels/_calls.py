"""Calls of the compiled kernels, with what must come out, run by a program of their own.

A call is (name, *arguments): whole numbers, at most two floats, None, tensors, which become
addresses of their data, and tuples, which become addresses of structs of eight bytes a field. All
lie in one piece of memory that goes to the program (`_calls.c`) and back.
"""

from pathlib import Path
import struct
import subprocess

from mlprogram.kernels.library import FLAGS, LIBRARIES, SOURCES
import torch
from torch import Tensor

CALL = struct.Struct("<24sff10q")


def build(command: list[str], folder: Path) -> Path:
    """The program that runs calls, made by this compiler."""
    program = folder / "calls"
    files = [Path(__file__).with_suffix(".c"), *[file for file in SOURCES if file.suffix == ".c"]]
    build = [command[0], *FLAGS, *command[1:], "-o", program, *files, *LIBRARIES]
    subprocess.run(build, check=True)
    return program


def run(command: list[str], calls: list[tuple], outputs: list[Tensor]) -> list[Tensor]:
    """What the calls leave in these tensors, which they were given."""
    memory = _Memory(calls)
    found = subprocess.run(command, input=bytes(memory), capture_output=True)
    assert found.returncode == 0, (found.returncode, found.stderr.decode()[-2000:])
    results = []
    for tensor in outputs:
        at = memory.places[id(tensor)]
        part = bytearray(found.stdout[at : at + tensor.nbytes])
        results.append(torch.frombuffer(part, dtype=tensor.dtype).reshape(tensor.shape))
    return results


class _Memory:
    def __init__(self, calls: list[tuple]):
        self.calls, self.addresses, self.places = calls, [], {}
        self.data = bytearray(CALL.size * len(calls))
        for i, (name, *arguments) in enumerate(calls):
            first, second, *_ = [*(a for a in arguments if isinstance(a, float)), 0.0, 0.0]
            CALL.pack_into(self.data, CALL.size * i, name.encode(), first, second, *[0] * 10)
            words = [a for a in arguments if not isinstance(a, float)]
            self._write(CALL.size * i + CALL.size - 80, words)

    def __bytes__(self) -> bytes:
        self.data += bytes(-len(self.data) % 64)
        sizes = (len(self.calls), len(self.addresses), len(self.data))
        return struct.pack(f"<{3 + sizes[1]}q", *sizes, *self.addresses) + bytes(self.data)

    def _write(self, at: int, words: list) -> None:
        for k, word in enumerate(words):
            if isinstance(word, Tensor | tuple):
                self.addresses.append(at + 8 * k)
                word = self._place(word)
            struct.pack_into("<q", self.data, at + 8 * k, int(word or 0))

    def _place(self, item: Tensor | tuple) -> int:
        if id(item) not in self.places:
            at = self.places[id(item)] = len(self.data) + -len(self.data) % 64
            if isinstance(item, tuple):
                self.data += bytes(at - len(self.data) + 8 * len(item))
                self._write(at, item)
            else:
                flat = item.contiguous().reshape(-1).view(torch.uint8)
                self.data += bytes(at - len(self.data)) + flat.numpy().tobytes()
        return self.places[id(item)]
