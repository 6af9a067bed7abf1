"""ResNet-50 as an image backbone, with the names of torchvision."""

from __future__ import annotations

import torch
from torch import nn

BLOCKS = (3, 4, 6, 3)
WIDTHS = (64, 128, 256, 512)
EXPANSION = 4


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride) and 1x1 convolution with a shortcut."""

    residual_norm = "bn3"

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        out_channels = width * EXPANSION
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride > 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, in, H, W) to (B, 4 * width, H/stride, W/stride)."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet50(nn.Module):
    """The convolutional part of ResNet-50; the stride sits in the 3x3 convolutions.

    Source: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016.
    """

    out_channels = (1024, 2048)

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        channels = 64
        for level, (blocks, width) in enumerate(zip(BLOCKS, WIDTHS), 1):
            stride = 1 if level == 1 else 2
            layer = [Bottleneck(channels, width, stride)]
            channels = width * EXPANSION
            layer += [Bottleneck(channels, width, 1) for _ in range(blocks - 1)]
            self.add_module(f"layer{level}", nn.Sequential(*layer))

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the feature maps of stride 16 and 32.

        Args:
            images: (B, 3, H, W) normalised, H and W multiples of 32.
        """
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        fine = self.layer3(self.layer2(self.layer1(x)))
        return fine, self.layer4(fine)
