"""Run coremltools' own op tests on the executor and write down what came out.

    python tests/conformance/run.py --workers 2

The tests come from the installed wheel; nothing of them is kept here. They run as Apple's do, in
fp16, and once more in single precision (Apple's switch INCLUDE_MIL_FP32_UNIT_TESTS), because the
tolerance of the fp16 cases is half a unit. Those that take their expected values from TensorFlow
run where it is installed. Every failure has to be explained in `known.toml`; one that is not makes
the exit code 1. Written: research/conformance.json.
"""

import argparse
from collections import Counter, defaultdict
from datetime import date
from importlib import metadata
from importlib.util import find_spec
import json
import os
from pathlib import Path
import platform
import re
import subprocess
import sys
import tempfile
import time
import tomllib

HERE = Path(__file__).parent
RESULT = HERE.parents[1] / "research" / "conformance.json"
DIFFERENCE = re.compile(r"Max absolute difference(?: among violations)?: ([\d.e+-]+)")
COMPUTE_UNIT = re.compile(r"compute_unit=ComputeUnit\.\w+-?|backend=BackendConfig\([^)]*\)-?")


def run_tests(*options: str) -> list[dict]:
    """Run the tests with pytest in another process; one record a case, as the plugin writes it."""
    converters = Path(find_spec("coremltools").origin).parent / "converters"
    tests = converters / "mil" / "mil" / "ops" / "tests"
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "INCLUDE_MIL_FP32_UNIT_TESTS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "records.jsonl"
        command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(tests)]
        command += ["--confcutdir", str(converters), "-p", "no:cacheprovider", "-p", "plugin"]
        command += ["-q", "-W", "ignore", "--tb", "no", "--no-summary", "--record", str(records)]
        subprocess.run([*command, *options, str(tests)], cwd=tests, env=environment, check=False)
        if not records.exists():
            raise SystemExit("no test ran; what pytest says above is the reason")
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
    """Counts, and every failure with its reason."""
    tests, ops, kinds = defaultdict(dict), defaultdict(dict), {}
    for record in filter(counts, records):
        file, test, *_ = record["id"].split("::")
        opset = "".join(record["backend"][2:]) or file.split("/")[0]
        name = f"{file.removesuffix('.py').replace('test_', '')}/{test.split('[')[0]}"
        for table, key in [(tests[name], f"{opset} {kind(record)}"), (kinds, kind(record))]:
            count(table, key, failed(record))
        for op in record["ops"]:
            count(ops[op], kind(record), failed(record))
    return {
        "collected": len(records),
        "predicted": kinds,
        "without_prediction": outcomes(r for r in records if not counts(r)),
        "failures": {str(why): short(found) for why, found in explained(records).items() if found},
        "ops": dict(sorted(ops.items())),
        "tests": dict(sorted(tests.items())),
    }


def count(table: dict, key: str, failed: bool) -> None:
    """Counts as [passed, failed]."""
    table.setdefault(key, [0, 0])[failed] += 1


def versions() -> dict[str, str]:
    """Of Python and of the packages that take part, TensorFlow only where it is installed."""
    found = {"python": platform.python_version()}
    for name in ("coremltools", "torch", "numpy", "tensorflow"):
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", default="2", help="processes to share the cases")
    workers = parser.parse_args().workers
    begin = time.monotonic()
    records = run_tests("-n", workers)
    result = {
        "date": date.today().isoformat(),
        "versions": versions(),
        "workers": int(workers),
        "seconds": round(time.monotonic() - begin),
    } | summary(records)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    for name, (passed, failed) in result["predicted"].items():
        print(f"{name:20} {passed + failed:6} predictions, {passed / (passed + failed):.2%} pass")
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
