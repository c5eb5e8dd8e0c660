"""Training in research/train: broken off and taken up again, it ends with the same weights."""

import pytest
from runs import Schedule, save_half, train
from safetensors.torch import load_file
import torch
from torch import nn


def tiny() -> tuple[nn.Module, callable]:
    """A model and its loss at a step, which depends on the step's number alone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))

    def loss(step: int):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(32, 8, generator=generator)
        value = nn.functional.cross_entropy(model(x), (x[:, :3] * 5).argmax(dim=1))
        return value, {"accuracy": 0.5}

    return model, loss


class TestRuns:
    schedule = Schedule(20, rate=0.03, warm_up=4, every=6)

    def test_broken_off_and_taken_up_ends_where_one_straight_through_does(self, tmp_path):
        straight, loss = tiny()
        expected = train(straight, loss, self.schedule, tmp_path / "a", {"seed": 0})
        for stop in (3, 6, 13, None):
            model, loss = tiny()
            curve = train(model, loss, self.schedule, tmp_path / "b", {"seed": 0}, stop)
        assert [p["step"] for p in expected] == [6, 12, 18, 20]
        for a, b in zip(expected, curve, strict=True):
            assert {**a, "seconds": 0} == {**b, "seconds": 0}
        for name, value in straight.state_dict().items():
            assert torch.equal(model.state_dict()[name], value), name
        assert expected[-1]["loss"] < 0.9 * expected[0]["loss"]

    def test_a_cycle_more_goes_on_from_the_end_of_the_last(self, tmp_path):
        longer = Schedule(20, rate=0.03, warm_up=4, every=6, more=(12,))
        assert [longer.at(i) for i in range(20)] == [self.schedule.at(i) for i in range(20)]
        assert longer.at(19) < 0.1 * longer.at(23) == pytest.approx(0.07 * 0.03)
        straight, loss = tiny()
        train(straight, loss, longer, tmp_path / "a", {})
        for schedule in (self.schedule, longer):
            model, loss = tiny()
            train(model, loss, schedule, tmp_path / "b", {})
        for name, value in straight.state_dict().items():
            assert torch.equal(model.state_dict()[name], value), name

    def test_a_checkpoint_of_another_run_is_not_gone_on_with(self, tmp_path):
        model, loss = tiny()
        train(model, loss, self.schedule, tmp_path / "a", {"seed": 0}, 2)
        with pytest.raises(ValueError, match="is of another run"):
            train(model, loss, self.schedule, tmp_path / "a", {"seed": 1})

    def test_a_loss_that_is_no_number_ends_it(self, tmp_path):
        model, _ = tiny()
        with pytest.raises(FloatingPointError, match="step 0: the gradient is no number"):
            train(
                model, lambda _: (model(torch.full((1, 8), torch.nan)).sum(), {}),
                self.schedule, tmp_path / "a", {},
            )  # fmt: skip

    def test_weights_are_written_as_halves(self, tmp_path):
        model, _ = tiny()
        size = save_half(model, tmp_path / "a.safetensors")
        found = load_file(tmp_path / "a.safetensors")
        assert size == (tmp_path / "a.safetensors").stat().st_size < 2000
        assert torch.equal(found["0.weight"], model[0].weight.half())
        model[0].weight.data[0, 0] = 1e6
        with pytest.raises(ValueError, match=r"0\.weight leaves the range of float16"):
            save_half(model, tmp_path / "b.safetensors")
