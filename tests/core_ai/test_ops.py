"""coremltools' own op tests, with Core AI in Core ML's place."""

from importlib.util import find_spec

import op_tests
import pytest


@pytest.mark.long
@pytest.mark.skipif(find_spec("coreai") is None, reason="coreai-core is not installed")
def test_no_case_that_is_carried_gives_other_values():
    found = op_tests.run(["elementwise_binary", "linear", "reduction"])
    assert not found["failed"]
    assert found["equal"] > 40
