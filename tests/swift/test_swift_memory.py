"""The Swift host's memory does not grow with the tokens that it generates."""

import json
import subprocess
import sys

import pytest
from swift_tables import add_tables

TOKENS = 10_000
LARGEST = 0.3  # kB a token; a leak of one array of 1 kB a token is three times that


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kv", ["state", "host"])
def test_ten_thousand_tokens_leave_nothing_behind(test_host, tiny_bundle, kv):
    """Its programs answer at once, in hundreds of answers, each of which begins anew."""
    bundle = add_tables(tiny_bundle("llama", kv=kv)[1])
    command = [*test_host, "host-cost", str(bundle.path), str(TOKENS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    early, late = json.loads(done.stdout)["resident"]
    assert 1e6 < early < 1e9
    assert late - early < 1000 * LARGEST * (TOKENS - 1000), (early, late)
