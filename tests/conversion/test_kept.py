"""Blocks that were lowered before are found by what coremltools would be given, and by no less."""

import os
from pathlib import Path
import subprocess
import sys
import tempfile

import ane_book
from ane_book.conversion.write import kept, lowering
from ane_book.conversion.write.decoder import lower_blocks
from ane_book.options import Recipe
from ane_families import layers
from mlprogram.package import messages
import numpy as np
import pytest
import torch

CONVERT = """
import sys
import tempfile
import ane_book
ane_book.convert(sys.argv[1], out=sys.argv[2], context=32, prefill=8)
print("coremltools" in sys.modules)
"""


@pytest.fixture
def lowered(tmp_path, monkeypatch):
    """An empty cache, and the list that grows by each module that coremltools is given."""
    monkeypatch.setenv("ANE_BOOK_CACHE", str(tmp_path / "cache"))
    given, own = [], lowering._lower
    monkeypatch.setattr(
        lowering, "_lower", lambda module, *rest: given.append(module) or own(module, *rest)
    )
    return given


class Scaled(torch.nn.Module):
    """Of one parameter, one buffer, one constant and an eps, each of which decides the ops."""

    def __init__(self, channels=8, eps=1e-5, scale=2.0, buffer=3.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1, channels, 1, 1))
        self.register_buffer("shift", torch.full((1, channels, 1, 1), buffer))
        self.eps, self.scale = eps, scale

    def forward(self, x):
        return x * self.weight * self.scale + self.shift


def lower(module=None, T=4, name="x", out="y", **more):
    module = module or Scaled()
    return lowering.lower(module, {name: torch.zeros(1, len(module.shift[0]), 1, T)}, [out], **more)


CHANGES = {
    "width": {"module": Scaled(9)},
    "eps": {"module": Scaled(eps=1e-6)},
    "constant": {"module": Scaled(scale=2.0000001)},  # printed, the graph has it as 2
    "buffer": {"module": Scaled(buffer=3.5)},
    "tokens": {"T": 1},
    "input's name": {"name": "z"},
    "output's name": {"out": "w"},
    "norm_epsilon": {"norm_epsilon": 1e-6},
    "output's dtype": {"output_dtype": np.float32},
}


def test_whatever_decides_the_block_counts(lowered):
    lower()
    for number, (change, own) in enumerate(CHANGES.items(), start=2):
        lower(**own)
        assert len(lowered) == number, change


def test_the_weights_do_not_count(lowered):
    one, other = Scaled(), Scaled()
    with torch.no_grad():
        other.weight += 1
    own = other.weight
    first, second = lower(one), lower(other)
    assert lowered == [one] and other.weight is own  # the module is as it was
    assert first == second and first.parameters and first.operations[0] != first.operations[-1]


@pytest.mark.parametrize("what", ["converter", "coremltools", "torch", "mlprogram", "source"])
def test_every_version_counts(what, lowered, monkeypatch, tmp_path):
    from ane_book.conversion.target import key

    lower()
    if what == "converter":
        monkeypatch.setattr(key, "CONVERTER", key.CONVERTER + 1)
    elif what == "source":
        (tmp_path / "norms.py").write_text("# another")
        monkeypatch.setattr(kept, "__file__", str(tmp_path / "kept.py"))
    else:
        own = key.version
        for module in (key, kept):
            monkeypatch.setattr(module, "version", lambda n: "0" if n == what else own(n))
    lower()
    assert len(lowered) == 2


def test_code_that_was_changed_in_this_process_counts(lowered, monkeypatch):
    norm, x = layers.ScaledRMSNorm(8, 1e-5, 2.0), {"x": torch.zeros(1, 8, 1, 4)}
    lowering.lower(norm, x, ["y"])
    monkeypatch.setattr(layers.ScaledRMSNorm, "forward", lambda self, x: x * self.weight)
    lowering.lower(norm, x, ["y"])
    assert len(lowered) == 2


def test_every_option_that_changes_a_block_counts(lowered, tiny):
    """Options that change the traced graph miss; those that do not, such as quant, hit."""
    from ane_book.conversion.recipe import make_recipe
    from ane_book.models import read_config

    config = read_config(ane_book.weights.open_source(tiny("llama")[1]).config())
    counts = []
    for options in ({}, {"quant": "int8"}, {"prefill": 4}, {"form": "apple"}):
        recipe: Recipe = make_recipe(config, **({"context": 32, "prefill": 8} | options))
        lower_blocks(config, recipe)
        counts.append(len(lowered))
    assert counts == [2, 2, 3, 5]  # of decode and prefill; another prefill leaves decode


@pytest.mark.parametrize("damage", [b"", b"x", None])
def test_a_damaged_file_is_made_again(damage, lowered, tmp_path):
    expected = lower()
    (file,) = (tmp_path / "cache" / "lowered").iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if damage is None else damage)
    assert lower() == expected and len(lowered) == 2
    assert file.read_bytes() == whole and lower() == expected and len(lowered) == 2


def test_no_cache_is_no_error(lowered, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ANE_BOOK_CACHE", str(tmp_path / "file"))
    assert lower() == lower() and len(lowered) == 2


def test_a_cache_that_may_only_be_read_is_read(lowered, monkeypatch):
    def refuse(*_):
        raise PermissionError("a file of somebody else's")

    expected = lower()
    monkeypatch.setattr(os, "utime", refuse)
    assert lower() == expected and len(lowered) == 1


def test_those_used_last_are_kept(lowered, monkeypatch, tmp_path):
    monkeypatch.setattr(kept, "MOST", 2)
    lower(T=1)
    (first,) = (tmp_path / "cache" / "lowered").iterdir()
    os.utime(first, (1, 1))
    lower(T=2)
    lower(T=1)
    lower(T=3)
    assert len([*first.parent.iterdir()]) == 2 and first.exists()


def test_a_block_that_was_lowered_before_needs_no_coremltools(lowered, tiny, tmp_path):
    """With nothing kept, and in a new process with all: equal packages, no import."""
    folder = str(tiny("llama")[1])
    ane_book.convert(folder, out=tmp_path / "cold", context=32, prefill=8)
    assert lowered
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", CONVERT, folder, tmp_path / "warm"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split()[-1] == "False"
    cold, warm = (_files(tmp_path / name) for name in ("cold", "warm"))
    assert cold == warm and any(name.endswith(".bin") for name in cold)


def _files(folder: Path) -> dict[str, bytes]:
    """The packages of a bundle and its embedding: what carries no time."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and (".mlpackage" in str(file) or file.suffix == ".npy")
    }


@pytest.mark.parametrize(
    "value",
    ["name", np.bool_(True), np.int32(-7), np.float16(0.1), np.float32(1e-5),
     np.arange(6, dtype=np.int32).reshape(2, 3), np.array([True, False]),
     np.array([0.5, -3], np.float16), np.array([[1e-7]], np.float32)],
)  # fmt: skip
def test_values_are_those_of_coremltools(value):
    from coremltools.converters.mil.backend.mil import helper

    made = helper.create_tensor_value if np.ndim(value) else helper.create_scalar_value
    assert messages.immediate(value) == made(value)


@pytest.mark.parametrize("dtype", ["fp16", "int4", "int8", "uint1", "uint3", "uint6"])
def test_types_are_those_of_coremltools(dtype):
    from coremltools.converters.mil.backend.mil import helper

    made = messages.file_value(dtype, (2, 3), "@model_path/weights/weight.bin", 64)
    code = made.type.tensorType.dataType
    assert made == helper.create_file_value_tensor(
        "@model_path/weights/weight.bin", 64, (2, 3), code
    )
    name = type(made.type.tensorType).DESCRIPTOR.fields_by_name["dataType"].enum_type
    assert name.values_by_number[code].name == {"fp16": "FLOAT16"}.get(dtype, dtype.upper())


class Tied(torch.nn.Module):
    """Twice the same convolution, under two names."""

    def __init__(self):
        super().__init__()
        self.one, self.other = (torch.nn.Conv2d(8, 8, 1, bias=False) for _ in range(2))
        self.other.weight = self.one.weight

    def forward(self, x):
        return self.other(torch.relu(self.one(x)))


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_parameter_of_two_names_is_lowered_under_both(lowered, device):
    with torch.device(device):
        module = Tied()
    block = lowering.lower(module, {"x": torch.zeros(1, 8, 1, 4)}, ["y"])
    assert sorted(block.parameters.values()) == ["one.weight", "other.weight"]
    assert module.one.weight is module.other.weight


def test_no_temporary_package_is_left(lowered, tmp_path, monkeypatch):
    """coremltools would delete it when the process ends, unless that is killed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    lower()
    assert len(lowered) == 1 and not [*(tmp_path / "temporary").iterdir()]
