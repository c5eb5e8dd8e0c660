"""Nothing that a visitor runs fails by a clock: no page, and no test but those that are listed.

`_clock` reads the syntax trees. What is fast or slow stands in the records of research/, and is
asserted of them.
"""

import ast
from pathlib import Path
import textwrap

from _clock import verdicts
from _clock_library import reached
import pytest

TESTS = Path(__file__).parent
PAGES = sorted((TESTS.parent / "book").glob("*.md"))

#: Tests whose assertions on times hold at any speed, and why.
AT_ANY_SPEED = {
    "evidence/test_experiments.py": {
        "test_one_is_asked_through_a_child_process": "the clock is that of `_mac.py`"
    },
    "evidence/test_residency.py": {
        "test_a_package_on_the_engine_is_resident": "the clock is that of `_mac.py`",
        "test_the_first_load_for_the_engine_comes_before_the_plan": "so is this",
        "test_a_resident_program_may_be_slower_than_the_cpu_and_that_is_said": "and this",
    },
    "evidence/test_roofs.py": {
        "test_the_best_product_is_the_roof": "the greatest of the same readings"
    },
    "runtime/test_bench.py": {
        "test_figures_are_made_of_what_was_seen": "the median of the same readings, and an order",
        "test_its_own_server_says_what_it_measured": "tokens over the same reading",
    },
    "serve/test_command.py": {
        "test_readmes_lines_and_the_socket_and_a_graceful_end": "the queue is before the answer"
    },
    "sweep/test_sweep.py": {"test_it_goes_on_where_it_was_stopped": "the records are given"},
    "test_coreml.py": {"test_durations_are_measured": "each is a part of the next, by one clock"},
    "serve/test_gate.py": {"test_a_line_a_request": "the queue is before the answer"},
}

#: Names that a clock reaches in the library, among much else that they hold.
MIXED = {
    "a server's answers and notes, with seconds beside": (
        "answer answer_lines begin begun created end facts figures last listen piece retry start "
        "told"
    ),
    'keys of what stands under "seconds" or "cost"': (
        "best cost decode first load loading median next own predicting prefill"
    ),
    "tables and sentences that have seconds in them": (
        "execution_report middle prompts ratio reason speed statistics subjects text verdict work"
    ),
    "returned together with seconds": (
        "date done ended execute failed finite function_name inputs label likeliest name outputs "
        "peak preferred rate rates resident_bytes supported type units"
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


CLOCKED = {
    "a helper function": """
        import time
        def took(work):
            start = time.perf_counter()
            work()
            return time.perf_counter() - start
        def check(a, b):
            assert a < b  # here
        check(took(print), 3)
    """,
    "the number of an f-string": """
        from time import perf_counter as now
        start = now()
        said = f"{now() - start:.1f} s"
        assert float(said.split()[0]) < 2  # here
    """,
    "a comparison chain": """
        import time
        begun = time.process_time()
        middle = time.process_time()
        assert 0 < begun < 5 > middle  # here
    """,
    "arrays of times": """
        import time
        import numpy as np
        times = np.zeros((2, 5))
        for i in range(5):
            times[0, i] = time.monotonic()
        best = np.median(np.diff(times, axis=1), axis=1)
        np.testing.assert_allclose(best, 1, rtol=0.2)  # here
    """,
    "tokens a second of the library": """
        import ane_book
        session = ane_book.load("smollm2-135m-instruct")
        rates = {n: session.generate("Hi", max_tokens=n).decode_tps for n in (1, 2)}
        slowest = min(rates.values())
        if slowest < 5:  # here
            raise SystemExit("slow")
    """,
    "a list that a loop fills through another name": """
        import time
        means = {1: [], 2: []}
        for n, found in means.items():
            found.append(time.time())
        assert means[2] > means[1]  # here
    """,
    "a callback": """
        import time
        import ane_book
        stops = []
        def stopwatch(what, done, total):
            stops.append((what, time.perf_counter()))
        ane_book.convert("m", progress=stopwatch)
        (_, begin), (_, end) = stops[0], stops[-1]
        assert end - begin < 60  # here
    """,
    "how many fit into a second": """
        import time
        count, end = 0, time.monotonic() + 1
        while time.monotonic() < end:
            count += 1
        assert count > 100  # here
    """,
    "how many were fast": """
        import timeit
        times = timeit.repeat("1")
        assert len([t for t in times if t < 0.1]) > 2  # here
    """,
    "a loop that is left": """
        import time
        start = time.monotonic()
        for i in range(100):
            if time.monotonic() > start + 1:
                break
        assert i == 99  # here
    """,
    "an attribute, a property and approx": """
        import time
        import pytest
        class Watch:
            def __init__(self):
                self.begun = time.perf_counter()
            @property
            def took(self):
                return time.perf_counter() - self.begun
        watch = Watch()
        assert watch.took == pytest.approx(1, rel=0.5)  # here
    """,
    "a flag": """
        import time
        start, quick = time.time(), False
        if time.time() - start < 1:
            quick = True
        assert quick  # here
    """,
    "a fixture": """
        import pytest
        import timeit
        @pytest.fixture
        def seconds_of_it():
            yield timeit.timeit("1")
        class TestIt:
            def test_it(self, seconds_of_it):
                assert seconds_of_it < 1  # here
    """,
    "the roof of a machine": """
        from ane_book.evidence import roofs
        machine = roofs.measure()
        floor = lambda: 1e9 / machine.bandwidth_bytes_s
        assert floor() < 1  # here
    """,
    "a key of an answer": """
        import httpx
        told = httpx.post("http://localhost").json()
        assert told["decode_tps"] > 10  # here
    """,
}


@pytest.mark.parametrize("name", CLOCKED)
def test_a_verdict_by_a_clock_is_found(name, tmp_path):
    code = textwrap.dedent(CLOCKED[name]).strip()
    line = next(n for n, text in enumerate(code.splitlines(), 1) if "# here" in text)
    (test := tmp_path / "test_planted.py").write_text(code)
    (page := tmp_path / "planted.md").write_text(
        "# Title\n\n```{code-cell} ipython3\n---\nmystnb:\n  x: y\n---\n%magic\n"
        f"{code}\n```\n\nThe end.\n"
    )
    assert [verdict.line for verdict in verdicts(test)] == [line]
    assert [verdict.line for verdict in verdicts(page)] == [line + 7 + 1]


NOT_CLOCKED = {
    "a record": """
        import json
        from ane_book import records
        rows = records.read("measurements/decode.json")["results"]
        assert all(row["decode_tps"] > 3 for row in rows.values())
        told = json.load(open("research/measurements/convert.json"))
        assert told["runs"][0]["seconds"] < 100
    """,
    "counts beside times": """
        import time
        calls, times = [], []
        for n in (1, 2):
            start = time.perf_counter()
            calls.append(n)
            times.append(time.perf_counter() - start)
            print(f"{n}: {times[-1]:.1f}")
        assert calls == [1, 2] and len(times) == 2
        for n, took in zip(calls, times):
            assert n > 0 and took is not None
    """,
    "a name that is used again": """
        import time
        seconds = time.perf_counter()
        print(seconds)
        seconds = 3
        assert seconds == 3
    """,
    "what stands beside seconds": """
        import time
        def told(**more):
            return {"text": "Paris"} | more
        facts = {"text": "Paris", "took": time.time()}
        assert facts["text"] == told(took=time.time())["text"]
    """,
    "times that are given": """
        from ane_book.evidence.roofs import Roofs
        assert Roofs(10e9, 200e9, 2, {}, {}).ridge == 20
    """,
}


@pytest.mark.parametrize("name", NOT_CLOCKED)
def test_what_no_clock_decides_is_left_alone(name, tmp_path):
    (path := tmp_path / "test_planted.py").write_text(textwrap.dedent(NOT_CLOCKED[name]))
    assert verdicts(path) == []
