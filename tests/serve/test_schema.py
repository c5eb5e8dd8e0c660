"""Requests made of the server's own OpenAPI document: some are right, none breaks it."""

import os

from _gates import until
from _patience import HANGING
import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
import pytest
import schemathesis

EXAMPLES = int(os.environ.get("SERVE_EXAMPLES", "40"))


@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_no_request_breaks_it(address, mode):
    """`make serve-fuzz` runs more of them."""
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    kind = getattr(schemathesis.GenerationMode, mode.upper())
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) == 11
    strategies = [each.as_strategy(generation_mode=kind) for each in operations]
    seen = set()

    @given(st.one_of(strategies))
    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    def ask(case):
        response = case.call()
        seen.add(response.status_code)
        assert response.status_code < 500, response.text
        if response.status_code >= 400 and case.method != "HEAD":
            assert response.json()["error"]["message"]

    ask()
    assert {"positive": 200, "negative": 400}[mode] in seen
    until(lambda: httpx.get(f"{address}/health", timeout=HANGING).json()["running"] == 0)
