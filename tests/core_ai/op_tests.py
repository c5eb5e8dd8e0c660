"""coremltools' own op tests with Core AI in Core ML's place: run, and counted by what came out."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
import re
import sys
from tempfile import TemporaryDirectory
import xml.etree.ElementTree as ET

sys.path.append(str(Path(__file__).resolve().parents[1]))
from _coremltools_tests import run_pytest

HERE = Path(__file__).parent
#: Expects sums over one channel instead of `size`: tests/conformance/known.toml says more.
WRONG = "TestNormalizationLocalResponseNorm::test_builder_to_backend_smoke"
#: What the record counts: the ops that programs of this library and most networks are made of.
FILES = (
    "activation", "conv", "elementwise_binary", "elementwise_unary", "image_resizing", "linear",
    "normalization", "pool", "reduction", "tensor_transformation",
)  # fmt: skip
#: Single precision; float16 tensors among them are judged by what half precision gives.
SELECTION = "mlprogram and fp32 and not float16"


def run(files: Iterable[str], *options: str) -> dict:
    """Counts of the cases in files of iOS 14's ops, such as "linear".

    equal: the values that the case expects; refused: an op or a size by name, whose counts `ops`
    has; other: what the case skips itself, or expects to fail, or is WRONG; failed: the names of
    the rest.
    Raises RuntimeError where pytest did not come to an end.
    """
    paths = [f"converters/mil/mil/ops/tests/iOS14/test_{name}.py" for name in files]
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        how = ("--tb", "line", "--junitxml", str(report), "-k", SELECTION)
        code = run_pytest("coreai_plugin", HERE, *how, *options, *paths)
        if code not in (0, 1):  # 1: cases failed
            raise RuntimeError(f"not all tests ran (pytest: {code}); see above why")
        return counted(report)


def counted(report: Path) -> dict:
    """The counts of `run`, from the file that pytest's --junitxml writes."""
    found, ops, failed = Counter(equal=0, refused=0, other=0), Counter(), []
    for case in ET.parse(report).iter("testcase"):
        skipped = case.find("skipped")
        name = f"{case.get('classname')}::{case.get('name')}"
        if WRONG in name:
            found["other"] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif skipped is None:
            found["equal"] += 1
        elif (why := skipped.get("message", "")).startswith("refused"):
            found["refused"] += 1
            ops.update([what_refused(why)])
        else:
            found["other"] += 1
    return {**found, "failed": sorted(failed), "ops": dict(sorted(ops.items()))}


def what_refused(why: str) -> str:
    """The op that has no counterpart, or "flexible size", or the op that was not carried,
    by Core AI's name where its passes refuse it."""
    if "flexible size" in why:
        return "flexible size"
    found = re.findall(r"no counterpart for (\w+)|function '[^']*', (\w+)|'coreai\.(\w+)' op", why)
    return "".join(found[0]) if found else why
