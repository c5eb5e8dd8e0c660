"""The three partitions: what each computes, how many programs a token takes, what goes wrong.

Every bundle here is converted for real and run by the executor.
"""

from functools import partial
import json
from pathlib import Path
import shutil

from _long import long_but
from _tiny import TINY
import ane_book
from ane_book.bundle import Bundle, Manifest
from ane_book.conversion.plan import find_config, plan
from ane_book.conversion.recipe import make_recipe
from ane_book.errors import InvalidBundle
from ane_book.evidence import laws
from ane_book.runtime import Session
from ane_book.runtime.backends import MILBackend
import numpy as np
from pydantic import ValidationError
import pytest
import torch

PROMPT = [72, 101, 108, 108, 111, 32, 119, 111, 114, 108, 100]
CUT = {"partition": "projections", "head_rows": 100}
QWEN = "qwen2.5-0.5b-instruct"
PHI = "phi-4-mini-instruct"


class Counting(MILBackend):
    """The executor, counting the calls of programs."""

    calls = 0

    def load(self, package: Path, function: str):
        program = super().load(package, function)
        predict = program.predict

        def counted(*arguments):
            self.calls += 1
            return predict(*arguments)

        program.predict = counted
        return program


class TestPartitions:
    def tokens(self, session: Session, count: int) -> list[int]:
        logits, found = session.prefill(PROMPT), []
        for _ in range(count):
            found.append(int(logits.argmax()))
            logits = session.decode(found[-1])
        return found

    @pytest.mark.parametrize("family", long_but(TINY, "gemma3_text", "phi3", "qwen3"))
    def test_projections_give_the_tokens_of_layers(self, tiny_bundle, family):
        """fp32: 20 greedy tokens, and the logits of all to within the order of a sum."""
        _, layers = tiny_bundle(family, kv="state")
        _, cut = tiny_bundle(family, **CUT)
        sessions = [Session(bundle, precision="fp32") for bundle in (layers, cut)]
        tokens = [self.tokens(session, 20) for session in sessions]
        assert tokens[0] == tokens[1]
        for session in sessions:
            session.reset()
        whole = PROMPT + tokens[0][:10]
        logits = [session.logits(whole) for session in sessions]
        np.testing.assert_allclose(logits[1], logits[0], rtol=1e-4, atol=1e-4)

    def test_projections_in_half_precision(self, tiny_bundle):
        model, bundle = tiny_bundle("qwen3", **CUT)
        expected = model(torch.tensor([PROMPT])).logits[0].numpy()
        found = Session(bundle).logits(PROMPT)
        assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.9999

    def test_projections_forget(self, tiny_bundle):
        session = Session(tiny_bundle("phi3", **CUT)[1], precision="fp32")
        first = session.logits(range(20))
        session.rewind(3)
        np.testing.assert_allclose(session.logits(range(3, 20)), first[3:], rtol=1e-4, atol=1e-4)
        session.reset()
        np.testing.assert_array_equal(session.logits(range(20)), first)

    def test_whole_is_one_program_whatever_the_limit(self):
        made = plan(find_config(PHI), make_recipe(partition="whole", shard_limit="1MB"))
        assert [shard.layers for shard in made.shards] == [range(32)]
        assert [list(program.parts) for program in made.head] == [list(range(13))]

    @pytest.mark.parametrize("partition", ["layers", "projections"])
    def test_a_token_takes_the_dispatches_that_were_planned(self, tiny_bundle, partition):
        _, bundle = tiny_bundle("qwen2", partition=partition, head_rows=100, shard_limit=150_000)
        planned = len(plan(bundle.config, bundle.recipe).programs)
        assert planned == {"layers": 3 + 1, "projections": 3 * 7 + 3}[partition]
        backend = Counting("fp32")
        session = Session(bundle, backend=backend)
        session.decode(1)
        assert backend.calls == planned

    def test_a_head_in_several_programs(self, tiny_bundle):
        """The vocabulary too is cut by the limit, not by `head_rows` alone."""
        changes = (("vocab_size", 2003),)
        model, bundle = tiny_bundle("llama", changes, kv="state", shard_limit=70_000)
        assert len(bundle.manifest.head) == 4 and sum(bundle.manifest.splits) == 2003
        assert max(file.stat().st_size for file in bundle.path.rglob("weight.bin")) <= 70_000
        expected = model(torch.tensor([PROMPT])).logits[0].numpy()
        found = Session(bundle, precision="fp32").logits(PROMPT)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-4)
        np.testing.assert_allclose(bundle.golden()["logits"].shape, (2003,))

    def test_the_engine_of_the_documents(self):
        """Qwen2.5-0.5B: 24 x 7 matrices, and a head of 16 x 9,496 rows."""
        recipe = make_recipe(partition="projections", head_rows=9496)
        made = plan(find_config(QWEN), recipe)
        assert (len(made.programs), len(made.splits)) == (24 * 7 + 16, 16)
        assert set(made.splits) == {9496}
        matrices = [program.projection for program in made.programs[:7]]
        assert matrices == ["q", "k", "v", "o", "gate", "up", "down"]
        assert recipe.kv == "host"

    @pytest.mark.parametrize("step", ["layer 2", "head"])
    def test_projections_go_on_where_they_stopped(self, tiny, tiny_bundle, tmp_path, step):
        (_, folder), (_, expected) = tiny("llama"), tiny_bundle("llama", **CUT)
        convert = partial(ane_book.convert, str(folder), tmp_path / "b", context=32, prefill=8)

        def stop(description: str, done: int, total: int) -> None:
            if description.startswith(step):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            convert(**CUT, progress=stop)
        assert convert(**CUT).manifest.files == expected.manifest.files

    def test_a_bundle_that_lacks_a_projection(self, tiny_bundle, tmp_path):
        _, bundle = tiny_bundle("llama", **CUT)
        copy = shutil.copytree(bundle.path, tmp_path / "b")
        manifest = json.loads((copy / "manifest.json").read_text())
        packages = manifest["packages"]
        packages[:] = [part for part in packages if part["package"] != "layer_00_o.mlpackage"]
        (copy / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(
            InvalidBundle, match="layer_00_o.mlpackage is among the files, but is no part"
        ):
            Bundle.open(copy)

    @pytest.mark.parametrize(
        ("layer", "stretch", "message"),
        [(1, 0, "layer_01_q.mlpackage, 'decode': inputs .*attention_qkv_in.* do not fit"),
         (1, 1, "layer_01_o.mlpackage, 'decode': inputs .* do not fit"),
         (1, 3, "layer_01_down.mlpackage, 'decode': inputs .* do not fit"),
         (1, 4, "layer_02_host.mlpackage, layers 2 to 3, is out of order"),
         (2, 4, "no part ends layer 2 by giving hidden_out")],
    )  # fmt: skip
    def test_a_bundle_that_lacks_a_stretch(self, tiny_bundle, layer, stretch, message):
        """What the same stretch of the layer before gave is not taken for its own."""
        fields = tiny_bundle("llama", **CUT)[1].manifest.model_dump(mode="json")
        fields["packages"] = [
            part for part in fields["packages"]
            if (part["layers"], part["stretch"]) != ([layer, layer + 1], stretch)
        ]  # fmt: skip
        with pytest.raises(ValidationError, match=message):
            Manifest.model_validate(fields)

    def test_what_is_the_hosts_is_not_looked_at_as_the_engines(self, tiny_bundle):
        _, bundle = tiny_bundle("llama", **CUT)
        found = {path.name for path in laws.packages_of(bundle.path)}
        assert found == {part.package for part in bundle.manifest.programs}
        assert len(found) == 3 * 7 + 3 == len(plan(bundle.config, bundle.recipe).programs)

    def test_a_program_of_another_shape(self, tiny_bundle, tmp_path):
        _, bundle = tiny_bundle("llama", **CUT)
        copy = shutil.copytree(bundle.path, tmp_path / "b")
        manifest = json.loads((copy / "manifest.json").read_text())
        parts = {part["package"][:-10]: part for part in manifest["packages"]}
        up, down = parts["layer_00_up"], parts["layer_00_down"]
        up["package"], down["package"] = down["package"], up["package"]
        (copy / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(InvalidBundle, match=r"has type .* manifest.json says"):
            Session(copy)
