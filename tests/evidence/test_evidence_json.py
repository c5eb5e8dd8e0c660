"""evidence.json: four levels, each by itself, and what a bundle that failed one is good for."""

import json

from _command import ane_book as command
from _command import processes, refused
from _patience import HANGING
from _plant import change_weight, copied, exchange
import ane_book
from ane_book.bundle import Bundle
from ane_book.bundle.evidence import Level, level
from ane_book.errors import InvalidBundle
from ane_book.evidence.parity import check_parity
from ane_book.runtime import Session
from mlprogram.files import written_whole
import pytest


@pytest.fixture
def copy(tiny_bundle, tmp_path):
    return copied(tiny_bundle("llama", kv="state", shard_limit=100_000)[1], tmp_path)


def test_conversion_measures_nothing_and_says_so(copy):
    found = json.loads((copy / "evidence.json").read_text())
    assert list(found["levels"]) == ["L0", "L1", "L2", "L3"]
    assert {level["status"] for level in found["levels"].values()} == {"unmeasured"}
    assert found["bundle"] == Bundle.open(copy).manifest.seal
    assert "ane-book check BUNDLE --parity" in found["levels"]["L1"]["reason"]


def test_a_level_is_recorded_and_the_others_stay(copy):
    bundle = Bundle.open(copy)
    bundle.record("L1", check_parity(bundle).level())
    bundle.record("L3", level(False, "twice the perplexity", {"perplexity": 40.0}))
    levels = Bundle.open(copy).evidence.levels
    assert [level.status for level in levels.values()] == [
        "unmeasured", "passed", "unmeasured", "failed",
    ]  # fmt: skip
    bundle.record("L1", Level(status="unmeasured", reason="not on this machine"))
    assert bundle.evidence.levels["L1"] == levels["L1"], "nothing measured is lost"
    assert levels["L1"].figures["agreement"] == 1.0 and levels["L1"].tools["coremltools"]
    assert not (copy / "evidence.json.part").exists()
    text = command("inspect", copy).stdout
    assert "L1 parity     passed" in text and "L3 quality    failed" in text


WEAK, STRONG = {"source": False}, {"source": True}


@pytest.mark.parametrize(
    ("first", "then", "holds"),
    [
        ((True, STRONG), (True, WEAK), "first"),
        ((True, WEAK), (True, STRONG), "then"),
        ((True, STRONG), (True, STRONG), "then"),
        ((True, STRONG), (False, WEAK), "then"),
        ((False, STRONG), (True, WEAK), "first"),
        ((False, STRONG), (False, WEAK), "first"),
        ((False, WEAK), (True, STRONG), "then"),
        ((True, {"source": "yes"}), (True, {}), "then"),
    ],
)
def test_a_level_gives_way_to_what_is_as_strong_and_a_pass_to_any_failure(copy, first, then, holds):
    bundle = Bundle.open(copy)
    levels = {"first": level(first[0], "first", first[1]), "then": level(then[0], "then", then[1])}
    for one in levels.values():
        held = bundle.record("L1", one)
    assert held == bundle.evidence.levels["L1"] == levels[holds]


def test_what_makes_a_measurement_stronger(copy):
    ranks = {
        "L0": [{}, {"calibrated": True}],
        "L2": [{"soak": 10}, {"soak": 500}],
        "L3": [{"prose_tokens": 63}, {"prose_tokens": 1023},
               {"prose_tokens": 63, "independent": True}],
    }  # fmt: skip
    bundle = Bundle.open(copy)
    for name, rising in ranks.items():
        found = [level(True, "so strong", figures) for figures in rising]
        for one in found:
            assert bundle.record(name, one) is one
        for one in found[:-1]:
            assert bundle.record(name, one) == found[-1]
    another = level(True, "another Mac", {"soak": 10}, {"chip": "Apple M9"})
    assert bundle.record("L2", another) is another, "two machines are not compared"


def _record_often(folder, name):
    bundle = Bundle.open(folder)
    for number in range(20):
        bundle.record(name, level(True, f"{name} {number}", {"number": number}))


def test_processes_that_record_at_once_lose_nothing(copy):
    names = ["L0", "L1", "L3"]
    running = [processes.Process(target=_record_often, args=(copy, name)) for name in names]
    for process in running:
        process.start()
    for process in running:
        process.join(HANGING)
    assert [process.exitcode for process in running] == [0, 0, 0]
    levels = Bundle.open(copy).evidence.levels
    assert [levels[name].reason for name in names] == [f"{name} 19" for name in names]
    assert not list(copy.glob("*.part"))


def test_nobody_knows_the_name_of_an_unfinished_file_before(tmp_path):
    """So that none has a link of this name ready."""
    names = []
    for _ in range(2):
        with written_whole(tmp_path / "evidence.json") as unfinished:
            unfinished.write_text("{}")
        names.append(unfinished.name)
    assert names[0] != names[1] and [*tmp_path.iterdir()] == [tmp_path / "evidence.json"]


def test_a_bundle_that_failed_parity_is_refused_unless_forced(copy):
    change_weight(
        copy / "layers_01-02.mlpackage",
        "attention_qkv_weight_to_fp16",
        exchange(slice(0, 16), slice(16, 32)),
    )
    bundle = Bundle.open(copy)
    bundle.record("L1", check_parity(bundle).level())
    for use in (Session, ane_book.load):
        with pytest.raises(InvalidBundle, match=r"failed L1 parity on .*layers_01-02.*force=True"):
            use(copy)
    assert "failed L1 parity" in refused("run", copy, "Hello", "--max-tokens", "2")
    assert len(ane_book.load(copy, force=True).generate("Hello", max_tokens=2).token_ids) == 2


def test_evidence_of_another_conversion_counts_for_nothing(copy):
    bundle = Bundle.open(copy)
    bundle.record("L1", level(False, "wrong", {}))
    file = copy / "evidence.json"
    file.write_text(file.read_text().replace(bundle.manifest.seal, "0" * 64))
    assert Bundle.open(copy).evidence.levels["L1"].status == "unmeasured"
    assert Session(copy).context == 32


def test_a_file_that_is_no_json_or_no_file_is_told(copy):
    (copy / "evidence.json").write_text("{")
    with pytest.raises(InvalidBundle, match=r"evidence.json: .*delete it"):
        Session(copy)
    (copy / "evidence.json").unlink()
    (copy / "evidence.json").mkdir()
    with pytest.raises(InvalidBundle, match="not a regular file"):
        Session(copy)


def test_a_bundle_with_its_evidence_is_still_only_a_bundle(copy, tiny):
    """A conversion may replace it: nothing of somebody else's would be lost."""
    bundle = Bundle.open(copy)
    bundle.record("L1", Level(status="unmeasured", reason="not yet"))
    again = ane_book.convert(
        str(tiny("llama")[1]), out=copy, context=32, prefill=8, kv="host", force=True
    )
    assert again.evidence.levels["L1"].reason.startswith("nobody has measured")
