"""The plan of a conversion: what it says is what is written; the three partitions; full disks.

Every bundle here is converted for real and run by the executor.
"""

import json
import os
from pathlib import Path
import subprocess
import sys

from _command import ane_book as command
from _command import refused
from _tiny import TINY
import ane_book
from ane_book.bundle import Bundle, Recipe, projections
from ane_book.config import DecoderConfig
from ane_book.conversion import limits
from ane_book.conversion.plan import find_config, make_recipe, plan
from ane_book.conversion.quantize import SCHEMES
from ane_book.errors import InvalidBundle, InvalidInput, InvalidWeights, OutOfSpace
from ane_book.runtime import Session
from ane_book.runtime.backends import MILBackend
import numpy as np
import pytest

QWEN = "qwen2.5-0.5b-instruct"
PHI = "phi-4-mini-instruct"


def weight_bytes(bundle: Bundle) -> dict[str, int]:
    """Package -> bytes of its weight file."""
    files = bundle.path.glob("*.mlpackage/Data/com.apple.CoreML/weights/weight.bin")
    return {file.parents[3].name: file.stat().st_size for file in files}


class Counting(MILBackend):
    """The executor, counting the calls of programs."""

    calls = 0

    def load(self, package: Path, function: str):
        program = super().load(package, function)
        predict = program.predict

        def counted(*arguments):
            self.calls += 1
            return predict(*arguments)

        program.predict = counted
        return program


class TestBytes:
    """Planned and written are the same number, not close."""

    def check(self, bundle: Bundle) -> None:
        planned = plan(bundle.config, bundle.recipe)
        written = weight_bytes(bundle)
        assert written == {program.package: program.bytes for program in planned.programs}
        assert bundle.manifest.packages == list(written) or set(written) == set(
            bundle.manifest.packages
        )
        assert planned.weight_bytes == sum(written.values())
        embedding = (bundle.path / "embedding.npy").stat().st_size
        assert 0 < embedding - planned.embedding_bytes <= 128  # the header of a .npy file

    @pytest.mark.parametrize("family", TINY)
    @pytest.mark.parametrize("quant", ["none", "int8"])
    @pytest.mark.parametrize("partition", ["layers", "projections"])
    def test_of_every_family(self, tiny_bundle, family, quant, partition):
        self.check(tiny_bundle(family, quant=quant, partition=partition)[1])

    @pytest.mark.parametrize("quant", SCHEMES)
    def test_of_every_scheme(self, tiny_bundle, quant):
        self.check(tiny_bundle("qwen2", quant=quant, quant_head=quant)[1])
