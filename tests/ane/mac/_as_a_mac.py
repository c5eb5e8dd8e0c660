"""Run a module or a script as on a Mac: `python _as_a_mac.py MODE -m MODULE ...`, or `... SCRIPT`.

What a Mac alone has is played, and nothing else: the version of macOS, the binding of coremltools
and the kernel's answers, which the `sysctl` on PATH gives. The executor is in Core ML's place. Each
process that is started with `sys.executable` is such a Mac too; the probe's is that of `_mac.py`.
"""

import os
from pathlib import Path
import platform
import runpy
import sys

from mlprogram import machine

PROBE = "mlprogram.ane.mac.probe"


class Darwin:
    """A module of the standard library, some of whose names are a Mac's."""

    def __init__(self, module, **names):
        vars(self).update(names)
        self._module = module

    def __getattr__(self, name: str):
        return getattr(self._module, name)


def become_a_mac() -> None:
    """As far as this library asks."""
    machine.sys = Darwin(sys, platform="darwin")
    release = "26.1", ("", "", ""), "arm64"
    machine.platform = Darwin(platform, mac_ver=lambda: release, machine=lambda: "arm64")
    machine._coreml_library = lambda: Path("libcoremlpython.so")
    machine.macos_version.cache_clear()
    machine.CAN_PREDICT, machine.CAN_PREDICT_REASON = machine._can_predict()


def main() -> None:
    mode, *rest = sys.argv[1:]
    sys.executable = os.environ["AS_A_MAC"]  # the script that runs this file
    become_a_mac()
    if rest[:2] == ["-m", PROBE]:
        sys.argv = ["_mac.py", mode, *rest[2:]]
        runpy.run_path(str(Path(__file__).with_name("_mac.py")), run_name="__main__")
        return
    import mlprogram.coreml

    with mlprogram.coreml.enable():
        if rest[0] == "-m":
            sys.argv = rest[1:]
            runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = rest
            sys.path.insert(0, str(Path(rest[0]).parent))
            runpy.run_path(rest[0], run_name="__main__")


main()
