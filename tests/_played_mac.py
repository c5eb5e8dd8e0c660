"""Commands as on a Mac: of `ane/mac/_as_a_mac.py`, in processes of their own."""

from collections.abc import Callable
import os
from pathlib import Path
import subprocess
import sys

from _patience import HANGING
import pytest

AS_A_MAC = Path(__file__).with_name("ane") / "mac" / "_as_a_mac.py"

SYSCTL = """#!/bin/sh
case "$2" in
    kern.osversion) echo 25B78 ;;
    machdep.cpu.brand_string) echo Apple M4 ;;
    kern.hv_vmm_present) echo ${VIRTUAL:-0} ;;
esac
"""

#: The tokenizer's process, which alone has other options first, is any machine's.
PYTHON = """#!/bin/sh
case "$1" in
    -m | *.py) exec "{python}" "{script}" {mode} "$@" ;;
    *) exec "{python}" "$@" ;;
esac
"""


def played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interpreter: str | Path = sys.executable
) -> Callable:
    """`mac(mode, "-m", "mlprogram", ...)` -> the finished command."""
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("ANE_BOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AS_A_MAC", str(tools / "python"))

    def run(mode: str, *arguments) -> subprocess.CompletedProcess:
        python = PYTHON.format(python=interpreter, script=AS_A_MAC, mode=mode)
        for name, text in (("sysctl", SYSCTL), ("python", python)):
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        command = [tools / "python", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANGING)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run
