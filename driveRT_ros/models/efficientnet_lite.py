"""EfficientNet-Lite0 as an image backbone, with the names of its published torch weights.

Source: Tan and Le, "EfficientNet", ICML 2019, in the Lite form (no squeeze-and-excitation, ReLU6),
trained in TensorFlow: batch norm has epsilon 1e-3, and padding is TensorFlow's "SAME".
"""

from __future__ import annotations

import torch
from torch import nn

BN_EPS = 1e-3
STEM_CHANNELS = 32
# (blocks, kernel, stride of the first block, expansion, output channels) of each stage.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
FINE_BLOCK = 10  # last block of stride 16
CLASSIFIER_KEYS = ("_conv_head.", "_bn1.", "_fc.")
"""Prefixes of the layers after the last block, which a backbone has no use for."""


class _SameConv2d(nn.Conv2d):
    """A convolution that pads as TensorFlow does where the stride divides the input.

    With stride 2 and even sizes, the padding of kernel - 2 pixels is uneven: the odd one goes at
    the bottom and on the right.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel: int, stride: int, groups: int
    ) -> None:
        even = stride == 1
        super().__init__(
            in_channels,
            out_channels,
            kernel,
            stride,
            padding=kernel // 2 if even else 0,
            groups=groups,
            bias=False,
        )
        first = (kernel - stride) // 2
        last = kernel - stride - first
        self._uneven = (first, last, first, last) if not even else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._uneven:
            x = nn.functional.pad(x, self._uneven)
        return super().forward(x)


class _Block(nn.Module):
    """Inverted residual: expand 1x1, depthwise k x k, project 1x1."""

    def __init__(
        self, in_channels: int, channels: int, kernel: int, stride: int, expansion: int
    ) -> None:
        super().__init__()
        hidden = in_channels * expansion
        self._expanded = expansion > 1
        if self._expanded:
            self._expand_conv = nn.Conv2d(in_channels, hidden, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(hidden, BN_EPS)
        self._depthwise_conv = _SameConv2d(hidden, hidden, kernel, stride, groups=hidden)
        self._bn1 = nn.BatchNorm2d(hidden, BN_EPS)
        self._project_conv = nn.Conv2d(hidden, channels, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(channels, BN_EPS)
        self._act = nn.ReLU6(inplace=True)
        self._shortcut = stride == 1 and in_channels == channels
        self.residual_norm = "_bn2" if self._shortcut else ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self._act(self._bn0(self._expand_conv(x))) if self._expanded else x
        out = self._act(self._bn1(self._depthwise_conv(out)))
        out = self._bn2(self._project_conv(out))
        return out + x if self._shortcut else out


class EfficientNetLite0(nn.Module):
    """The convolutional part of EfficientNet-Lite0, without its head of 1280 channels."""

    out_channels = (112, 320)

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = _SameConv2d(3, STEM_CHANNELS, 3, 2, groups=1)
        self._bn0 = nn.BatchNorm2d(STEM_CHANNELS, BN_EPS)
        self._act = nn.ReLU6(inplace=True)
        blocks: list[nn.Module] = []
        channels = STEM_CHANNELS
        for count, kernel, stride, expansion, out_channels in STAGES:
            for index in range(count):
                step = stride if index == 0 else 1
                blocks.append(_Block(channels, out_channels, kernel, step, expansion))
                channels = out_channels
        self._blocks = nn.ModuleList(blocks)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the feature maps of stride 16 and 32.

        Args:
            images: (B, 3, H, W) normalised, H and W multiples of 32.
        """
        x = self._act(self._bn0(self._conv_stem(images)))
        for block in self._blocks[: FINE_BLOCK + 1]:
            x = block(x)
        fine = x
        for block in self._blocks[FINE_BLOCK + 1 :]:
            x = block(x)
        return fine, x
