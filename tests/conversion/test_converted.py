"""What a conversion writes, byte for byte: who changes it has to raise the converter's number.

    python tests/conversion/test_converted.py      # says which bytes differ, and writes the record

That converts all cases and compares golden results too, which one machine computes alike. The tests
leave those out.
"""

import json
from pathlib import Path
import sys
import tempfile

sys.path.append(str(Path(__file__).resolve().parents[1]))
from _converted import CASES, convert
from _long import long_but
from ane_book.conversion.target import key
from mlprogram.ane import faults, laws
import pytest

RECORD = Path(__file__).with_name("converted.json")
QUICK = (
    "llama usual: slots, int8",
    "gemma3_text usual: packages",
    "qwen3_5_text usual: lut4",
    "tagger usual: apart",
)
#: A fault that sources disagree on, and that `state_write="select"` and `kv="host"` do not have.
CONTESTED = {"state-slice-update"}
#: What differs with PyTorch's kernels, and so with the processor.
NUMBERS = "golden"


@pytest.mark.parametrize("case", long_but([c for c in CASES if "auto" not in c], *QUICK))
def test_bytes_change_only_with_the_converters_number(case, tmp_path):
    record = json.loads(RECORD.read_text())
    assert record["converter"] == key.CONVERTER, f"run `python {Path(__file__).name}`"
    if record["with"] != key.code_key():
        pytest.skip(f"the bytes are known with {record['with']}")
    found, known = convert(case, tmp_path), record["cases"][case]
    if (bundle := tmp_path / "bundle").exists():
        met = {finding.rule.id for finding in laws.check(bundle, faults.load()).findings}
        assert met <= CONTESTED, "a package of ours has a known fault"
    assert {**found, NUMBERS: ""} == {**known, NUMBERS: ""}, (
        "conversion writes other bytes than it did: raise CONVERTER in ane_book/conversion/target/"
        "key.py, or readers keep the bundles of before, and run `python tests/conversion/"
        "test_converted.py`"
    )


def test_versions_count(monkeypatch):
    before = key.code_key()
    monkeypatch.setattr(key, "CONVERTER", key.CONVERTER + 1)
    assert key.code_key() != before
    monkeypatch.undo()
    for name in key.PACKAGES:
        monkeypatch.setattr(key, "version", lambda n, name=name: "0.0" if n == name else "1.0")
        assert f"{name} 0.0" in key.code_key()


def main() -> None:
    """Convert all cases, say which differ from the record, and write it anew."""
    record = json.loads(RECORD.read_text())
    cases, known = {}, record["cases"] if record["with"] == key.code_key() else {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as new:
            cases[case] = convert(case, Path(new))
        former = known.get(case, cases[case])
        other = sorted(kind for kind, _ in cases[case].items() ^ former.items())
        print(f"{case}: {', '.join(dict.fromkeys(other)) or 'equal'}", flush=True)
    if any({**cases[case], NUMBERS: ""} != {**own, NUMBERS: ""} for case, own in known.items()):
        sys.exit("raise CONVERTER in ane_book/conversion/target/key.py first")
    lines = ",\n  ".join(f"{json.dumps(case)}: {json.dumps(own)}" for case, own in cases.items())
    head = f' "converter": {key.CONVERTER},\n "with": {json.dumps(key.code_key())},'
    RECORD.write_text(f'{{\n{head}\n "cases": {{\n  {lines}\n }}\n}}\n')


if __name__ == "__main__":
    main()
