"""What `fix` writes, and that it writes whole, elsewhere, or nothing."""

from _converters import Case, convert
from _full_disk import room_for
from _pairs import HALF, INT, SINGLE, Form, _made
from _patience import guarded
from _planted import alone, mb, number
from mlprogram import MLProgram
from mlprogram.ane import faults, laws
from mlprogram.ane.faults import numbers
from mlprogram.ane.faults.fix import fix
from mlprogram.errors import InvalidInput, InvalidPackage
from mlprogram.files import content_hash
import numpy as np
import pytest
import torch
from torch.nn.functional import rms_norm

ROWS = ((4, 8), HALF)
WEIGHT = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float16)


def _powers(_, x):
    return mb.pow(x=number(2, x), y=mb.linear(x=x, weight=WEIGHT))


def _kept(_, x, state):
    """A state that grows by the powers of what it is given."""
    new = mb.add(x=mb.read_state(input=state), y=mb.pow(x=number(2, x), y=x))
    return mb.coreml_update_state(state=state, value=new)


def saved(folder, network=_powers, **form):
    made = _made(network, True, Form(**{"inputs": (ROWS,), **form}))
    made.save(str(folder / "a.mlpackage"))
    return folder / "a.mlpackage"


def test_the_package_stays_and_its_weights_are_the_same_bytes(tmp_path):
    path, out = saved(tmp_path), tmp_path / "new" / "b.mlpackage"
    before = content_hash(path)
    report = fix(path, out)
    assert content_hash(path) == before
    weights = "Data/com.apple.CoreML/weights/weight.bin"
    assert (out / weights).read_bytes() == (path / weights).read_bytes()
    assert report.ops == (2, 2)
    sizes = [sum(f.stat().st_size for f in one.rglob("*") if f.is_file()) for one in (path, out)]
    assert [*report.bytes] == sizes
    assert not laws.check(out, faults.load()).findings


def test_two_functions_are_mended_together(tmp_path):
    report = fix(saved(tmp_path, functions=2), tmp_path / "b.mlpackage")
    assert [one.function for one in report.mended] == ["f1", "main"]
    for name in ("f1", "main"):
        program = MLProgram(report.out, name, precision="fp32")
        (power,) = program.predict({"x": np.eye(4, 8)}).values()
        np.testing.assert_allclose(power, 2 ** (np.eye(4, 8) @ WEIGHT.T), 1e-3)


def test_what_a_state_holds_is_proven_too(tmp_path):
    report = fix(saved(tmp_path, _kept, states=(ROWS,)), tmp_path / "b.mlpackage")
    program = MLProgram(report.out)
    state = program.make_state()
    for _ in range(2):
        program.predict({"x": np.full((4, 8), 3)}, state)
    assert (state.read_state("state_0") == 16).all()


def test_an_op_with_two_faults_is_mended_twice(tmp_path):
    def bare(spec):
        (block,) = spec.mlProgram.functions["main"].block_specializations.values()
        del next(o for o in block.operations if o.type == "gather").inputs["validate_indices"]

    def last(_, x):
        return mb.gather(x=x, indices=[-1], axis=0)

    report = fix(saved(tmp_path, last, edit=bare), tmp_path / "b.mlpackage")
    assert {one.fault.id for one in report.mended} == {"gather-negative", "gather-unvalidated"}
    assert not report.left and not laws.check(report.out, faults.load()).findings


def test_what_cannot_be_mended_is_named_with_its_remedy(tmp_path):
    def both(_, x, y):
        return mb.pow(x=number(2, x), y=mb.gather_nd(x=x, indices=y, validate_indices=False))

    path = saved(tmp_path, both, inputs=(ROWS, ((2, 1), INT)))
    report = fix(path, tmp_path / "b.mlpackage")
    assert [one.fault.id for one in report.mended] == ["pow-two"]
    assert [one.fault.id for one in report.left] == ["gather-nd-computed"]
    remedy = faults.load()["gather-nd-computed"].instead
    assert f"instead: {remedy}" in report.text()
    assert report.to_json()["left"][0]["instead"] == remedy


def test_nothing_is_written_where_nothing_is_mended(tmp_path):
    path = saved(tmp_path, lambda _, x: mb.exp(x=x))
    report = fix(path, tmp_path / "b.mlpackage")
    assert report.out is None and "nothing is written" in report.text()
    assert {one.name for one in tmp_path.iterdir()} == {"a.mlpackage"}


def test_an_op_that_has_no_exact_rewrite_stays(tmp_path):
    """A mask of infinities that is an output of its own."""
    path = saved(tmp_path, lambda _, x: mb.add(x=x, y=number(-np.inf, x)))
    report = fix(path, tmp_path / "b.mlpackage")
    (left,) = report.left
    assert (left.fault.id, left.left) == ("non-finite", "its mask is an output of the function")
    assert report.out is None
    assert "nothing that an exact rewrite mends, and nothing is written" in report.text()


def test_an_epsilon_that_may_not_be_meant_is_left(tmp_path):
    """coremltools writes 1e-5 where rms_norm is given none, which torch computes with 1.19e-7."""
    made = convert(Case(lambda x: rms_norm(x, (8,)), rms_norm, (torch.ones(2, 8),)))
    made.save(str(tmp_path / "a.mlpackage"))
    report = fix(tmp_path / "a.mlpackage", tmp_path / "b.mlpackage")
    (left,) = report.left
    assert left.fault.id == "rms-norm-epsilon" and "torch's default, 1.19e-7" in left.left
    found = laws.check(report.package, faults.load()).findings[0]
    assert numbers.of(report.package, found) is None


def test_what_a_converter_was_given_is_not_guessed(tmp_path):
    """An inverse may be meant with its epsilon, if nothing says that torch's reciprocal was."""

    def anonymous(spec):
        spec.description.metadata.userDefined.clear()

    path = saved(tmp_path, lambda _, x: mb.inverse(x=x), edit=anonymous)
    (left,) = fix(path, tmp_path / "b.mlpackage").left
    assert left.fault.id == "reciprocal-epsilon" and "does not say" in left.left


def test_what_is_found_in_a_rewrite_is_not_rewritten(tmp_path):
    """A clip of no bounds; an identity in its place would be taken for a root of squares."""
    whole = np.float16(np.inf)

    def clip(_, x):
        return mb.exp(x=mb.clip(x=x, alpha=-whole, beta=whole))

    report = fix(saved(tmp_path, clip), tmp_path / "b.mlpackage")
    assert {one.fault.id for one in report.mended} == {"non-finite"} and not report.left
    (found,) = MLProgram(report.out).predict({"x": np.full((4, 8), -2)}).values()
    np.testing.assert_allclose(found, np.exp(-2), 1e-3)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_mask_that_is_no_mask_stays(tmp_path, value):
    path = saved(tmp_path, lambda _, x: mb.softmax(x=mb.add(x=x, y=number(value, x)), axis=-1))
    report = fix(path, tmp_path / "b.mlpackage")
    assert report.out is None and "too large for half precision, or none" in report.left[0].left


def test_nothing_is_written_where_a_whole_function_parts(tmp_path):
    """Scores of a fused attention that overflow in half precision once they are written out."""

    def attention(_, x):
        q = mb.mul(x=mb.reshape(x=x, shape=[1, 1, 4, 8]), y=number(300, x))
        mask = np.zeros((4, 4), np.float16)
        return mb.scaled_dot_product_attention(query=q, key=q, value=q, attn_mask=mask)

    path = saved(tmp_path, attention)
    with pytest.raises(InvalidInput, match="would not give what was meant.*nothing is written"):
        fix(path, tmp_path / "b.mlpackage")
    assert {one.name for one in tmp_path.iterdir()} == {"a.mlpackage"}


def test_another_place_is_needed(tmp_path):
    path = saved(tmp_path)
    with pytest.raises(InvalidInput, match="exists already"):
        fix(path, path)
    with pytest.raises(InvalidInput, match="does not end in .mlpackage"):
        fix(path, tmp_path / "b.mlmodel")
    with pytest.raises(InvalidPackage, match="no such package"):
        fix(tmp_path / "none.mlpackage", tmp_path / "b.mlpackage")
    with pytest.raises(InvalidInput, match="in the package itself"):
        fix(path, path / "Data" / "b.mlpackage")
    with room_for(100), pytest.raises(InvalidInput, match="cannot be written"):
        fix(path, tmp_path / "b.mlpackage")
    assert {one.name for one in tmp_path.iterdir()} == {"a.mlpackage"}
    assert not (path / "Data" / "b.mlpackage").exists()


def test_an_identity_that_may_be_meant_stays(tmp_path):
    """And none is made of a clip without bounds, which would be taken for such a one."""

    def network(_, x):
        unbounded = mb.clip(x=x, alpha=number(-np.inf, x), beta=number(np.inf, x))
        return mb.add(x=mb.identity(x=x), y=unbounded)

    report = fix(saved(tmp_path, network), tmp_path / "b.mlpackage")
    assert {one.fault.id for one in report.mended} == {"non-finite"}
    assert [one.fault.id for one in report.left] == ["root-of-square"]
    (found,) = MLProgram(report.out).predict({"x": np.full((4, 8), -2)}).values()
    assert (found == -4).all()


def test_rounding_that_later_ops_enlarge_is_no_other_meaning(tmp_path):
    """Of 4e-6 here, in a program of single precision."""

    def network(_, x):
        shares = mb.log(x=mb.softmax(x=x, axis=-1))
        return mb.sin(x=mb.mul(x=shares, y=number(30, x)))

    path = saved(tmp_path, network, inputs=(((4, 8), SINGLE),))
    report = fix(path, tmp_path / "b.mlpackage", alone("log-of-softmax"))
    assert len(report.mended) == 1 and report.error < 1e-4


def test_an_op_that_is_too_large_to_run_is_left(tmp_path):
    large = saved(
        tmp_path, lambda _, x: mb.pow(x=number(2, x), y=x), inputs=(((1 << 14, 1 << 14), HALF),)
    )
    report = fix(large, tmp_path / "b.mlpackage")
    assert report.out is None and "too large to be proven" in report.left[0].left


def test_a_value_that_many_ways_lead_to_is_looked_at_once(tmp_path):
    """Ten concats of the one before six times: sixty million ways back to the input."""

    def network(_, x):
        x = mb.abs(x=x)
        for _ in range(10):
            x = mb.concat(values=[x] * 6, axis=0)
        return mb.mod(x=x, y=number(2, x))

    with guarded(20):
        assert not laws.check(saved(tmp_path, network), faults.load()).findings
