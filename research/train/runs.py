"""A training run that can stop anywhere and go on with the same result.

What a step sees is a function of the seed and of its number alone, so that a checkpoint is the
weights, the optimizer and a number: `train` starts from the checkpoint that it finds, and ends with
the weights that it would have had without a break.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
import json
import math
import os
from pathlib import Path
import time

import torch
from torch import Tensor, nn

#: A step's loss, and what else the learning curve shows.
Step = Callable[[int], tuple[Tensor, dict[str, float]]]


@dataclass(frozen=True)
class Schedule:
    """How many steps, and the rate of learning: up in a line, down along half a cosine.

    With a cycle more, a run that is done goes on, from seven tenths of the rate. Reference:
    Loshchilov and Hutter 2016 (arXiv 1608.03983).
    """

    steps: int  # of the first cycle
    rate: float = 3e-3  # the highest, of the first cycle
    warm_up: int = 60
    decay: float = 0.01  # of weights, not of vectors
    every: int = 50  # steps of a checkpoint and of a point of the curve
    more: tuple[int, ...] = ()  # steps of further cycles

    @property
    def total(self) -> int:
        return self.steps + sum(self.more)

    def at(self, step: int) -> float:
        highest = self.rate
        for steps in (self.steps, *self.more):
            if step < steps:
                break
            step, highest = step - steps, 0.7 * highest
        if step < self.warm_up:
            return highest * (step + 1) / self.warm_up
        part = (step - self.warm_up) / max(1, steps - self.warm_up)
        return highest * (0.02 + 0.98 * (1 + math.cos(math.pi * part)) / 2)


def train(
    model: nn.Module,
    loss: Step,
    schedule: Schedule,
    checkpoint: Path,
    settings: dict,
    stop_at: int | None = None,
) -> list[dict[str, float]]:
    """Train up to the last step, or to `stop_at`; returns the learning curve.

    checkpoint: a file, read where it exists. settings: what makes the run what it is; a checkpoint
    of other settings, or of a schedule that this one does not begin with, raises ValueError.
    """
    settings = json.loads(json.dumps(settings | {"schedule": asdict(schedule)}))
    optimizer = torch.optim.AdamW(_groups(model, schedule.decay), betas=(0.9, 0.98), fused=True)
    first, seconds, curve, points = 0, 0.0, [], []
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        if not _goes_on(saved["settings"], settings):
            raise ValueError(f"{checkpoint} is of another run: {saved['settings']}")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first, seconds, curve, points = (saved[k] for k in ("step", "seconds", "curve", "points"))
    model.train()
    last = time.perf_counter()
    for step in range(first, min(schedule.total, stop_at or schedule.total)):
        points.append(_step(model, loss, optimizer, schedule.at(step), step))
        done = step + 1
        if done % schedule.every == 0 or done in (schedule.total, stop_at):
            now = time.perf_counter()
            seconds, last = seconds + now - last, now
            if done % schedule.every == 0 or done == schedule.total:
                mean = {name: _mean(point[name] for point in points) for name in points[0]}
                curve.append({"step": done, "seconds": round(seconds, 1)} | mean)
                points = []
                print(json.dumps(curve[-1]), flush=True)
            how = {"step": done, "seconds": seconds, "curve": curve, "points": points}
            _save(checkpoint, model, optimizer, how | {"settings": settings})
    model.eval()
    return curve


def _goes_on(saved: dict, settings: dict) -> bool:
    """Whether a run of these settings begins as the saved one did, and may have cycles more."""
    old, new = saved["schedule"], settings["schedule"]
    begun = new | {"more": new["more"][: len(old["more"])]}
    return saved == settings | {"schedule": begun}


def _groups(model: nn.Module, decay: float) -> list[dict]:
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def _step(
    model: nn.Module, loss: Step, optimizer: torch.optim.Optimizer, rate: float, step: int
) -> dict[str, float]:
    for group in optimizer.param_groups:
        group["lr"] = rate
    value, extra = loss(step)
    optimizer.zero_grad()
    value.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not torch.isfinite(norm):
        raise FloatingPointError(f"step {step}: the gradient is no number; lower the rate")
    optimizer.step()
    return {"loss": float(value.detach())} | extra


def _save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, how: dict) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state | how, partial)
    os.replace(partial, path)


def _mean(values) -> float:
    values = list(values)
    return round(sum(values) / len(values), 5)


def save_half(model: nn.Module, path: Path) -> int:
    """Write parameters and buffers as float16 safetensors; returns the file's bytes.

    What has two names, as a head tied to the embedding, is written under the first. Raises
    ValueError for a value that float16 does not have.
    """
    from safetensors.torch import save_file

    half, places = {}, set()
    for name, value in model.state_dict().items():
        if value.data_ptr() not in places:
            half[name] = value.half().contiguous()
            places.add(value.data_ptr())
            if not torch.isfinite(half[name]).all():
                raise ValueError(f"{name} leaves the range of float16")
    save_file(half, path, metadata={"format": "pt"})
    path.chmod(0o644)  # what it writes only its owner may read
    return path.stat().st_size
