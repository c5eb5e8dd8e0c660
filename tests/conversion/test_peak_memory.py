"""What a conversion takes of memory, in processes of their own: bytes for each weight."""

import json
import os
import subprocess
import sys

import pytest

CONFIG = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 300,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}

START = """
import json, pathlib, sys
from ane_book.conversion.build import BundleBuilder
from ane_book.conversion.recipe import make_recipe
from ane_book.conversion.write.decoder import lower_blocks
from ane_book.models import read_config
from ane_book.weights.random import RandomSource
from mlprogram.analysis.memory import peak_resident

def convert(fields, out):
    source = RandomSource(fields)
    config = read_config(source.config())
    recipe = make_recipe(config, quant="int8", context=64, prefill=16)
"""
WAYS = {
    "lower": "    lower_blocks(config, recipe)\n",
    "convert": "    BundleBuilder('x', source, config, recipe).build(pathlib.Path(out), 'key')\n",
}
#: The small model first, for the imports and what they leave; then by how much another raises the
#: peak.
END = """
small, changes, folder = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
convert(small, folder + "/small")
before = peak_resident()
convert(small | changes, folder + "/other")
print(peak_resident() - before)
"""


def growth(way: str, tmp_path, **changes) -> int:
    environment = os.environ | {
        "ANE_BOOK_CACHE": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path),
        # what is freed goes back to the system at once, or glibc keeps up to a third of it
        "MALLOC_MMAP_THRESHOLD_": "262144",
    }  # fmt: skip
    arguments = [json.dumps(CONFIG), json.dumps(changes), str(tmp_path)]
    command = [sys.executable, "-c", START + WAYS[way] + END, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return int(done.stdout.split()[-1])


pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the system does not say the peak"),
    pytest.mark.long,
]


def test_lowering_takes_eight_bytes_a_weight_at_most(tmp_path):
    """It took 15 where coremltools was given a value for each weight."""
    C, F = 1024, 4096
    weights = 2 * C * C + 2 * C * C // 4 + 3 * C * F
    assert growth("lower", tmp_path, hidden_size=C, intermediate_size=F) < 8 * weights


@pytest.mark.parametrize("tied", [True, False])
def test_a_large_vocabulary_is_never_whole_in_single_precision(tmp_path, tied):
    V, C = 100_000, 256
    found = growth("convert", tmp_path, vocab_size=V, hidden_size=C, tie_word_embeddings=tied)
    assert found < 4.5 * V * C  # it takes 4, and took 8; the mapped file alone has two for each
