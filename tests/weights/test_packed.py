"""Checkpoints in four and eight bits, against the formats' formulas, number by number."""

from _tiny_weights import edit_json, parameters, save_folder, tiny_model
from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.weights import open_source
import numpy as np
import pytest
from safetensors.torch import load_file, save_file
import torch

AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)


def signed(value: int) -> int:
    """The int32 of these 32 bits."""
    return value - 2**32 if value >= 2**31 else value


def packed_rows(q: np.ndarray, bits: int) -> torch.Tensor:
    """GPTQ's qweight (in / n, out) of integers (in, out), number by number."""
    n = 32 // bits
    words = [
        [signed(sum(int(q[r * n + k, c]) << bits * k for k in range(n))) for c in range(q.shape[1])]
        for r in range(len(q) // n)
    ]
    return torch.tensor(words, dtype=torch.int32)


def packed_columns(q: np.ndarray, bits: int, order=None) -> torch.Tensor:
    """Integers (r, c) as int32 (r, c / n); order: the column of each place."""
    n = 32 // bits
    order = order or range(n)
    words = [
        [signed(sum(int(row[c * n + order[k]]) << bits * k for k in range(n)))
         for c in range(len(row) // n)]
        for row in q
    ]  # fmt: skip
    return torch.tensor(words, dtype=torch.int32)


def gptq(weight: np.ndarray, bits: int, late: int, groups: int = 2):
    """Tensors, and the matrix that they stand for, with columns in groups by chance."""
    random = np.random.default_rng(bits)
    out, width = weight.shape
    q = random.integers(0, 2**bits, (width, out))
    zero = random.integers(1, 2**bits, (groups, out))
    scale = random.uniform(0.01, 0.1, (groups, out)).astype(np.float16)
    group = random.integers(0, groups, width)
    expected = np.empty((out, width), np.float32)
    for o in range(out):
        for i in range(width):
            expected[o, i] = np.float32(scale[group[i], o]) * (q[i, o] - zero[group[i], o])
    tensors = {"qweight": packed_rows(q, bits), "qzeros": packed_columns(zero - late, bits),
               "scales": torch.from_numpy(scale),
               "g_idx": torch.from_numpy(group.astype(np.int32))}  # fmt: skip
    return tensors, expected


def awq(weight: np.ndarray, groups: int = 2):
    random = np.random.default_rng(1)
    out, width = weight.shape
    q, zero = random.integers(0, 16, (width, out)), random.integers(0, 16, (groups, out))
    scale = random.uniform(0.01, 0.1, (groups, out)).astype(np.float16)
    expected = np.empty((out, width), np.float32)
    for o in range(out):
        for i in range(width):
            g = i * groups // width
            expected[o, i] = np.float32(scale[g, o]) * (q[i, o] - zero[g, o])
    tensors = {"qweight": packed_columns(q, 4, AWQ_COLUMNS),
               "qzeros": packed_columns(zero, 4, AWQ_COLUMNS),
               "scales": torch.from_numpy(scale)}  # fmt: skip
    return tensors, expected


def fp8(weight: np.ndarray, kind: str, block=(16, 24)):
    random = np.random.default_rng(2)
    out, width = weight.shape
    stored = torch.from_numpy(random.normal(0, 1, weight.shape).astype(np.float32))
    stored = stored.to(torch.float8_e4m3fn)
    shape = {"tensor": (), "channel": (out, 1),
             "block": (-(-out // block[0]), -(-width // block[1]))}[kind]  # fmt: skip
    scale = random.uniform(0.5, 2, shape).astype(np.float32)
    expected = np.empty((out, width), np.float32)
    for o in range(out):
        for i in range(width):
            where = {"tensor": (), "channel": (o, 0), "block": (o // block[0], i // block[1])}[kind]
            expected[o, i] = np.float32(stored[o, i].float()) * scale[where]
    name = "weight_scale_inv" if kind == "block" else "weight_scale"
    return {"weight": stored, name: torch.from_numpy(np.array(scale))}, expected


CASES = {
    "gptq-4": (lambda w: gptq(w, 4, 1), {"quant_method": "gptq", "bits": 4}),
    "gptq-8": (lambda w: gptq(w, 8, 1), {"quant_method": "gptq", "bits": 8}),
    "gptq-v2": (lambda w: gptq(w, 4, 0),
                {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "version": "gemm"}),
    "fp8-block": (lambda w: fp8(w, "block"),
                  {"quant_method": "fp8", "weight_block_size": [16, 24],
                   "activation_scheme": "dynamic"}),
    "fp8-tensor": (lambda w: fp8(w, "tensor"), {"quant_method": "fp8"}),
    "fp8-channel": (lambda w: fp8(w, "channel"), {"quant_method": "compressed-tensors"}),
}  # fmt: skip


@pytest.fixture
def packed(tmp_path):
    """`packed(make, settings)`: a folder with every projection of the layers packed, and what the
    model's matrices are then."""

    def write(make, settings):
        model = tiny_model("llama")
        folder = save_folder(tmp_path / "packed", model)
        file, expected = folder / "model.safetensors", parameters(model)
        tensors = load_file(file)
        for name in [name for name in tensors if name.endswith("proj.weight")]:
            made, expected[name] = make(tensors.pop(name).numpy())
            tensors |= {f"{name.removesuffix('weight')}{key}": t for key, t in made.items()}
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
        edit_json(folder / "config.json", quantization_config=settings)
        return folder, expected

    return write


@pytest.mark.parametrize("case", CASES)
def test_every_number_is_that_of_the_formula(packed, case):
    folder, expected = packed(*CASES[case])
    source = open_source(folder)
    assert sorted(source.names()) == sorted(expected)
    for name, array in expected.items():
        assert source.shape(name) == array.shape
        np.testing.assert_allclose(source.tensor(name), array, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize(("name", "form"), [
    ("mlp.experts.gate_up_proj_blocks", "MXFP4"),
    ("mlp.up_proj.weight.absmax", "bitsandbytes' 4 bits"),
    ("mlp.up_proj.SCB", "bitsandbytes' 8 bits"),
    ("mlp.up_proj.weight_packed", "compressed-tensors' packed integers"),
])  # fmt: skip
def test_other_forms_are_refused_by_name(tmp_path, name, form):
    folder = save_folder(tmp_path / "m", tiny_model("llama"))
    file = folder / "model.safetensors"
    save_file(load_file(file) | {f"model.layers.0.{name}": torch.ones(2)}, file)
    with pytest.raises(UnsupportedModel, match=f"packed as {form}, which is not read; get"):
        open_source(folder)


@pytest.mark.parametrize("settings", [
    {"quant_method": "awq", "bits": 4, "version": "gemv"},
    {"quant_method": "gptq", "bits": 3},
    {"quant_method": "hqq"},
    {},
])  # fmt: skip
def test_packed_integers_of_another_kind_are_refused(packed, settings):
    folder, _ = packed(awq, settings)
    with pytest.raises(UnsupportedModel, match="qweight is packed by"):
        open_source(folder)


def test_a_part_that_is_missing_is_named(packed):
    folder, _ = packed(*CASES["awq"])
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.0.mlp.up_proj.qzeros"]
    save_file(tensors, file)
    with pytest.raises(InvalidWeights, match=r"without model.layers.0.mlp.up_proj.qzeros"):
        open_source(folder)


def test_parts_that_do_not_fit_are_named(packed):
    folder, _ = packed(*CASES["awq"])
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.0.mlp.up_proj.scales"] = torch.ones(2, 3, dtype=torch.float16)
    save_file(tensors, file)
    with pytest.raises(InvalidWeights, match=r"up_proj.scales \(2, 3\) do not fit together"):
        open_source(folder).tensor("model.layers.0.mlp.up_proj.weight")
