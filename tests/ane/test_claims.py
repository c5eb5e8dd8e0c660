"""The registry of claims about the Neural Engine: whole, graded, sourced."""

import ast
from pathlib import Path

from _claims import check
from mlprogram.ane import claims
from mlprogram.ane.cost.chips import DATA
from mlprogram.errors import InvalidInput
import pytest

SOUND = """
[axis]
statement = "an axis over 8 is refused"
value = 8
unit = "elements"
grade = "conflicting"
for = [{ source = "owner/name@0123456 docs/a.md", says = "refused" }]
against = [{ source = "owner/name#12", says = "taken" }]
"""


class TestRegistry:
    def test_every_claim_has_grade_source_and_both_sides_where_they_disagree(self):
        known = claims.load()
        assert len(known) > 50
        assert {claim.grade for claim in known.values()} == set(claims.GRADES)
        for file in (claims.REGISTRY, *DATA.glob("*.toml")):
            for claim in claims.load(file).values():
                check(claim)
        for claim in known.values():
            if isinstance(claim.value, tuple) and not isinstance(claim.value[0], str):
                low, high = claim.bounds
                assert low < high, claim.id

    def test_a_claim_that_sources_contradict_is_said_to_be_conflicting(self):
        """ "measured" and "apple" may have a word against them; they may not hide a refusal."""
        assert claims.find("program-small").grade == "conflicting"
        assert claims.find("scale-per-block").against[0].says.startswith("the row above it")

    def test_addresses_lead_to_what_is_cited(self):
        file, thread = claims.find("axis-most").support[:2]
        assert file.url == (
            "https://github.com/sbryngelson/ANEForge/blob/a7e784b/docs/developer/op-quirks.md"
        )
        assert thread.url == "https://github.com/maderix/ANE/issues/26"
        for claim in claims.load().values():
            for evidence in (*claim.support, *claim.against):
                assert evidence.url.startswith("https://"), evidence

    def test_note_has_both_sides(self):
        note = claims.find("axis-most").note("an axis of 70,000")
        assert note.startswith("an axis of 70,000: an axis over 65,536 is refused")
        assert "(conflicting, M4 and later; " in note and ": sbryngelson/ANEForge" in note
        assert note.endswith("against: videlalvaro/ane-book)")

    def test_every_side_is_told_whatever_the_grade(self):
        for claim in claims.load().values():
            told = [one.name for one in (*claim.support, *claim.against)]
            assert all(name in claim.evidence for name in told), claim.id

    def test_unknown_names_are_told_with_the_nearest(self):
        with pytest.raises(InvalidInput, match=r"'axis-mots'; there are axis-most"):
            claims.find("axis-mots")


@pytest.fixture
def axis(tmp_path):
    """`axis(text)` -> the claim `axis` of a file with this text."""

    def load(text: str) -> claims.Claim:
        path = tmp_path / "rules.toml"
        path.write_text(text)
        return claims.load(path)["axis"]

    return load


def test_a_claim_for_a_reader_has_both_sides(axis):
    claim = axis(SOUND.replace("value = 8\n", 'value = 8000\nchip = "M4"\n'))
    assert claim.text().splitlines() == [
        "axis: an axis over 8 is refused",
        "  value 8,000 elements   grade conflicting   seen on M4",
        "  for     owner/name: refused",
        "  against owner/name#12: taken",
    ]


def test_a_condition_is_told_wherever_a_claim_is(axis):
    claim = axis(SOUND + 'chip = "M4"\ncondition = "one prompt"\n')
    assert claim.where == "M4, one prompt"
    assert claim.text().splitlines()[1].endswith("seen on M4, one prompt")
    assert claim.evidence.startswith("conflicting, one prompt: owner/name; against")
    assert "(conflicting, one prompt: owner/name" in claim.note("here")


def test_a_source_of_both_sides_is_said_to_be_one(axis):
    evidence = axis(SOUND.replace("owner/name#12", "owner/name@0123456 docs/b.md")).evidence
    assert evidence == "conflicting: owner/name; against: another passage of owner/name"


@pytest.mark.parametrize(
    "value, amount",
    [("[0.1, 0.23]", "0.1 to 0.23 ms"), ('["silu", "tanh"]', "silu, tanh (ms)"), ("2.5", "2.5 ms")],
)
def test_an_amount_is_a_number_a_range_or_names(axis, value, amount):
    text = SOUND.replace("value = 8\n", f"value = {value}\n").replace("elements", "ms")
    assert axis(text).amount == amount


def test_a_claim_is_asked_for_by_a_name_that_there_is():
    """Every `find("...")` and `claims.find("...")` of the library names a claim."""
    root, asked = Path(claims.__file__).parents[2], set()
    for path in root.glob("**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "claims.find":
                asked |= {a.value for a in node.args if isinstance(a, ast.Constant)}
    assert asked and asked <= claims.load().keys()
