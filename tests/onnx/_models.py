"""The models of `architectures.py`, ready to be exported."""

import copy

from architectures import ARCHITECTURES
import numpy as np
import torch


class Wrapped(torch.nn.Module):
    """A model that takes its inputs in order, and gives those of its results that are tensors."""

    def __init__(self, model: torch.nn.Module, names: list[str]):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *arrays):
        found = self.model(**dict(zip(self.names, arrays, strict=True)))
        found = found if torch.is_tensor(found) else found.to_tuple()
        return [found] if torch.is_tensor(found) else [x for x in found if torch.is_tensor(x)]


def build(name: str) -> torch.nn.Module:
    """The model, or the part of it that the name says, with weights that make its results vary."""
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    kind, _, part = name.partition(".")
    config = AutoConfig.for_model(kind, **copy.deepcopy(ARCHITECTURES[name][0]))
    model = AutoModel.from_config(config)
    model = getattr(model, part) if part else model
    with torch.no_grad():
        for module in model.modules():
            _vary(module)
    return model.eval()


def _vary(module: torch.nn.Module) -> None:
    """Weights as large as trained ones: the initial ones leave attention almost even."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    if weight is None:
        return
    if isinstance(module, torch.nn.Embedding):
        weight.normal_()
    elif isinstance(module, torch.nn.Linear | torch.nn.Conv1d | torch.nn.Conv2d):
        weight.normal_(std=weight[0].numel() ** -0.5)
    elif isinstance(module, torch.nn.LayerNorm | torch.nn.GroupNorm | torch.nn.BatchNorm2d):
        weight.normal_(1, 0.2)
    else:
        return
    if torch.is_tensor(bias):
        bias.normal_(std=0.1)
    if isinstance(module, torch.nn.BatchNorm2d):
        module.running_mean.normal_(std=0.1)
        module.running_var.uniform_(0.5, 2)


def given(name: str, batch: int) -> dict[str, np.ndarray]:
    """Inputs as in use, a batch of them; sequences of three rows and more are longer."""
    return ARCHITECTURES[name][1](batch, np.random.default_rng(batch))
