"""A CenterPoint-like detection head on a dense bird's-eye view, and the decoding of its maps.

Source: Yin et al., "Center-based 3D Object Detection and Tracking", CVPR 2021.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.reference.decode import (
    decode_boxes,
    local_maxima,
    select_candidates,
)
from driveRT_ros.models.head import (
    Proposals,
    Suppress,
    join_kept,
    one_per_class,
    suppression,
    usable_proposals,
)
from driveRT_ros.models.layers import ConvModule

BRANCHES = (("reg", 2), ("height", 1), ("dim", 3), ("rot", 2), ("vel", 2))
"""Regression maps of a head and their channels; ``heatmap`` has one channel a class."""

Maps = Mapping[str, torch.Tensor]


class CenterHead(nn.Module):
    """One shared convolution, then two for every map of every head.

    Args:
        in_channels: Features of the bird's-eye view.
        channels: Hidden features.
        classes_per_head: Number of classes of each head.
    """

    def __init__(self, in_channels: int, channels: int, classes_per_head: Sequence[int]) -> None:
        super().__init__()
        self.shared_conv = ConvModule(in_channels, channels, 3, norm=True)
        self.task_heads = nn.ModuleList(
            nn.ModuleDict(
                {
                    name: nn.Sequential(
                        ConvModule(channels, channels, 3, norm=True),
                        nn.Conv2d(channels, outputs, 3, padding=1),
                    )
                    for name, outputs in (*BRANCHES, ("heatmap", classes))
                }
            )
            for classes in classes_per_head
        )

    def forward(self, bev: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        """Return the maps of every head by name.

        Args:
            bev: (B, C, Y, X).

        Returns:
            One dictionary a head of (B, channels, Y, X): logits in ``heatmap``, place within the
            cell in ``reg``, centre height in ``height``, logarithms of length, width and height in
            ``dim``, sine and cosine of the yaw in ``rot``, velocity in ``vel``.
        """
        shared = self.shared_conv(bev)
        return [{name: branch(shared) for name, branch in head.items()} for head in self.task_heads]


class CenterDecoder:
    """From the maps of one frame to boxes.

    Args:
        config: Classes, thresholds and grid.
        suppress: ``(boxes, scores, iou_threshold, max_boxes) -> kept rows``.
    """

    def __init__(self, config: CameraConfig, suppress: Suppress) -> None:
        self._post = config.post_process_params
        self._grid = config.model.grid
        self._suppress = suppression(self._post.selection, suppress)
        self._classes = config.model.network.classes_per_head
        count = len(config.model.network.class_names)
        self._thresholds = one_per_class(self._post.score_thresholds, count)
        self._size_factors = one_per_class(self._post.nms_size_factors, count)

    def propose(self, heads: Sequence[Maps]) -> tuple[list[Proposals], dict[str, int]]:
        """Return what every head proposes, and counts of what was left out by reason.

        Args:
            heads: Maps of each head, (1, channels, Y, X).
        """
        proposals: list[Proposals] = []
        dropped: Counter[str] = Counter()
        first = 0
        for maps, classes in zip(heads, self._classes):
            rows = {name: m[0].flatten(1).T.float() for name, m in maps.items()}
            limits = self._thresholds[first : first + len(classes)]
            columns = maps["heatmap"].shape[-1]
            peaks = None
            if self._post.selection == "max_pool":
                cells = torch.arange(len(rows["heatmap"]), device=rows["heatmap"].device)
                cells_yx = torch.stack((cells // columns, cells % columns), dim=1)
                peaks = local_maxima(rows["heatmap"], cells_yx)
            chosen = select_candidates(rows["heatmap"], limits, self._post.top_k, allowed=peaks)
            boxes = self._boxes(rows, chosen.rows, columns)
            within = self._post.center_range
            proposals.append(usable_proposals(boxes, chosen, first, within, dropped))
            first += len(classes)
        return proposals, dict(dropped)

    def suppress(self, proposals: Sequence[Proposals]) -> Proposals:
        """Suppress overlaps head by head, across the classes of a head, and join the heads."""
        post = self._post
        kept = []
        for proposal in proposals:
            factors = proposal.boxes.new_tensor(self._size_factors)[proposal.labels]
            measured = proposal.boxes.clone()
            measured[:, 3:5] *= factors[:, None]
            rows = self._suppress(
                measured, proposal.scores, post.iou_nms_threshold, post.max_boxes_per_head
            )
            kept.append((proposal, rows))
        return join_kept(kept)

    def _boxes(self, rows: Maps, chosen: torch.Tensor, columns: int) -> torch.Tensor:
        branches = {
            "center": rows["reg"][chosen],
            "center_z": rows["height"][chosen],
            "dim": rows["dim"][chosen],
            "rot": rows["rot"][chosen].flip(1),  # stored as (sine, cosine)
            "vel": rows["vel"][chosen],
        }
        cells_yx = torch.stack((chosen // columns, chosen % columns), dim=1)
        grid = self._grid
        origin = (grid.x_range_m[0], grid.y_range_m[0])
        return decode_boxes(branches, cells_yx, origin, (grid.resolution_m,) * 2, stride=1)
