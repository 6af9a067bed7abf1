"""BEVDet-R50 as its public configuration describes it: names, shapes, and a plain forward pass.

Written from the description, without the modules of the package: it shares the formulae, not the
code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

CLASSES = (
    "car",
    "truck",
    "construction_vehicle",
    "bus",
    "trailer",
    "barrier",
    "motorcycle",
    "bicycle",
    "pedestrian",
    "traffic_cone",
)
BRANCHES = {"reg": 2, "height": 1, "dim": 3, "rot": 2, "vel": 2}
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))

Shapes = dict[str, tuple[int, ...]]


def _conv(name: str, out: int, into: int, kernel: int, *, bias: bool = False) -> Iterator:
    yield f"{name}.weight", (out, into, kernel, kernel)
    if bias:
        yield f"{name}.bias", (out,)


def _norm(name: str, channels: int) -> Iterator:
    for part in ("weight", "bias", "running_mean", "running_var"):
        yield f"{name}.{part}", (channels,)
    yield f"{name}.num_batches_tracked", ()


def shapes(
    *, neck: int = 256, context: int = 64, bins: int = 59, heads: tuple[int, ...] = (10,)
) -> Shapes:
    """Return name and shape of every entry of a checkpoint's state dict.

    Args:
        neck: Channels of the image neck.
        context: Channels lifted from a pixel.
        bins: Depths.
        heads: Number of classes of each head.
    """
    out: Shapes = {}
    out.update(_conv("img_backbone.conv1", 64, 3, 7))
    out.update(_norm("img_backbone.bn1", 64))
    channels = 64
    for stage, (blocks, width) in enumerate(STAGES, 1):
        for block in range(blocks):
            at = f"img_backbone.layer{stage}.{block}"
            for index, (o, i, k) in enumerate(
                ((width, channels, 1), (width, width, 3), (4 * width, width, 1)), 1
            ):
                out.update(_conv(f"{at}.conv{index}", o, i, k))
                out.update(_norm(f"{at}.bn{index}", o))
            if block == 0:
                out.update(_conv(f"{at}.downsample.0", 4 * width, channels, 1))
                out.update(_norm(f"{at}.downsample.1", 4 * width))
            channels = 4 * width
    for index, channels in enumerate((1024, 2048)):
        out.update(_conv(f"img_neck.lateral_convs.{index}.conv", neck, channels, 1, bias=True))
    out.update(_conv("img_neck.fpn_convs.0.conv", neck, neck, 3, bias=True))
    out.update(_conv("img_view_transformer.depth_net", bins + context, neck, 1, bias=True))
    channels = context
    for level, width in enumerate((128, 256, 512)):
        at = f"img_bev_encoder_backbone.layers.{level}"
        for block in range(2):
            into = channels if block == 0 else width
            for index, i in enumerate((into, width), 1):
                out.update(_conv(f"{at}.{block}.conv{index}", width, i, 3))
                out.update(_norm(f"{at}.{block}.bn{index}", width))
        out.update(_conv(f"{at}.0.downsample", width, channels, 3, bias=True))
        channels = width
    for index, i in ((0, 640), (3, 512)):
        out.update(_conv(f"img_bev_encoder_neck.conv.{index}", 512, i, 3))
        out.update(_norm(f"img_bev_encoder_neck.conv.{index + 1}", 512))
    out.update(_conv("img_bev_encoder_neck.up2.1", 256, 512, 3))
    out.update(_norm("img_bev_encoder_neck.up2.2", 256))
    out.update(_conv("img_bev_encoder_neck.up2.4", 256, 256, 1, bias=True))
    out.update(_conv("pts_bbox_head.shared_conv.conv", 64, 256, 3))
    out.update(_norm("pts_bbox_head.shared_conv.bn", 64))
    for head, classes in enumerate(heads):
        for name, outputs in {**BRANCHES, "heatmap": classes}.items():
            at = f"pts_bbox_head.task_heads.{head}.{name}"
            out.update(_conv(f"{at}.0.conv", 64, 64, 3))
            out.update(_norm(f"{at}.0.bn", 64))
            out.update(_conv(f"{at}.1", outputs, 64, 3, bias=True))
    return out


def constants(entries: Shapes) -> dict[str, Tensor]:
    """Return entries of one repeated value, which take no room in a file."""
    return {
        name: torch.tensor(7) if not shape else torch.ones(1).expand(shape)
        for name, shape in entries.items()
    }


def random_state(seed: int, **sizes: int) -> dict[str, Tensor]:
    """Return a state dict of random values that keep activations near one."""
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, shape in shapes(**sizes).items():
        draw = torch.rand(shape, generator=generator)
        if not shape:
            out[name] = torch.tensor(7)
        elif len(shape) == 4:
            out[name] = (2 * draw - 1) * (6.0 / (shape[1] * shape[2] * shape[3])) ** 0.5
        elif name.endswith("running_var"):
            out[name] = 0.5 + draw
        elif name.endswith("weight"):
            out[name] = 0.3 + 0.3 * draw
        else:
            out[name] = 0.2 * (draw - 0.5)
    return out


class Reader:
    """Runs the described network on a state dict.

    Args:
        state: By the names of a checkpoint.
    """

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self._state = state

    def conv(self, x: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = self._state[f"{name}.weight"]
        bias = self._state.get(f"{name}.bias")
        return F.conv2d(x, weight, bias, stride, weight.shape[-1] // 2)

    def norm(self, x: Tensor, name: str) -> Tensor:
        get = self._state.__getitem__
        mean, variance = get(f"{name}.running_mean"), get(f"{name}.running_var")
        scale = get(f"{name}.weight") / torch.sqrt(variance + 1e-5)
        shift = get(f"{name}.bias") - mean * scale
        return x * scale[:, None, None] + shift[:, None, None]

    def lift(self, images: Tensor, bins: int) -> tuple[Tensor, Tensor]:
        """Return depth (N, D, h, w) and context (N, C, h, w) of images (N, 3, H, W)."""
        x = torch.relu(self.norm(self.conv(images, "img_backbone.conv1", 2), "img_backbone.bn1"))
        x = F.max_pool2d(x, 3, 2, 1)
        levels = []
        for stage, (blocks, _) in enumerate(STAGES, 1):
            for block in range(blocks):
                stride = 2 if block == 0 and stage > 1 else 1
                x = self._bottleneck(x, f"img_backbone.layer{stage}.{block}", stride)
            levels.append(x)
        fine = self.conv(levels[2], "img_neck.lateral_convs.0.conv")
        coarse = self.conv(levels[3], "img_neck.lateral_convs.1.conv")
        fine = fine + coarse.repeat_interleave(2, 2).repeat_interleave(2, 3)
        fine = self.conv(fine, "img_neck.fpn_convs.0.conv")
        both = self.conv(fine, "img_view_transformer.depth_net")
        return torch.softmax(both[:, :bins], 1), both[:, bins:]

    def _bottleneck(self, x: Tensor, at: str, stride: int) -> Tensor:
        out = torch.relu(self.norm(self.conv(x, f"{at}.conv1"), f"{at}.bn1"))
        out = torch.relu(self.norm(self.conv(out, f"{at}.conv2", stride), f"{at}.bn2"))
        out = self.norm(self.conv(out, f"{at}.conv3"), f"{at}.bn3")
        if f"{at}.downsample.0.weight" in self._state:
            x = self.norm(self.conv(x, f"{at}.downsample.0", stride), f"{at}.downsample.1")
        return torch.relu(out + x)

    def heads(self, bev: Tensor, heads: int = 1) -> list[dict[str, Tensor]]:
        """Return the maps of every head for a pooled view (1, C, Y, X)."""
        levels, x = [], bev
        for level in range(3):
            for block in range(2):
                at = f"img_bev_encoder_backbone.layers.{level}.{block}"
                stride = 2 if block == 0 else 1
                out = torch.relu(self.norm(self.conv(x, f"{at}.conv1", stride), f"{at}.bn1"))
                out = self.norm(self.conv(out, f"{at}.conv2"), f"{at}.bn2")
                x = torch.relu(out + (self.conv(x, f"{at}.downsample", 2) if block == 0 else x))
            levels.append(x)
        up = F.interpolate(levels[2], scale_factor=4, mode="bilinear", align_corners=True)
        x = torch.cat([levels[0], up], 1)
        at = "img_bev_encoder_neck"
        for index in (0, 3):
            x = torch.relu(self.norm(self.conv(x, f"{at}.conv.{index}"), f"{at}.conv.{index + 1}"))
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
        x = torch.relu(self.norm(self.conv(x, f"{at}.up2.1"), f"{at}.up2.2"))
        x = self.conv(x, f"{at}.up2.4")
        at = "pts_bbox_head"
        x = torch.relu(self.norm(self.conv(x, f"{at}.shared_conv.conv"), f"{at}.shared_conv.bn"))
        return [
            {
                name: self._branch(x, f"{at}.task_heads.{head}.{name}")
                for name in (*BRANCHES, "heatmap")
            }
            for head in range(heads)
        ]

    def _branch(self, x: Tensor, at: str) -> Tensor:
        hidden = torch.relu(self.norm(self.conv(x, f"{at}.0.conv"), f"{at}.0.bn"))
        return self.conv(hidden, f"{at}.1")
