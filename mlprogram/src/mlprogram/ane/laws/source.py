"""Find the lines of torch source that ops come from, for a model that was just converted.

coremltools keeps them in scopes of its program, which are not written to a package: stack traces
for a model from `torch.export`, modules' names for one from `torch.jit.trace`.
"""

import re

#: A frame of a stack trace as `torch.fx` writes it; the last one is where the op was called.
FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def lines(model) -> dict[str, str]:
    """Op -> "file.py:12" or the name of a module; {} for a model that was opened from a file."""
    program = getattr(model, "_mil_program", None)
    found: dict[str, str] = {}
    for function in program.functions.values() if program is not None else ():
        for operation in function.operations:
            line = _line({source.name: data for source, data in operation.scopes.items()})
            for output in operation.outputs if line else ():
                found.setdefault(output.name, line)
    return found


def _line(scopes: dict[str, list]) -> str:
    for trace in filter(None, scopes.get("EXIR_STACK_TRACE") or ()):
        frames = FRAME.findall(str(trace))
        if frames:
            file, number = frames[-1]
            return f"{file}:{number}"
    names = scopes.get("TORCHSCRIPT_MODULE_NAME") or ()
    return ".".join(name for name in names if name)
