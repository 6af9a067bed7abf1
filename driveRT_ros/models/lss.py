"""Lift, splat: images of any number of cameras to maps of the bird's-eye view.

Every pixel of the feature map gets a distribution over depths and a row of context features; their
products are summed in the cells of the grid (``core/bev_pool.py``), and a small residual network
reads the sums.

Source: Philion and Fidler, "Lift, Splat, Shoot", ECCV 2020; the graph with ResNet-50 is BEVDet's
(Huang et al., 2021).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from driveRT_ros.core.camera_config import CameraModelConfig
from driveRT_ros.models.center_head import CenterHead
from driveRT_ros.models.efficientnet_lite import EfficientNetLite0
from driveRT_ros.models.layers import BasicBlock, ConvModule
from driveRT_ros.models.resample import Upsample, bilinear
from driveRT_ros.models.resnet import ResNet50

BACKBONES: Mapping[str, type[EfficientNetLite0] | type[ResNet50]] = {
    "efficientnet_lite0": EfficientNetLite0,
    "resnet50": ResNet50,
}


@dataclass(frozen=True, eq=False)
class BevMaps:
    """What the network says about every cell.

    Args:
        segmentation: (B, layers, Y, X) logits; zero layers where the network has none.
        heads: Maps of each detection head by name, (B, channels, Y, X); see
            :class:`driveRT_ros.models.center_head.CenterHead`.
    """

    segmentation: torch.Tensor
    heads: Sequence[Mapping[str, torch.Tensor]]


class ImageNeck(nn.Module):
    """A feature pyramid that gives its finest level only.

    Source: Lin et al., "Feature Pyramid Networks", CVPR 2017.
    """

    def __init__(self, in_channels: Sequence[int], channels: int, *, norm: bool) -> None:
        super().__init__()
        self.lateral_convs = nn.ModuleList(
            ConvModule(n, channels, 1, norm=norm) for n in in_channels
        )
        self.fpn_convs = nn.ModuleList([ConvModule(channels, channels, 3, norm=norm)])

    def forward(self, fine: torch.Tensor, coarse: torch.Tensor) -> torch.Tensor:
        """Map features of stride 16 and 32 to (B, channels, H/16, W/16)."""
        fine, coarse = self.lateral_convs[0](fine), self.lateral_convs[1](coarse)
        return self.fpn_convs[0](fine + nn.functional.interpolate(coarse, size=fine.shape[2:]))


class BevBackbone(nn.Module):
    """Three levels of two residual blocks, each with half the resolution of the one before."""

    def __init__(self, in_channels: int, channels: Sequence[int]) -> None:
        super().__init__()
        levels = []
        for width in channels:
            shortcut = nn.Conv2d(in_channels, width, 3, stride=2, padding=1)
            levels.append(
                nn.Sequential(BasicBlock(in_channels, width, 2, shortcut), BasicBlock(width, width))
            )
            in_channels = width
        self.layers = nn.Sequential(*levels)

    def forward(self, bev: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first and the last level: half and an eighth of the resolution."""
        first = bev = self.layers[0](bev)
        for level in self.layers[1:]:
            bev = level(bev)
        return first, bev


class BevNeck(nn.Module):
    """Joins the first and the last level at the resolution of the grid.

    Args:
        in_channels: Channels of both levels together.
        out_channels: Output features.
        shape_yx: Cells of the grid.
    """

    def __init__(self, in_channels: int, out_channels: int, shape_yx: tuple[int, int]) -> None:
        super().__init__()
        hidden = 2 * out_channels
        self.conv = nn.Sequential(
            nn.Conv2d(in_channels, hidden, 3, padding=1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU(inplace=True),
            nn.Conv2d(hidden, hidden, 3, padding=1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU(inplace=True),
        )
        self.up2 = nn.Sequential(
            Upsample(shape_yx),
            nn.Conv2d(hidden, out_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, 1),
        )

    def forward(self, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Map the two levels to (B, out_channels, Y, X)."""
        last = bilinear(last, (first.shape[2], first.shape[3]))
        return self.up2(self.conv(torch.cat((first, last), dim=1)))


class Lss(nn.Module):
    """The whole network; the pooling between its two halves is the caller's.

    Args:
        config: Image size, depths, grid and channels.
    """

    def __init__(self, config: CameraModelConfig) -> None:
        super().__init__()
        network = config.network
        z_cells, rows, cols = config.grid.shape_zyx
        self.config = config
        self.backbone = BACKBONES[network.backbone]()
        self.neck = ImageNeck(
            self.backbone.out_channels, network.neck_channels, norm=network.neck_norm
        )
        lifted = config.depth.bins + network.context_channels
        self.depth_net = nn.Conv2d(network.neck_channels, lifted, 1)
        self.bev_backbone = BevBackbone(z_cells * network.context_channels, network.bev_channels)
        joined = network.bev_channels[0] + network.bev_channels[2]
        self.bev_neck = BevNeck(joined, network.bev_out_channels, (rows, cols))
        self.segmentation: nn.Module | None = None
        self.detection: nn.Module | None = None
        if network.segmentation:
            self.segmentation = nn.Sequential(
                ConvModule(network.bev_out_channels, network.head_channels, 3, norm=True),
                nn.Conv2d(network.head_channels, len(network.segmentation), 1),
            )
        if network.heads:
            classes = [len(names) for names in network.classes_per_head]
            self.detection = CenterHead(network.bev_out_channels, network.head_channels, classes)

    def lift_logits(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the depth network leaves of every pixel, without a copy.

        Args:
            images: (B, N, 3, H, W) normalised network inputs of N cameras.

        Returns:
            Depth logits (B, N, D, H/16, W/16) and context (B, N, H/16, W/16, C), of any strides.
        """
        batch, cameras = images.shape[:2]
        features = self.depth_net(self.neck(*self.backbone(images.flatten(0, 1))))
        features = features.unflatten(0, (batch, cameras))
        bins = self.config.depth.bins
        return features[:, :, :bins], features[:, :, bins:].movedim(2, -1)

    def lift(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return where the features of every pixel may lie, and the features.

        Args:
            images: (B, N, 3, H, W) normalised network inputs of N cameras.

        Returns:
            Depth (B, N, D, H/16, W/16), positive with the sum 1 over D, and context
            (B, N, H/16, W/16, C).
        """
        logits, context = self.lift_logits(images)
        return logits.softmax(dim=2).contiguous(), context.contiguous()

    def read(self, pooled: torch.Tensor, layout: torch.memory_format | None = None) -> BevMaps:
        """Return the maps of every output.

        Args:
            pooled: (B, Z, Y, X, C) sums of the lifted features.
            layout: In memory from there on; None leaves it as it is.
        """
        batch, z_cells, rows, cols, channels = pooled.shape
        # Channel = z * C + c; with one z cell this is a view in channels-last order.
        bev = pooled.permute(0, 1, 4, 2, 3).reshape(batch, z_cells * channels, rows, cols)
        if layout is not None:
            bev = bev.contiguous(memory_format=layout)
        bev = self.bev_neck(*self.bev_backbone(bev))
        segmentation = bev[:, :0] if self.segmentation is None else self.segmentation(bev)
        heads = [] if self.detection is None else self.detection(bev)
        return BevMaps(segmentation, heads)
