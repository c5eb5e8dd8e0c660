"""Both numbers of a fault, on a few values that a reader can check by hand."""

import json
from math import inf, isnan

from _pairs import HALF, INT, SINGLE, Form, _made
from _planted import alone, mb, number
from mlprogram.ane import faults, laws
from mlprogram.ane.faults import numbers
import numpy as np
import pytest
from test_fix import _band, _rms_norm

ROWS = ((2, 4), HALF)


def both(tmp_path, network, known=None, **form):
    """The numbers of the first finding."""
    path = tmp_path / "a.mlpackage"
    _made(lambda _, *values: network(*values), True, Form(**{"inputs": (ROWS,), **form})).save(
        str(path)
    )
    return numbers.of(path, laws.check(path, known or faults.load()).findings[0])


def test_an_op_gives_its_first_values_that_differ(tmp_path):
    found = both(tmp_path, lambda y: mb.pow(x=number(2, y), y=y))
    assert found.inputs == {"x": (3, -2, 0.5)}
    assert found.gives == (9, 4, 0.25)
    np.testing.assert_allclose(found.should, [8, 0.25, 2**0.5], 1e-3)
    assert found.text() == "x 3, -2, 0.5 gives 9, 4, 0.25, not 8, 0.25, 1.414"
    assert json.loads(json.dumps(found.to_json()))["in"] == {"x": [3, -2, 0.5]}


def test_an_op_of_integers(tmp_path):
    found = both(tmp_path, lambda x: mb.mod(x=x, y=5), inputs=(((3,), INT),))
    assert (found.inputs["x"][0], found.gives[0], found.should[0]) == (-1, -1, 4)


def test_an_op_over_an_axis_of_any_size(tmp_path):
    network, size = lambda x: mb.reduce_log_sum_exp(x=x, axes=[-1]), (1, 64, 5000)
    found = both(tmp_path, network, inputs=((size, SINGLE),))
    assert (found.inputs["x"][0], found.gives[0]) == (100, inf)
    assert found.should[0] == pytest.approx(100 + np.log(2))  # of an axis of two
    assert found.to_json()["gives"][0] == "inf"


def test_an_op_that_takes_unequal_elements(tmp_path):
    found = both(tmp_path, lambda x: mb.gather(x=x, indices=[-1], axis=1, validate_indices=False))
    assert found.inputs["x"] == (1, 2, 3, 4, 5, 6)
    assert (found.gives, found.should) == ((1, 5), (4, 8))


def test_an_op_without_a_rewrite_by_both_readings(tmp_path):
    found = both(tmp_path, lambda x: mb.add(x=x, y=(1 << 24) + 1), inputs=(((3,), INT),))
    assert "16,777,216, not " in found.text() and found.text().endswith("16,777,217")


def test_ops_that_make_up_a_fault_run_together(tmp_path):
    found = both(tmp_path, _band, alone("band-infinite"))
    assert found.inputs["x"][0] == -inf and isnan(found.gives[0]) and found.should[0] == 0
    (tmp_path / "norm").mkdir()
    found = both(tmp_path / "norm", _rms_norm, alone("rms-norm-epsilon"))
    at = found.inputs["x"].index(0.5)
    assert found.gives[at] > 0.999 and found.should[at] == pytest.approx(0.998, abs=1e-3)


@pytest.mark.parametrize("fault", ["non-finite", "sentinel-selected"])
def test_a_closed_score_is_closed_however_low_it_is(tmp_path, fault):
    """What a mask writes is no fault's number: the package does not tell what was meant."""

    def masked(x):
        hidden = mb.select(cond=mb.less(x=x, y=number(0, x)), a=number(-inf, x), b=x)
        return mb.softmax(x=hidden, axis=-1)

    assert both(tmp_path, masked, alone(fault)) is None


@pytest.mark.parametrize("what", ["refused", "on a device alone", "computed of constants"])
def test_there_are_none(tmp_path, what):
    def network(x, y):
        if what == "refused":
            return mb.matmul(x=y, y=mb.transpose(x=x, perm=[1, 0]))
        if what == "on a device alone":
            return mb.gather_nd(
                x=x, indices=mb.cast(x=[[0]], dtype="int32"), validate_indices=False
            )
        return mb.range_1d(start=np.float32(9), end=np.float32(9.001), step=np.float32(1e-6))

    assert both(tmp_path, network, inputs=(((3, 4), SINGLE), ((4,), SINGLE))) is None
