"""`ane-book` and `mlprogram` as a reader types them: in this process, or in one of its own."""

from collections.abc import Callable
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
import io
import json
import logging
import multiprocessing
import os
from pathlib import Path
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from unittest.mock import patch
import warnings

from _patience import guarded
from mlprogram import terminal

#: What runs `ane-book` without needing it on PATH.
COMMAND = [sys.executable, "-m", "ane_book"]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

#: Processes are forks of one that has imported what takes seconds, where a system can fork.
FORKS = "forkserver" in multiprocessing.get_all_start_methods()
processes = multiprocessing.get_context("forkserver" if FORKS else "spawn")
if find_spec("ane_book"):
    processes.set_forkserver_preload(["ane_book.conversion", "ane_book.runtime", "coremltools"])


def start(*arguments: str, module: str = "ane_book", **options) -> subprocess.Popen:
    """A command from nothing, its streams where the options say."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | options
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environment = os.environ | ENVIRONMENT
    return subprocess.Popen(command, text=True, encoding="utf-8", env=environment, **pipes)


def ane_book(*arguments: str, input: str = "") -> subprocess.CompletedProcess:
    """The command in this process, where all that it imports is there already."""
    return _ran("ane_book", arguments, input)


def mlprogram(*arguments: str, input: str = "") -> subprocess.CompletedProcess:
    return _ran("mlprogram", arguments, input)


def _ran(module: str, arguments: tuple, input: str) -> subprocess.CompletedProcess:
    app = import_module(f"{module}.cli").app
    files = [tempfile.TemporaryFile() for _ in range(3)]  # noqa: SIM115
    files[0].write(input.encode())
    files[0].seek(0)
    streams = [io.TextIOWrapper(file, "utf-8", "replace") for file in files]
    with _as_a_process(streams), guarded():
        program = module.replace("_", "-")
        code = _code(lambda: app([*map(str, arguments)], prog_name=program))
    for stream in streams[1:]:
        stream.seek(0)
    out, err = (stream.read() for stream in streams[1:])
    for stream in streams:
        stream.close()
    assert "\x1b" not in out + err, "colour codes without a terminal"
    return subprocess.CompletedProcess(arguments, code, out, err)


def _as_a_process(streams: list[io.TextIOWrapper]) -> ExitStack:
    """The streams, settings, warnings and loggers that a process of its own would have."""
    stack = ExitStack()
    stack.enter_context(patch.dict(os.environ, ENVIRONMENT))
    stack.enter_context(patch.multiple(sys, stdin=streams[0], stdout=streams[1], stderr=streams[2]))
    handler = logging.StreamHandler(streams[2])  # as Python's own, where there is no other
    handler.setLevel(logging.WARNING)
    for name in ("ane_book", "mlprogram", "ane_serve", "uvicorn.error"):
        stack.enter_context(patch.object(logging.getLogger(name), "handlers", [handler]))
    if hub := sys.modules.get("huggingface_hub.constants"):
        stack.enter_context(patch.object(hub, "HF_HUB_OFFLINE", True))
    stack.enter_context(warnings.catch_warnings())
    warnings.resetwarnings()
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.simplefilter("ignore", ResourceWarning)
    warnings.showwarning = lambda message, *_, **__: print("warning:", message, file=sys.stderr)
    return stack


def _code(command: Callable) -> int:
    """The exit code, as `terminal.run` has it."""
    try:
        return terminal._coded(command) or 0
    except OSError as error:
        return terminal._failed(error)


def refused(*arguments: str, by: Callable = ane_book) -> str:
    """The one line of an error, of a command that must fail and print nothing else."""
    done = by(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    lines = errors(done.stderr).splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    return lines[0]


def end(*_) -> None:
    """Ask this process to end, in the middle of a command that has to tidy up then."""
    assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL, "it would end at once"
    os.kill(os.getpid(), signal.SIGTERM)


def errors(stderr: str) -> str:
    """Less the lines that say, on a machine that takes long, how far the work is."""
    number = r"\d{1,3}(?:,\d{3})*"
    return re.sub(rf"^(?!error: ).* \({number}(?: of {number})?\)\n", "", stderr, flags=re.M)


def chatty_copy(bundle: Path, folder: Path, **tokenizer) -> Path:
    """A copy of a bundle with a chat template, or other fields of its tokenizer."""
    copy = Path(shutil.copytree(bundle, folder / "chatty"))
    manifest = json.loads((copy / "manifest.json").read_text())
    template = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
    manifest["tokenizer"] |= {"chat_template": template} | tokenizer
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy
