"""Run coremltools' own tests on the executor and write down what came out.

    python tests/conformance/run.py --workers 2

The tests come from the installed wheel; nothing of them is kept here: all tests of the ops, and of
the torch front end's up to five cases of each test and precision. They run as Apple's do, in fp16,
and once more in single precision (Apple's switch INCLUDE_MIL_FP32_UNIT_TESTS), because the
tolerance of the fp16 cases is half a unit. Those that take their expected values from TensorFlow or
torchvision run where these are installed. Beside Apple's verdict stands what it is worth
(`teeth.py`): whether a case would notice a broken executor, and how large the errors are. Every
failure has to be explained in `known.toml`; one that is not makes the exit code 1. Written:
research/conformance.json.
"""

import argparse
from collections import Counter, defaultdict
from datetime import date
from importlib import metadata
import json
from pathlib import Path
import platform
import re
import sys
import tempfile
import time
import tomllib

sys.path.append(str(Path(__file__).resolve().parents[1]))
from _coremltools_tests import run_pytest
from _lines import lines

HERE = Path(__file__).parent
RESULT = HERE.parents[1] / "research" / "conformance.json"
DIFFERENCE = re.compile(r"Max absolute difference(?: among violations)?: ([\d.e+-]+)")
COMPUTE_UNIT = re.compile(r"compute_unit=ComputeUnit\.\w+-?|backend=BackendConfig\([^)]*\)-?")


OPS = "converters/mil/mil/ops/tests"
TORCH = "converters/mil/frontend/torch/test/test_torch_ops.py"


def run_tests(paths: list[str], *options: str) -> list[dict]:
    """Run tests of coremltools with pytest in another process; one record a case, by the plugin."""
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "records.jsonl"
        how = ("--tb", "no", "--record", str(records), *options, *paths)
        # from torch.export the same programs come
        code = run_pytest("plugin", HERE, *how, TORCH_FRONTENDS="TORCHSCRIPT")
        if code not in (0, 1) or not records.exists():  # 1: cases failed
            raise SystemExit(f"not all tests ran (pytest: {code}); see above why")
        return [json.loads(line) for line in records.read_text().splitlines()]


def kind(record: dict) -> str:
    """How a case was judged: "fp16", "fp32", or "fp32, fp16 tensors" for a mixture."""
    precision = "".join(record["backend"][1:2]) or "fp16"
    return "fp32, fp16 tensors" if precision == "fp32" and record["half"] else precision


def failed(record: dict) -> bool:
    """Also a case whose process died, or that failed before its prediction."""
    return record["outcome"] == "failed"


def counts(record: dict) -> bool:
    """Whether a case reached a prediction, or failed on the way there."""
    return bool(record["ops"]) or failed(record)


def reason(record: dict, known: list[dict]) -> str | None:
    """Why a failure is not the executor's; None when nobody has said so."""
    for entry in known:
        pattern = re.escape(entry["tests"]).replace(r"\*", ".*")
        found = DIFFERENCE.search(record["why"])
        bounded = found and float(found[1]) <= entry.get("within", 0)
        if (
            re.fullmatch(pattern, record["id"])
            and (bounded or "within" not in entry)
            and entry.get("once", False) <= record["once"]
            and entry.get("says", "") in record["why"]
        ):
            return entry["reason"]
    return None


def explained(records: list[dict]) -> dict[str | None, list[dict]]:
    """The failures by reason; under None those without one."""
    known = tomllib.loads((HERE / "known.toml").read_text())["known"]
    found = {entry["reason"]: [] for entry in known}
    for record in filter(failed, records):
        found.setdefault(reason(record, known), []).append(record)
    return found


def summary(records: list[dict]) -> dict:
    """Counts, errors, and every failure with its reason."""
    tests, ops, kinds = defaultdict(dict), defaultdict(dict), defaultdict(list)
    for record in filter(counts, records):
        file, test, *_ = record["id"].split("::")
        opset = "".join(record["backend"][2:]) or file.split("/")[0]
        name = f"{file.removesuffix('.py').replace('test_', '')}/{test.split('[')[0]}"
        count(tests[name], f"{opset} {kind(record)}", failed(record))
        kinds[suite(record), kind(record)].append(record)
        for op in record["ops"]:
            ops[op].setdefault(kind(record), []).append(record)
    suites = defaultdict(dict)
    for (name, key), found in sorted(kinds.items()):
        suites[name][key] = judged(found)
    return {
        "collected": len(records),
        "predicted": suites,
        "without_prediction": outcomes(r for r in records if not counts(r)),
        "failures": {str(why): short(found) for why, found in explained(records).items() if found},
        "ops": {
            op: {key: judged(r) for key, r in found.items()} for op, found in sorted(ops.items())
        },
        "tests": dict(sorted(tests.items())),
    }


def suite(record: dict) -> str:
    return "torch" if record["id"].startswith("torch/") else "ops"


def judged(records: list[dict]) -> dict[str, object]:
    """Cases passed and failed; with teeth, those that fail with a broken executor, if not before.

    Errors are [median, 99th percentile, largest] of the cases that passed, each as a share of the
    range: of a case its largest, against Apple's expected values and against single precision.
    """
    passed = [record for record in records if not failed(record)]
    found = {"passed": len(passed), "failed": len(records) - len(passed)}
    found["teeth"] = sum(record["teeth"] is True for record in passed) + found["failed"]
    for name in ("expected", "single"):
        errors = sorted(r[name] for r in passed if r[name] is not None)
        if errors:
            at = (len(errors) // 2, len(errors) * 99 // 100, -1)
            found[name] = [float(f"{errors[i]:.2g}") for i in at]
    return found


def count(table: dict, key: str, failed: bool) -> None:
    """Counts as [passed, failed]."""
    table.setdefault(key, [0, 0])[failed] += 1


def versions() -> dict[str, str]:
    """Of Python and of the packages that take part, TensorFlow only where it is installed."""
    found = {"python": platform.python_version()}
    for name in ("coremltools", "torch", "numpy", "tensorflow", "torchvision"):
        for distribution in metadata.packages_distributions().get(name, [])[:1]:
            found[name] = metadata.version(distribution)
    return found


def outcomes(records) -> dict[str, int]:
    """Why cases made no prediction, with how often."""
    causes = (
        r["outcome"] + (f": {r['why']}" if r["outcome"] == "skipped" else "") for r in records
    )
    return dict(Counter(causes).most_common())


def short(records: list[dict]) -> dict[str, list[str]]:
    """Test -> parameters of its cases, without what they all share."""
    found = defaultdict(list)
    for record in records:
        test, _, parameters = record["id"].partition("[")
        rest = COMPUTE_UNIT.sub("", parameters.removesuffix("]"))
        found[test].append(" ".join([*record["backend"][:0:-1], rest]).strip())
    return {test: sorted(cases) for test, cases in sorted(found.items())}


def headline(predicted: dict) -> str:
    """What README says of the op tests; a test holds it to the record."""
    single, half = (predicted["ops"][key] for key in ("fp32", "fp16"))
    return (
        f"{single['passed']:,} of {single['passed'] + single['failed']:,} cases in single "
        f"precision, to 0.0001 ({single['teeth'] - single['failed']:,} of them would notice an "
        f"error of 10 %); {half['passed']:,} of {half['passed'] + half['failed']:,} in half "
        f"precision, at looser tolerances ({half['teeth'] - half['failed']:,} would notice)"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", default="2", help="processes to share the cases")
    workers = parser.parse_args().workers
    begin = time.monotonic()
    records = run_tests([OPS, TORCH], "-n", workers)
    result = {
        "date": date.today().isoformat(),
        "versions": versions(),
        "workers": int(workers),
        "seconds": round(time.monotonic() - begin),
    } | summary(records)
    RESULT.write_text(lines(result, depth=3) + "\n")
    print(f"\nFor README:\n{headline(result['predicted'])}\n")
    for name, kinds in result["predicted"].items():
        for key, found in kinds.items():
            print(f"{name} {key}: {found}")
    for why, found in result["failures"].items():
        print(f"\n{sum(map(len, found.values()))} failed: {why}")
    for why, found in explained(records).items():
        if why and not found:
            print(f"\nKnown, but nothing failed: {why}")
    new = explained(records).get(None, [])
    for record in new:
        print(f"\nunexplained: {record['id']}\n  {record['why']}")
    return 1 if new or not result["predicted"] else 0


if __name__ == "__main__":
    sys.exit(main())
