"""Who stands behind the claims: every source of the registry has its phrase, and no other."""

from _claims import check
from ane_book_pages import sources
from mlprogram.ane import claims
from mlprogram.ane.cost import chips
import pytest


def evidence():
    for claim in (*sources.everything().values(), *chips().values()):
        yield from (*claim.support, *claim.against)


def test_every_source_has_its_phrase_and_each_phrase_its_source():
    used = {sources.of(one).name for one in evidence()}
    assert used == set(sources.load())


def test_the_two_files_of_claims_share_no_name():
    inside = claims.load(sources.INSIDE)
    assert not inside.keys() & claims.load().keys()
    assert len(sources.everything()) == len(inside) + len(claims.load())
    for claim in inside.values():
        check(claim)


@pytest.mark.parametrize(
    ("name", "known", "url"),
    [
        ("maderix/ANE#26", "maderix/ANE#26", "https://github.com/maderix/ANE/issues/26"),
        ("maderix/ANE#3", "maderix/ANE#", "https://github.com/maderix/ANE/issues"),
        ("maderix/ANE@d91c984 README.md", "maderix/ANE", "https://github.com/maderix/ANE"),
        (
            "apple/coremltools#1",
            "apple/coremltools#",
            "https://github.com/apple/coremltools/issues",
        ),
        (
            "https://apple.github.io/coremltools/docs-guides/source/opt-overview.html",
            "apple.github.io/coremltools/docs-guides/source",
            "https://apple.github.io/coremltools/docs-guides/source",
        ),
    ],
)
def test_files_threads_and_addresses_find_theirs(name, known, url):
    source = sources.of(claims.Citation(name, "so"))
    assert (source.name, source.url) == (known, url)


def test_a_claim_on_one_chip_by_one_source_is_on_a_chip_of_that_source():
    for claim in sources.everything().values():
        behind = {sources.of(one) for one in claim.support}
        if len(behind) == 1 and claim.chip.startswith(("M", "A")) and not claim.against:
            (source,) = behind
            seen = [chip for chip in claim.chip.split(", ") if chip[1:2].isdigit()]
            assert not source.chips or set(seen) <= set(source.chips), (claim.id, source.name)


def test_sides_are_counted_once_a_claim():
    counts = sources.tally([claims.find("scale-per-block"), claims.find("program-250mb")])
    guide = sources.load()["videlalvaro/ane-book"]
    assert counts[guide] == (2, 2) and next(iter(counts)) is guide


@pytest.mark.parametrize(
    ("support", "against", "said"),
    [
        (("Anemll/Anemll#1", "fails"), ("mechramc/Orion#1", "runs"), "one side names no chip"),
        (("Anemll/Anemll#1", "fails, M2"), ("Anemll/Anemll#2", "runs, A17 Pro"), "no chip in c"),
        (("Anemll/Anemll#1", "fails, M2 Pro"), ("Anemll/Anemll#1", "runs, M2 Pro"), "one source"),
        (("Anemll/Anemll#1", "M2"), ("mechramc/Orion#1", "runs, M2"), "different sources"),
    ],
)
def test_what_parts_two_sides(monkeypatch, support, against, said):
    both = [(claims.Citation(*side),) for side in (support, against)]
    monkeypatch.setattr(sources, "of", lambda one: sources.ClaimSource(one.name, "a source"))
    assert said in sources.parted(claims.Claim("c", "so", "conflicting", *both))
