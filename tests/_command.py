"""`ane-book` in a process of its own, as a reader types it."""

import json
import os
from pathlib import Path
import shutil
import subprocess
import sys

#: What runs the command without needing it on PATH.
COMMAND = [sys.executable, "-m", "ane_book"]


def start(*arguments: str, **options) -> subprocess.Popen:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | options
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.Popen(command, text=True, encoding="utf-8", env=environment, **pipes)


def ane_book(*arguments: str, input: str = "") -> subprocess.CompletedProcess:
    with start(*arguments) as process:
        out, err = process.communicate(input, timeout=120)
    assert "\x1b" not in out + err, "colour codes without a terminal"
    assert "Traceback" not in err, err
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def refused(*arguments: str) -> str:
    """The one line of an error, of a command that must fail and print nothing else."""
    done = ane_book(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    return lines[0]


def chatty_copy(bundle: Path, folder: Path, **tokenizer) -> Path:
    """A copy of a bundle with a chat template, or other fields of its tokenizer."""
    copy = Path(shutil.copytree(bundle, folder / "chatty"))
    manifest = json.loads((copy / "manifest.json").read_text())
    template = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
    manifest["tokenizer"] |= {"chat_template": template} | tokenizer
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy
