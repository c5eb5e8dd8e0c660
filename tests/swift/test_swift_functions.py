"""Which functions a session in Swift loads, warms and calls, in every kind of bundle: those of its
plan."""

import json
import subprocess

from _long import long_but
from ane_book.conversion.plan import plan
import pytest
from swift_tables import add_tables
from test_swift_session import FORMS, KINDS

#: Where K divides the context, `verify` takes all single tokens, and `decode` none of the layers'.
MORE = {
    "tiers and verify": {"kv": "state", "tiers": (8, 16), "verify": 4},
    "verify beside an odd end": {"kv": "host", "tiers": (16,), "verify": 5, "context": 32},
    "a tier that only decode fits": {"kv": "host", "tiers": (8,), "prefill": 8, "context": 40},
}


def functions(test_host, bundle) -> dict:
    """What the Swift host says of a bundle after prompts of all lengths."""
    command = [*test_host, "functions", str(add_tables(bundle).path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


#: One of each kind: tiers, one function for all, a function that verifies, and what no form has.
QUICK = ("apple, tiers of a state", "one function, host", "apple, verify", "tokens", *MORE)


@pytest.mark.parametrize("form", long_but([*FORMS, *MORE], *QUICK))
def test_what_can_be_called_is_loaded_and_warmed(form, test_host, tiny_bundle):
    bundle = tiny_bundle("llama", **(FORMS | MORE)[form])[1]
    said = functions(test_host, bundle)
    assert said["loaded"] == said["warmed"] == said["called"]
    planned = plan(bundle.config, bundle.recipe)
    assert set(said["loaded"]) == {
        f"{program.package.removesuffix('.mlpackage')} {name}"
        for program in planned.programs
        for name in planned.called(program)
    }


@pytest.mark.parametrize("family", KINDS)
def test_layers_without_a_cache_share_functions_between_tiers(family, test_host, tiny_bundle):
    said = functions(test_host, tiny_bundle(family, tiers=(16,), shard_limit=200_000)[1])
    assert said["loaded"] == said["warmed"] == said["called"]


def test_an_answer_makes_no_new_state(test_host, tiny_bundle):
    """Of 124 answers, half of which begin anew, the first makes one for each package."""
    bundle = tiny_bundle("llama", kv="state")[1]
    assert functions(test_host, bundle)["states"] == len(bundle.manifest.shards)
