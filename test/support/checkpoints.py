"""Synthetic OpenPCDet VoxelNeXt checkpoints: the official key names with random values.

The names and shapes are spelled out here on their own, so that a wrong name in the graph cannot
hide behind the same wrong name in its test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

OFFICIAL_CHANNELS = (16, 32, 64, 128, 128, 128)
OFFICIAL_CLASSES_PER_HEAD = (1, 2, 2, 1, 2, 2)
BRANCHES = {"center": 2, "center_z": 1, "dim": 3, "rot": 2, "vel": 2}


def state_dict(
    channels: Sequence[int] = OFFICIAL_CHANNELS,
    classes_per_head: Sequence[int] = OFFICIAL_CLASSES_PER_HEAD,
    *,
    seed: int = 0,
    layout: str = "KRSC",
) -> dict[str, torch.Tensor]:
    """Return a ``model_state`` with random weights and batch-norm statistics, float32."""
    make = _Maker(seed, layout)
    for level, c_out in enumerate(channels, start=1):
        c_in = 5 if level == 1 else channels[level - 2]
        entry = "conv_input" if level == 1 else f"conv{level}.0"
        make.conv(f"backbone_3d.{entry}.0", c_in, c_out, (3, 3, 3), bias=False)
        make.norm(f"backbone_3d.{entry}.1", c_out)
        for block in (0, 1) if level == 1 else (1, 2):
            for number in (1, 2):
                prefix = f"backbone_3d.conv{level}.{block}"
                make.conv(f"{prefix}.conv{number}", c_out, c_out, (3, 3, 3), bias=True)
                make.norm(f"{prefix}.bn{number}", c_out)
    width = channels[-1]
    make.conv("backbone_3d.conv_out.0", width, width, (3, 3), bias=False)
    make.norm("backbone_3d.conv_out.1", width)
    make.conv("backbone_3d.shared_conv.0", width, width, (3, 3), bias=True)
    make.norm("backbone_3d.shared_conv.1", width)
    for head, classes in enumerate(classes_per_head):
        for name, out in {**BRANCHES, "hm": classes}.items():
            prefix = f"dense_head.heads_list.{head}.{name}"
            make.conv(f"{prefix}.0.0", width, width, (1, 1), bias=True)
            make.norm(f"{prefix}.0.1", width)
            make.conv(f"{prefix}.1", width, out, (1, 1), bias=True, gain=0.1)
            if name == "dim":
                make.state[f"{prefix}.1.bias"] += 0.7  # boxes of about two metres
    make.state["global_step"] = torch.zeros(1, dtype=torch.int64)
    return make.state


def write(path: Path, state: dict[str, torch.Tensor]) -> Path:
    """Write a checkpoint file as OpenPCDet does."""
    torch.save({"epoch": 20, "it": 1, "model_state": state, "version": "pcdet+0.6.0"}, path)
    return path


class _Maker:
    def __init__(self, seed: int, layout: str) -> None:
        self.state: dict[str, torch.Tensor] = {}
        self._generator = torch.Generator().manual_seed(seed)
        self._layout = layout

    def conv(self, key, c_in, c_out, kernel, *, bias, gain=1.0):
        std = gain * math.sqrt(1.0 / (c_in * max(math.prod(kernel) / 3, 1)))
        weight = torch.randn(c_out, *kernel, c_in, generator=self._generator) * std
        if self._layout == "RSCK":
            weight = weight.movedim(0, -1)
        elif self._layout == "RSKC":
            weight = weight.movedim(0, -1).transpose(-1, -2)
        self.state[f"{key}.weight"] = weight.contiguous()
        if bias:
            self.state[f"{key}.bias"] = torch.randn(c_out, generator=self._generator) * 0.1

    def norm(self, key, channels):
        uniform = torch.rand(3, channels, generator=self._generator)
        self.state[f"{key}.weight"] = 0.5 + uniform[0]
        self.state[f"{key}.bias"] = (uniform[1] - 0.5) * 0.4
        self.state[f"{key}.running_mean"] = (uniform[2] - 0.5) * 0.4
        self.state[f"{key}.running_var"] = torch.rand(channels, generator=self._generator) + 0.8
        self.state[f"{key}.num_batches_tracked"] = torch.tensor(1000)
