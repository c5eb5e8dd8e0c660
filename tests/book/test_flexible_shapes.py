"""What "Several tokens a call" says of Core ML's flexible shapes: a range, a list and functions of
fixed length compute the same numbers, and a list takes its own lengths only."""

from ane_book import MLProgram
from ane_book.errors import InvalidInput
import coremltools as ct
import numpy as np
import pytest
import torch

K = 8
SHAPES = {length: (1, 128, 1, length) for length in (1, 4, K)}
FORMS = {
    "static": SHAPES[K],
    "range": (1, 128, 1, ct.RangeDim(1, K, default=K)),
    "list": ct.EnumeratedShapes(list(SHAPES.values()), default=SHAPES[K]),
}


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """A feed-forward network in each form."""
    torch.manual_seed(0)
    layer = torch.nn.Sequential(
        torch.nn.Conv2d(128, 384, 1), torch.nn.SiLU(), torch.nn.Conv2d(384, 128, 1)
    )
    traced = torch.jit.trace(layer.eval(), torch.zeros(SHAPES[K]))
    made = {}
    for name, form in FORMS.items():
        path = tmp_path_factory.mktemp(name) / "program.mlpackage"
        ct.convert(
            traced,
            inputs=[ct.TensorType("x", form, dtype=np.float16)],
            outputs=[ct.TensorType("y", dtype=np.float16)],
            minimum_deployment_target=ct.target.iOS18,
            skip_model_load=True,
        ).save(str(path))
        made[name] = MLProgram(path)
    return made


def test_all_forms_compute_the_same_numbers(programs):
    x = np.random.default_rng(0).standard_normal(SHAPES[K]).astype(np.float16)
    given = {name: program.predict({"x": x})["y"] for name, program in programs.items()}
    assert all(np.array_equal(y, given["static"]) for y in given.values())


def test_only_a_range_takes_a_length_between(programs):
    x = np.zeros((1, 128, 1, 3), np.float16)
    assert programs["range"].predict({"x": x})["y"].shape == x.shape
    for name in ("static", "list"):
        with pytest.raises(InvalidInput):
            programs[name].predict({"x": x})
