"""What is printed by others: nothing while we convert, and all of it for who imports us. And what
coremltools' import does with signals."""

import os
import signal
import subprocess
import sys

import pytest

HOST = """
import logging, os, sys, warnings
from tqdm import tqdm  # before ane_book, as a host may
filters, environment = list(warnings.filters), dict(os.environ)
import ane_book

changed = {key for key, value in os.environ.items() if environment.get(key) != value}
logger = logging.getLogger("coremltools")
print(changed, logger.level, filters == warnings.filters)

from ane_book.conversion.write.lowering import lower
import torch

module = torch.nn.Conv2d(4, 4, 1)
lower(module, {"input": torch.ones(1, 4, 1, 1)}, ["y"])
lower(module, {"input": torch.ones(1, 4, 1, 2)}, ["y"])
print(logger.level)
print("ours is done", file=sys.stderr, flush=True)
import coremltools as ct

traced = torch.jit.trace(module.eval(), torch.ones(1, 4, 1, 1))
ct.convert(traced, inputs=[ct.TensorType("x", (1, 4, 1, 1))], skip_model_load=True)
"""


def test_coremltools_is_silent_while_we_convert_and_only_then():
    keep = {key: value for key, value in os.environ.items() if not key.startswith(("TQDM", "GOMP"))}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HOST], capture_output=True, text=True, check=True,
        env=keep | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    ours, its_own = done.stderr.split("ours is done\n")
    assert ours == ""
    assert "Running MIL default pipeline" in its_own and "MIL Ops" in its_own
    assert done.stdout.splitlines() == ["{'GOMP_SPINCOUNT'} 0 True", "0"]


INTERRUPTED = """
import signal, sys

class Interrupting:
    def find_spec(name, *_):
        if name == "sklearn":  # which coremltools tries to import
            sys.meta_path.remove(Interrupting)
            signal.raise_signal(int(sys.argv[1]))

sys.meta_path.insert(0, Interrupting)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from mlprogram.cli.commands import told_to_end
from mlprogram.progress import silent_coremltools

with told_to_end(), silent_coremltools():
    print("not interrupted")
"""


@pytest.mark.parametrize("number, code", {signal.SIGINT: -2, signal.SIGTERM: 143}.items())
def test_an_interrupt_during_coremltools_import_is_one(number, code):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", INTERRUPTED, str(number.value)],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
