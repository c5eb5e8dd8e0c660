"""Nothing that a visitor runs fails by a clock: no page, and no test but those that are listed.

`_clock` reads the syntax trees. What is fast or slow stands in the records of research/, and is
asserted of them.
"""

import ast
from pathlib import Path
import textwrap

from _clock import verdicts
from _clock_library import reached
from _clock_planted import CLOCKED, HEAD, NOT_CLOCKED, ON_A_PAGE
import pytest

TESTS = Path(__file__).parents[1]
PAGES = sorted((TESTS.parent / "book").glob("*.md"))

#: Tests whose assertions on times hold at any speed, and why.
AT_ANY_SPEED = {
    "evidence/test_experiments.py": {
        "test_one_is_asked_through_a_child_process": "the clock is that of `_mac.py`"
    },
    "evidence/mac/test_residency.py": {
        "test_a_package_on_the_engine_is_resident": "the clock is that of `_mac.py`",
        "test_the_first_load_for_the_engine_comes_before_the_plan": "so is this",
        "test_a_resident_program_may_be_slower_than_the_cpu_and_that_is_said": "and this",
    },
    "book/test_roofline.py": {
        "test_the_best_product_is_the_roof": "the greatest of the same readings"
    },
    "bench/test_bench.py": {
        "test_figures_are_made_of_what_was_seen": "the median of the same readings, and an order",
        "test_its_own_server_says_what_it_measured": "tokens over the same reading",
    },
    "serve/test_command.py": {
        "test_readmes_lines_and_the_socket_and_a_graceful_end": "the queue is before the answer"
    },
    "sweep/test_sweep.py": {"test_it_goes_on_where_it_was_stopped": "the records are given"},
    "conversion/test_convert.py": {
        "test_a_second_call_finds_the_first_bundle": "a file that is not written again",
        "test_an_interrupted_conversion_keeps_its_finished_shards": "so is this",
    },
    "mlprogram/test_coreml.py": {
        "test_durations_are_measured": "each is a part of the next, by one clock"
    },
    "serve/test_gate.py": {"test_a_line_a_request": "the queue is before the answer"},
}

#: Names that a clock reaches in the library, among much else that they hold.
MIXED = {
    "a server's answers and notes, with seconds beside": (
        "answer answer_lines begin begun created end facts figures jobs last listen piece retry "
        "start told"
    ),
    'keys of what stands under "seconds" or "cost"': (
        "best cost decode first load loading median next own predicting prefill"
    ),
    "tables and sentences that have seconds in them": (
        "execution_report middle prompts ratio reason statistics subjects text verdict"
    ),
    "the time of a file": "used",
    "the day that a template writes": "render",
    "returned together with seconds": (
        "date ended execute failed peak pieces plan rate rates resident_bytes tokens units"
    ),
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_does_not_fail_by_a_clock(page):
    found = [str(verdict) for verdict in verdicts(page)]
    assert not found, (
        "a page shows what it has timed (`records.live`), and asserts the record of it "
        "(research/measurements/pages.json) or a count:\n" + "\n".join(found)
    )


def function_of(path: Path, line: int) -> str:
    """The innermost function around a line."""
    tree = ast.parse(path.read_text("utf-8"))
    around = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)
              and n.lineno <= line <= n.end_lineno]  # fmt: skip
    return max(around, key=lambda node: node.lineno).name if around else "the module"


def test_no_test_fails_by_a_clock_but_those_that_hold_at_any_speed():
    found = {}
    for path in sorted(TESTS.rglob("*.py")):
        for verdict in verdicts(path) if path.name != "_patience.py" else []:
            name = str(path.relative_to(TESTS))
            found.setdefault(name, {})[function_of(path, verdict.line)] = str(verdict)
    more = [f"{name}: {said}" for name, places in found.items()
            for function, said in places.items()
            if function not in AT_ANY_SPEED.get(name, {})]  # fmt: skip
    assert not more, "`_patience` has limits that guard against hanging:\n" + "\n".join(more)
    stale = {name: set(places) - set(found.get(name, {})) for name, places in AT_ANY_SPEED.items()}
    assert not any(stale.values()), stale


def test_every_name_that_a_clock_reaches_in_the_library_is_known():
    """A new function that returns seconds is listed: among `TIMED`, or here among `MIXED`."""
    found, mixed = reached(), {name for names in MIXED.values() for name in names.split()}
    assert not {name: found[name] for name in found.keys() - mixed}
    assert not mixed - found.keys()


def planted(code: str) -> tuple[str, int]:
    """A file of this code, and the line that is to be found."""
    lines = HEAD.strip().splitlines() + textwrap.dedent(code).strip().splitlines()
    marked = [number for number, line in enumerate(lines, 1) if "# here" in line]
    return "\n".join(lines), (marked or [len(lines)])[0]


@pytest.mark.parametrize("name", CLOCKED)
def test_a_verdict_by_a_clock_is_found(name, tmp_path):
    code, line = planted(CLOCKED[name])
    (path := tmp_path / "test_planted.py").write_text(code)
    assert [verdict.line for verdict in verdicts(path)] == [line]


@pytest.mark.parametrize("name", CLOCKED | ON_A_PAGE)
def test_it_is_found_on_a_page(name, tmp_path):
    code, line = planted((CLOCKED | ON_A_PAGE)[name])
    before = "# Title\n\n```{code-cell} ipython3\n---\nmystnb:\n  x: y\n---\n%magic\n"
    (path := tmp_path / "planted.md").write_text(f"{before}{code}\n```\n\nThe end.\n")
    assert [verdict.line for verdict in verdicts(path)] == [line + before.count("\n")]


@pytest.mark.parametrize(
    "code",
    [
        "import _helper\nassert _helper.took() < 1",
        "import _helper as helper\nassert helper.BEGUN < 1",
        "from _helper import *\nassert took() < 1",
        "import _helper\ndef test_it(begun):\n    assert begun < 1",
    ],
)
def test_a_clock_of_a_module_beside_is_found(code, tmp_path):
    helper = "import time\nBEGUN = time.time()\ndef took():\n    return time.time() - BEGUN\n"
    (tmp_path / "_helper.py").write_text(helper)
    fixture = "import time\nimport pytest\n@pytest.fixture\ndef begun():\n    return time.time()\n"
    (tmp_path / "conftest.py").write_text(fixture)
    (path := tmp_path / "test_planted.py").write_text(code)
    assert [verdict.line for verdict in verdicts(path)] == [code.count("\n") + 1]


@pytest.mark.parametrize("name", NOT_CLOCKED)
def test_what_no_clock_decides_is_left_alone(name, tmp_path):
    code, _ = planted(NOT_CLOCKED[name])
    (path := tmp_path / "test_planted.py").write_text(code)
    assert verdicts(path) == []
