"""How fast is learned, step by step, and the running average of what was learned."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import nn

from driveRT_ros.train.config import OptimizerConfig

_MOMENTUM = (0.95, 0.85)
"""First decay of Adam at the ends of the cycle and at its peak."""


def one_cycle(step: int, config: OptimizerConfig) -> tuple[float, float]:
    """Return learning rate and momentum of a step, both on half waves of a cosine.

    Args:
        step: From 0 to ``config.steps`` - 1.
        config: The cycle.

    Source: Smith and Topin, "Super-convergence", 2018.
    """
    peak = config.max_learning_rate
    last = max(config.steps - 1, 1)
    rise = config.rise * last
    if step < rise:
        share = step / rise
        return (
            _cosine(peak / config.start_division, peak, share),
            _cosine(*_MOMENTUM, share),
        )
    share = (step - rise) / max(last - rise, 1e-12)
    return _cosine(peak, peak / config.end_division, min(share, 1.0)), _cosine(
        *reversed(_MOMENTUM), min(share, 1.0)
    )


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def make_optimizer(module: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Return AdamW; only products decay, not biases and the scales of batch norm."""
    decay = [p for p in module.parameters() if p.ndim > 1]
    rest = [p for p in module.parameters() if p.ndim <= 1]
    groups = [
        {"params": decay, "weight_decay": config.weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    betas = (_MOMENTUM[0], config.beta2)
    fused = all(p.is_cuda for p in module.parameters())
    return torch.optim.AdamW(groups, lr=config.max_learning_rate, betas=betas, fused=fused)


def set_rates(optimizer: torch.optim.Optimizer, rate: float, momentum: float) -> None:
    """Put learning rate and momentum into every group."""
    for group in optimizer.param_groups:
        group["lr"], group["betas"] = rate, (momentum, group["betas"][1])


class Average:
    """The running average of weights and batch statistics.

    Args:
        module: What is averaged, in place: its tensors must stay the ones they are.
        decay: Share of the old average that a step keeps, once there were many steps.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self._decay = decay
        current = dict(_floats(module))
        self._current = list(current.values())
        self.tensors = {name: tensor.clone() for name, tensor in current.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after a step, counted from 1; the first steps count more."""
        keep = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.tensors.values()), self._current, 1.0 - keep)


def _floats(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            yield name, tensor
