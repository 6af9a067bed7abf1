"""Building blocks that the networks of the camera model share, and the folding of their norms.

Every module registers a batch norm right after the convolution that it follows:
:func:`fold_norms` relies on that order.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut; names as in torchvision.

    Source: He et al., "Deep Residual Learning for Image Recognition", CVPR 2016.

    Args:
        in_channels: Input features.
        channels: Output features.
        stride: Output spacing.
        downsample: Module of the shortcut; None passes the input on.
    """

    residual_norm = "bn2"  # the last norm before the shortcut is added

    def __init__(
        self,
        in_channels: int,
        channels: int,
        stride: int = 1,
        downsample: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, in, H, W) to (B, channels, H/stride, W/stride)."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class ConvModule(nn.Module):
    """A convolution of stride 1, optionally with batch norm and ReLU.

    Args:
        in_channels: Input features.
        out_channels: Output features.
        kernel: Edge of the square kernel, odd.
        norm: With batch norm and ReLU; without, the convolution has a bias.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel: int, *, norm: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2, bias=not norm)
        if norm:
            self.bn = nn.BatchNorm2d(out_channels)
            self.relu = nn.ReLU(inplace=True)
        self._norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (B, in, H, W) to (B, out, H, W)."""
        x = self.conv(x)
        return self.relu(self.bn(x)) if self._norm else x


def fold_norms(network: nn.Module) -> int:
    """Merge every inference-time batch norm into the convolution before it, in place.

    Args:
        network: In evaluation mode, made of the modules of this package.

    Returns:
        Number of batch norms folded.
    """
    folded = 0
    for parent in list(network.modules()):
        before: tuple[str, nn.Module] | None = None
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm2d) and before and isinstance(before[1], nn.Conv2d):
                setattr(parent, before[0], fuse_conv_bn_eval(before[1], child))
                setattr(parent, name, nn.Identity())
                folded += 1
            before = (name, child)
    return folded
