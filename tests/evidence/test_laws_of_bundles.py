"""The laws of the Neural Engine, held to the bundles that are converted here."""

from ane_book.conversion.plan import report
from ane_book.conversion.quantize.schemes import scheme_warning
from ane_book.evidence import laws
from mlprogram.ane import claims
import pytest

#: Heads as wide as SmolLM2's: a state's last axis is one.
WIDE = (("head_dim", 64),)


class TestBundles:
    @pytest.mark.parametrize("recipe", [{}, {"kv": "host"}, {"quant": "int8"}], ids=str)
    def test_ours_have_no_error(self, tiny_bundle, recipe):
        _, bundle = tiny_bundle("llama", WIDE, **recipe)
        report = laws.check(bundle.path)
        assert report.packages == 2
        assert report.count("error") == 0, report.text()

    def test_the_form_that_leaves_the_engine_is_one(self, tiny_bundle):
        _, bundle = tiny_bundle("llama", WIDE, quant="int4")
        assert laws.check(bundle.path).count("error") > 0

    def test_equal_findings_of_layers_functions_and_packages_are_one(self, tiny_bundle):
        _, bundle = tiny_bundle("llama", WIDE)
        (silu,) = [f for f in laws.check(bundle.path).findings if f.rule.id == "activations"]
        layers, functions = bundle.config.num_layers, 2
        assert len(silu.places) == layers * functions
        assert silu.where.startswith("decode, op ") and silu.where.endswith(
            f", x {len(silu.places)}"
        )


def test_what_the_planner_and_the_schemes_say_comes_from_the_registry():
    assert report.SMALL is claims.find("program-small")
    assert claims.find("scale-per-block").statement in scheme_warning("int4")
