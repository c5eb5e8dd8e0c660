"""`ane-book` and `mlprogram` in a process of their own, as a reader types them."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
import json
import multiprocessing
import os
from pathlib import Path
import re
import shutil
import subprocess
import sys
import tempfile
from unittest.mock import patch

from _patience import HANGING

#: What runs `ane-book` without needing it on PATH.
COMMAND = [sys.executable, "-m", "ane_book"]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

#: Processes are forks of one that has imported what takes seconds, where a system can fork.
FORKS = "forkserver" in multiprocessing.get_all_start_methods()
processes = multiprocessing.get_context("forkserver" if FORKS else "spawn")
PRELOADED = ["mlprogram", "mlprogram.cli", "coremltools"]
if find_spec("ane_book"):
    PRELOADED += ["ane_book.cli", "ane_book.conversion", "ane_book.runtime"]
processes.set_forkserver_preload(PRELOADED)


def start(*arguments: str, module: str = "ane_book", **options) -> subprocess.Popen:
    """A command from nothing, its streams where the options say."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | options
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environment = os.environ | ENVIRONMENT
    return subprocess.Popen(command, text=True, encoding="utf-8", env=environment, **pipes)


def ane_book(*arguments: str, input: str = "") -> subprocess.CompletedProcess:
    return _ran("ane_book", arguments, input)


def mlprogram(*arguments: str, input: str = "") -> subprocess.CompletedProcess:
    return _ran("mlprogram", arguments, input)


def _ran(module: str, arguments: tuple, input: str) -> subprocess.CompletedProcess:
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, ENVIRONMENT):
        files = [Path(folder) / name for name in ("in", "out", "err")]
        files[0].write_text(input, "utf-8")
        given = module, [*map(str, arguments)], files, dict(os.environ), os.getcwd()
        process = processes.Process(target=_run, args=given)
        process.start()
        process.join(HANGING)
        code = process.exitcode
        process.kill()
        process.join()
        out, err = (file.read_text("utf-8") for file in files[1:])
    assert code is not None, f"it did not end; so far: {out}{err}"
    assert "\x1b" not in out + err, "colour codes without a terminal"
    assert "Traceback" not in err, err
    return subprocess.CompletedProcess(arguments, code, out, err)


def _run(
    module: str, arguments: list[str], files: list[Path], environment: dict, folder: str
) -> None:
    """The entry point, with the streams and settings of a new process."""
    for number, (file, mode) in enumerate(zip(files, "rww", strict=True)):
        with file.open(mode) as opened:
            os.dup2(opened.fileno(), number)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
        for number, mode in enumerate("rww")
    )
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [module.replace("_", "-"), *arguments]
    import_module(f"{module}.__main__").main()


def refused(*arguments: str, by: Callable = ane_book) -> str:
    """The one line of an error, of a command that must fail and print nothing else."""
    done = by(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    lines = errors(done.stderr).splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    return lines[0]


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
