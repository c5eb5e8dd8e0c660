"""Code that test_clock.py plants: verdicts by a clock, and what only looks like one.

The line that fails by a clock ends with `# here`; it is the last where none does.
"""

#: What all of it begins with.
HEAD = """
from contextlib import contextmanager
from dataclasses import dataclass, field
import datetime
from functools import partial
import os
from pathlib import Path
import resource
import sys
import time
from time import perf_counter as now
import timeit

import ane_book
import numpy as np
import pytest
"""

CLOCKED = {
    "a helper function": """
        def took(work):
            start = time.perf_counter()
            work()
            return time.perf_counter() - start
        def check(a, b):
            assert a < b  # here
        check(took(print), 3)
    """,
    "the number of an f-string": """
        start = now()
        said = f"{now() - start:.1f} s"
        assert float(said.split()[0]) < 2
    """,
    "arrays of times": """
        times = np.zeros((2, 5))
        for i in range(5):
            times[0, i] = time.monotonic()
        best = np.median(np.diff(times, axis=1), axis=1)
        np.testing.assert_allclose(best, 1, rtol=0.2)
    """,
    "tokens a second of the library": """
        session = ane_book.load("smollm2-135m-instruct")
        rates = {n: session.generate("Hi", max_tokens=n).decode_tps for n in (1, 2)}
        slowest = min(rates.values())
        if slowest < 5:
            raise SystemExit("slow")
    """,
    "a list that a loop fills through another name": """
        means = {1: [], 2: []}
        for n, found in means.items():
            found.append(time.time())
        assert means[2] > means[1]
    """,
    "a callback": """
        stops = []
        def stopwatch(what, done, total):
            stops.append((what, time.perf_counter()))
        ane_book.convert("m", progress=stopwatch)
        (_, begin), (_, end) = stops[0], stops[-1]
        assert end - begin < 60
    """,
    "how many fit into a second": """
        count, end = 0, time.monotonic() + 1
        while time.monotonic() < end:
            count += 1
        assert count > 100
    """,
    "how many were fast": """
        times = timeit.repeat("1")
        assert len([t for t in times if t < 0.1]) > 2
    """,
    "a loop that is left": """
        start = time.monotonic()
        for i in range(100):
            if time.monotonic() > start + 1:
                break
        assert i == 99
    """,
    "an attribute, a property and approx": """
        class Watch:
            def __init__(self):
                self.begun = time.perf_counter()
            @property
            def took(self):
                return time.perf_counter() - self.begun
        watch = Watch()
        assert watch.took == pytest.approx(1, rel=0.5)
    """,
    "a fixture": """
        @pytest.fixture
        def seconds_of_it():
            yield timeit.timeit("1")
        class TestIt:
            def test_it(self, seconds_of_it):
                assert seconds_of_it < 1
    """,
    "the roof of a machine": """
        from ane_book_pages import roofline
        machine = roofline.measure()
        floor = lambda: 1e9 / machine.bandwidth_bytes_s
        assert floor() < 1
    """,
    "a key of an answer": """
        import httpx
        told = httpx.post("http://localhost").json()
        assert told["decode_tps"] > 10
    """,
    "an object of a `with`": """
        class Timer:
            def __enter__(self):
                self.begun = time.perf_counter()
                return self
            def __exit__(self, *error):
                self.took = time.perf_counter() - self.begun
        with Timer() as timer:
            print()
        assert timer.took < 1
    """,
    "a generator of a `with`": """
        @contextmanager
        def timed():
            found, begun = {}, time.time()
            yield found
            found["took"] = time.time() - begun
        with timed() as found:
            print()
        assert found["took"] < 1
    """,
    "everything of a module": """
        from time import *
        assert perf_counter() < 1
    """,
    "a clock by its name": 'assert getattr(time, "perf_counter")() < 1',
    "a partial of a clock": """
        now = partial(time.perf_counter)
        assert now() < 1
    """,
    "what the process used": "assert resource.getrusage(resource.RUSAGE_SELF).ru_utime < 1",
    "what psutil says": """
        import psutil
        assert psutil.Process().cpu_times().user < 1
    """,
    "a file's time, by os": 'assert os.stat("a").st_mtime < os.path.getmtime("b")',
    "a day": "assert datetime.date.today().year == 2026",
    "an hour": "assert time.localtime().tm_hour < 12",
    "an event loop": """
        import asyncio
        async def test_it():
            assert asyncio.get_running_loop().time() < 1
    """,
    "a fail after `or`": 'time.time() < 1 or pytest.fail("slow")',
    "a fail in an expression": 'pytest.fail("slow") if time.time() > 1 else None',
    "a fail that is chosen": '(print, pytest.fail)[time.time() > 1]("slow")',
    "a fail in a function": """
        def complain():
            raise ValueError("slow")  # here
        if time.time() > 1:
            complain()
    """,
    "a raise of a `match`": """
        match time.time() > 1:
            case True:
                raise AssertionError("slow")
    """,
    "a return before a fail": """
        def check():
            if time.time() < 1:
                return
            pytest.fail("slow")  # here
        check()
    """,
    "an exit's status": "sys.exit(time.time() > 1)",
    "the length of an f-string": 'assert len(f"{time.time()}") < 10',
    "a walrus in a comprehension": """
        print([last := time.time() for _ in range(3)])
        assert last < 1
    """,
    "a dictionary": """
        found = {"a": 3, "took": time.time()}
        assert found.get("took") < 1
    """,
    "the name of the fastest": """
        found = {"a": time.time(), "b": time.time()}
        assert min(found, key=found.get) == "a"
    """,
    "a dictionary by time": """
        found = {time.time(): 3}
        assert min(found) < 1
    """,
    "a tuple of tuples": """
        (n, (m, took)), last = (3, (4, time.time())), 5
        assert took < 1
    """,
    "tuples in a list": """
        rows = []
        for n in (1, 2):
            rows.append((n, time.time()))
        for n, took in rows:
            assert took < 1
    """,
    "a list that is turned": """
        pair = list((3, time.time()))
        pair.reverse()
        assert pair[0] < 1
    """,
    "a set": "assert len({time.time(), time.time()}) == 1",
    "how many numpy finds": "assert np.where(np.array([time.time()]) > 1)[0].size == 0",
    "a field by its position": """
        from typing import NamedTuple
        class Row(NamedTuple):
            n: int
            took: float
        n, took = Row(3, time.time())
        assert took < 1
    """,
    "how many of an array": """
        found = np.array([time.time() for n in range(3)])
        assert len(found[found < 1]) > 2
    """,
    "an attribute that another method sets": """
        class TestIt:
            def test_it(self):
                assert self.took < 1  # here
            def setup_method(self):
                self.took = time.time()
    """,
    "a field": """
        @dataclass
        class Row:
            n: int
            took: float
        assert Row(3, time.time()).took < 1
    """,
    "an attribute by its name": """
        from types import SimpleNamespace
        row = SimpleNamespace()
        setattr(row, "took", time.time())
        assert row.took < 1
    """,
    "an object that is called": """
        class Since:
            def __call__(self):
                return time.time()
        since = Since()
        assert since() < 1
    """,
    "a closure": """
        def watch():
            begun = time.time()
            def took():
                return time.time() - begun
            return took
        took = watch()
        assert took() < 1
    """,
    "a global": """
        def stop():
            global took
            took = time.time()
        stop()
        assert took < 1
    """,
    "a decorator that times": """
        def timed(function):
            def call(*given):
                begun = time.time()
                return function(*given), time.time() - begun
            return call
        @timed
        def three():
            return 3
        n, took = three()
        assert took < 1
    """,
    "a generator": """
        def ticks():
            for n in range(3):
                yield n, time.time()
        assert next(took for _, took in ticks()) < 1
    """,
    "a comprehension": "assert all(took < 1 for took in [time.time() for _ in range(3)])",
    "a library's own watch": 'assert timeit.Timer("1").timeit(3) < 1',
    "another clock than the test's own": """
        def test_it(monkeypatch):
            monkeypatch.setattr(time, "monotonic", lambda: 3)
            assert time.perf_counter() < 1
    """,
    "a clock that another test has set": """
        def test_first(monkeypatch):
            monkeypatch.setattr(time, "monotonic", lambda: 3)
        def test_second():
            assert time.monotonic() < 1
    """,
}

#: On a page alone.
ON_A_PAGE = {
    "IPython's own watch": """
        found = %timeit -o 1
        assert found.average < 1
    """,
    "a command's answer": """
        now = !date +%s
        assert int(now[0]) < 1
    """,
    "a line that is timed": """
        %time found = time.time()
        assert found < 1
    """,
    "a cell that is timed": """
        %%time
        begun = time.time()
        assert begun < 1
    """,
}

#: No clock decides these.
NOT_CLOCKED = {
    "a record": """
        from ane_book_pages import records
        import json
        rows = records.read("measurements/decode.json")["results"]
        assert all(row["decode_tps"] > 3 for row in rows.values())
        told = json.load(open("research/measurements/convert.json"))
        assert told["runs"][0]["seconds"] < 100
    """,
    "counts beside times": """
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
        seconds = time.perf_counter()
        print(seconds)
        seconds = 3
        assert seconds == 3
    """,
    "what stands beside seconds": """
        def told(**more):
            return {"text": "Paris"} | more
        facts = {"text": "Paris", "took": time.time()}
        assert facts["text"] == told(took=time.time())["text"]
    """,
    "times that are given": """
        from ane_book_pages.roofline import Roofs
        assert Roofs(10e9, 200e9, 2, {}, {}).ridge == 20
    """,
    "what a function returns beside a time": """
        def measured():
            return 3, time.time()
        n, took = measured()
        assert n == 3 and measured()[0] == 3
    """,
    "what a list has beside times": """
        rows = [(n, time.time()) for n in (1, 2)]
        rows.append((3, time.time()))
        for n, took in rows:
            assert n < 4
        assert [n for n, _ in rows] == [1, 2, 3] and len(rows) == 3
        assert rows[0][0] == 1 and max(n for n, _ in rows) == 3
    """,
    "the keys of a dictionary of times": """
        found = {"a": time.time(), "b": 3}
        assert set(found) == {"a", "b"} and len(found) == 2
        assert found.keys() == {"a", "b"} and sorted(found) == ["a", "b"]
        for name in found:
            assert name in "ab"
        for name, took in found.items():
            assert name in found and found["b"] == 3
        assert list({n: time.time() for n in (1, 2)}) == [1, 2]
    """,
    "a dictionary that is filled": """
        found = {}
        for n in range(3):
            found[n] = {"n": n, "took": time.time()}
        assert found and len(found) == 3 and set(found) == {0, 1, 2}
        assert [row["n"] for row in found.values()] == [0, 1, 2]
        assert set(found[0]) == {"n", "took"}
    """,
    "the test's own clock": """
        def test_it(monkeypatch):
            now = iter(range(9))
            monkeypatch.setattr(time, "monotonic", lambda: next(now))
            assert time.monotonic() < time.monotonic()
    """,
    "the test's own clock, by unittest": """
        from unittest import mock
        def test_it():
            with mock.patch.object(time, "time", return_value=3):
                assert time.time() == 3
    """,
    "the clock of a fixture": """
        @pytest.fixture
        def still(monkeypatch):
            monkeypatch.setattr(time, "time", lambda: 3)
        def test_it(still):
            assert time.time() == 3
    """,
    "a field beside a time": """
        @dataclass
        class Row:
            n: int
            took: float
        row = Row(3, time.time())
        assert row.n == 3
    """,
    "an object that has a time": """
        class Watch:
            def __init__(self, name, begun):
                self.name, self.begun = name, begun
        watch = Watch("a", time.time())
        assert watch.name == "a" and watch
    """,
    "a tuple of a `with`": """
        @contextmanager
        def measured():
            yield 3, time.time()
        with measured() as (n, took):
            assert n == 3
    """,
    "how many texts": """
        said = [f"{time.time():.1f} s" for _ in range(3)]
        assert len(said) == 3
    """,
    "a time that is given": "assert time.gmtime(0).tm_year == 1970 and time.ctime(0)",
    "memory of the process": "assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0",
    "names that are numbered": """
        times = [time.time() for _ in range(3)]
        for n, (name, took) in enumerate(zip("abc", times)):
            assert "abc"[n] == name
    """,
}
