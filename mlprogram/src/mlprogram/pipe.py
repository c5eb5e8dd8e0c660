"""Run programs for a host in another language, which starts this module and talks over its pipes.

    python -m mlprogram.pipe

A request is a line of JSON, and after it the bytes that it announces; so is an answer. Arrays go
in C order, as the function declares them; `bytes` says how many there are of all arrays together.

    {"load": PATH, "function": NAME}              {"function": N}
    {"state": N}                                  {"state": M}
    {"call": N, "state": M, "inputs": [NAME, ...], "outputs": [NAME, ...], "bytes": B}
                                                  {"bytes": B}, of the outputs in that order; a
                                                  program without states has no `state`
    {"free": M}                                   {}, and the state is gone
    {"read": M, "name": NAME}                     {"bytes": B}
    {"write": M, "name": NAME, "of": N, "bytes": B}    {}

What cannot be done is answered by {"error": SENTENCE}. The process lives as long as its standard
input. It runs packages in half precision, as they declare, and opens whatever path it is given:
whoever talks to it has this process's rights already.
"""

from collections.abc import Iterator, Mapping
import json
import os
from pathlib import Path
import sys
from typing import Any, BinaryIO

from mlprogram.errors import MLProgramError
from mlprogram.package.values import TensorType
from mlprogram.run.program import MLProgram, State
import numpy as np

NUMPY = {"fp16": np.float16, "fp32": np.float32, "int32": np.int32}
REFUSALS = MLProgramError, ArithmeticError, LookupError, OSError, TypeError, ValueError


class Programs:
    """The loaded functions and their states, by number; one method for each request."""

    def __init__(self) -> None:
        self._packages: dict[str, MLProgram] = {}
        self._functions: list[MLProgram] = []
        self._states: dict[int, State] = {}
        self._made = 0  # states so far, whose numbers are never used again

    def answer(self, request: Mapping[str, Any], payload: bytes) -> tuple[dict, list[np.ndarray]]:
        """Do what is asked for; returns the answer and the arrays behind it."""
        match request:
            case {"load": path, "function": name}:
                return {"function": self._load(path, name)}, []
            case {"call": number, "inputs": names, "outputs": wanted}:
                function, state = self._functions[number], request.get("state")
                types = {name: function.inputs[name] for name in names}
                inputs = dict(zip(types, _arrays(types.values(), payload), strict=True))
                outputs = function.predict(inputs, None if state is None else self._states[state])
                declared = function.outputs
                return {}, [_as_declared(outputs[name], declared[name]) for name in wanted]
            case {"state": number}:
                self._states[self._made] = self._functions[number].make_state()
                self._made += 1
                return {"state": self._made - 1}, []
            case {"free": state}:
                del self._states[state]
                return {}, []
            case {"read": state, "name": name}:
                return {}, [self._states[state].read_state(name)]
            case {"write": state, "name": name, "of": number}:
                type_ = self._functions[number].states[name]
                self._states[state].write_state(name, next(_arrays([type_], payload)))
                return {}, []
        raise ValueError(f"no request that is known here: {str(dict(request))[:200]}")

    def _load(self, path: str, name: str) -> int:
        if path not in self._packages:
            self._packages[path] = MLProgram(Path(path), name)
        function = self._packages[path].function(name)
        function.prepare()  # work and errors belong to loading, not to the first call
        self._functions.append(function)
        return len(self._functions) - 1


def _arrays(types: Any, payload: bytes) -> Iterator[np.ndarray]:
    """Cut a payload into arrays of these types; raises ValueError unless it is as long as they."""
    at = 0
    for type_ in types:
        dtype = np.dtype(NUMPY[type_.dtype])
        count = int(np.prod(type_.shape))
        yield np.frombuffer(payload, dtype, count, at).reshape(type_.sizes)
        at += count * dtype.itemsize
    if at != len(payload):
        raise ValueError(f"{len(payload)} bytes came with a request that announces {at}")


def _as_declared(array: np.ndarray, type_: TensorType) -> np.ndarray:
    return np.ascontiguousarray(array, NUMPY[type_.dtype]).reshape(type_.sizes)


def main(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more."""
    programs = Programs()
    for line in requests:
        request = json.loads(line)
        payload = requests.read(request.pop("bytes", 0))
        arrays: list[np.ndarray] = []
        try:
            reply, arrays = programs.answer(request, payload)
        except REFUSALS as error:
            reply = {"error": str(error) or type(error).__name__}
        if arrays:
            reply["bytes"] = sum(array.nbytes for array in arrays)
        answers.write(json.dumps(reply).encode() + b"\n")
        for array in arrays:
            answers.write(array.tobytes())
        answers.flush()


if __name__ == "__main__":
    own = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing else may come between answers
    main(sys.stdin.buffer, own)
