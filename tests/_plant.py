"""Faults of a conversion, planted in a bundle that was written well: files keep their sizes."""

from pathlib import Path
import shutil

from ane_book.bundle import Bundle
from coremltools.proto import Model_pb2
from mlprogram.package.reader import Package
import numpy as np


def copied(bundle: Bundle, folder: Path) -> Path:
    return Path(shutil.copytree(bundle.path, folder / "faulty"))


def change_weight(package: Path, name: str, change) -> None:
    """Rewrite one fp16 constant of the weight file: the one whose name ends so."""
    constant = next(c for found, c in Package(package).weights if found.endswith(name))
    old, file = constant.array(), next(package.rglob("weight.bin"))
    content, new = file.read_bytes(), old.copy()
    change(new)
    assert not np.array_equal(old, new), "the change has to change something"
    at = content.find(old.tobytes(), constant.blob[1])
    file.write_bytes(content[:at] + new.tobytes() + content[at + old.nbytes :])


def flip(weight: np.ndarray) -> None:
    """The sign of one weight, an ordinary one."""
    flat = weight.reshape(-1)
    flat[np.argsort(np.abs(flat))[len(flat) // 2]] *= -1


def exchange(rows_a: slice, rows_b: slice):
    def change(weight: np.ndarray) -> None:
        weight[rows_a], weight[rows_b] = weight[rows_b].copy(), weight[rows_a].copy()

    return change


def inflate_eps(package: Path, function: str, factor: float) -> None:
    """The first layer norm's epsilon."""
    (file,) = package.rglob("*.mlmodel")
    model = Model_pb2.Model.FromString(file.read_bytes())
    (block,) = model.mlProgram.functions[function].block_specializations.values()
    operations = {o.outputs[0].name: o for o in block.operations if o.outputs}
    norm = next(o for o in block.operations if o.type == "layer_norm")
    constant = operations[norm.inputs["epsilon"].arguments[0].name]
    values = constant.attributes["val"].immediateValue.tensor
    if values.HasField("bytes"):
        eps = np.frombuffer(values.bytes.values, np.float16) * np.float16(factor)
        values.bytes.values = eps.astype(np.float16).tobytes()
    else:
        values.floats.values[0] *= factor
    content = model.SerializeToString(deterministic=True)
    assert len(content) == file.stat().st_size, "a bundle's files keep their sizes"
    file.write_bytes(content)
