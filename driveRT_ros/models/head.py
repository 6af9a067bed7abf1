"""The detection heads: heat at every row, boxes at the rows that matter, suppression per head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from driveRT_ros.core.bev_grid import HEAD_STRIDE
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.reference.decode import (
    Selection,
    decode_boxes,
    local_maxima,
    select_candidates,
    usable_boxes,
)
from driveRT_ros.core.sparse_types import SparseTensor
from driveRT_ros.models.graph import BRANCHES

Suppress = Callable[[torch.Tensor, torch.Tensor, float, int], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Proposals:
    """What one head proposes, best first, before suppression.

    Args:
        boxes: (K, 9).
        scores: (K,).
        labels: (K,) int64 index into the class names of all heads.
    """

    boxes: torch.Tensor
    scores: torch.Tensor
    labels: torch.Tensor


def one_per_class(values: tuple[float, ...], count: int) -> tuple[float, ...]:
    """Return one value a class of what may be given once for all of them."""
    return values * count if len(values) == 1 else values


def usable_proposals(
    boxes: torch.Tensor,
    chosen: Selection,
    first_label: int,
    center_range: Sequence[float],
    dropped: Counter[str],
) -> Proposals:
    """Return what one head proposes, and count what is left out.

    Args:
        boxes: (K, 9) of the chosen candidates.
        chosen: The candidates.
        first_label: Label of the first class of the head.
        center_range: Parameter ``post_process_params.center_range``.
        dropped: Counts by reason; more are added.
    """
    usable, reasons = usable_boxes(boxes, center_range)
    dropped.update(chosen.dropped)
    dropped.update(reasons)
    return Proposals(boxes[usable], chosen.scores[usable], chosen.classes[usable] + first_label)


def join_kept(kept: Sequence[tuple[Proposals, torch.Tensor]]) -> Proposals:
    """Join what suppression left of each head; the rows are in the order to keep."""
    return Proposals(
        boxes=torch.cat([p.boxes[rows] for p, rows in kept]),
        scores=torch.cat([p.scores[rows] for p, rows in kept]),
        labels=torch.cat([p.labels[rows] for p, rows in kept]),
    )


def suppression(selection: str, suppress: Suppress) -> Suppress:
    """Return what a selection does with proposals: peaks all stay, as many as a head may keep.

    Args:
        selection: Parameter ``post_process_params.selection``.
        suppress: ``(boxes, scores, iou_threshold, max_boxes) -> kept rows``.
    """
    return suppress if selection == "nms" else _keep_first


def _keep_first(
    boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float, max_boxes: int
) -> torch.Tensor:
    return torch.arange(min(len(boxes), max_boxes), device=boxes.device)


class Heads:
    """All heads on one device in one dtype.

    Args:
        config: Classes, thresholds and grid.
        tensors: Folded weights on the device.
        suppress: ``(boxes, scores, iou_threshold, max_boxes) -> kept rows``.
    """

    def __init__(
        self, config: LidarConfig, tensors: Mapping[str, torch.Tensor], suppress: Suppress
    ) -> None:
        self._config = config
        self._tensors = tensors
        self._suppress = suppression(config.post_process_params.selection, suppress)
        self._classes = config.model.classes_per_head
        thresholds = config.post_process_params.score_thresholds
        self._thresholds = one_per_class(thresholds, len(config.model.class_names))
        # The hidden layers of all heat branches read the same rows: one product serves them.
        hidden = [f"head{h}.hm.hidden" for h in range(len(self._classes))]
        self._heat_weight = torch.cat([tensors[f"{n}.weight"][0] for n in hidden], dim=1)
        self._heat_bias = torch.cat([tensors[f"{n}.bias"] for n in hidden])

    def heat(self, features: torch.Tensor) -> list[torch.Tensor]:
        """Return the heat of every head at every row.

        Args:
            features: (N, C) rows of the bird's-eye view.

        Returns:
            One (N, classes of the head) tensor of logits a head.
        """
        hidden = torch.relu(features @ self._heat_weight + self._heat_bias)
        width = self._heat_weight.shape[1] // len(self._classes)
        return [
            self._linear(f"head{head}.hm.out", part)
            for head, part in enumerate(hidden.split(width, dim=1))
        ]

    def propose(
        self, bev: SparseTensor, heat: list[torch.Tensor]
    ) -> tuple[list[Proposals], dict[str, int]]:
        """Return the proposals of every head, and counts of what was left out by reason.

        Proposals of equal score are in the order of class, then cell (y, x): the order of the rows
        does not matter.

        Args:
            bev: Shared features.
            heat: Result of :meth:`heat` for these features.
        """
        post = self._config.post_process_params
        proposals: list[Proposals] = []
        dropped: Counter[str] = Counter()
        y, x = bev.coords_bzyx[:, 2].long(), bev.coords_bzyx[:, 3].long()
        cells = y * bev.spatial_shape_zyx[2] + x
        first = 0
        for head, classes in enumerate(self._classes):
            limits = self._thresholds[first : first + len(classes)]
            peaks = None
            if post.selection == "max_pool":
                peaks = local_maxima(heat[head], bev.coords_bzyx[:, 2:4])
            chosen = select_candidates(heat[head], limits, post.top_k, cells, peaks)
            boxes = self._boxes(head, bev, chosen)
            proposals.append(usable_proposals(boxes, chosen, first, post.center_range, dropped))
            first += len(classes)
        return proposals, dict(dropped)

    def suppress(self, proposals: list[Proposals]) -> Proposals:
        """Suppress overlaps head by head, across the classes of a head, and join the heads.

        With ``max_pool``, nothing overlaps by definition: the best of each head stay.
        """
        post = self._config.post_process_params
        kept = [
            (p, self._suppress(p.boxes, p.scores, post.iou_nms_threshold, post.max_boxes_per_head))
            for p in proposals
        ]
        return join_kept(kept)

    def _boxes(self, head: int, bev: SparseTensor, chosen: Selection) -> torch.Tensor:
        """Evaluate the regression branches at the chosen rows and decode them."""
        features = bev.features[chosen.rows]
        branches = {}
        for name, _ in BRANCHES:
            hidden = torch.relu(self._linear(f"head{head}.{name}.hidden", features))
            branches[name] = self._linear(f"head{head}.{name}.out", hidden)
        voxels = self._config.voxelization
        return decode_boxes(
            branches,
            bev.coords_bzyx[chosen.rows, 2:4],
            voxels.point_cloud_range[:2],
            voxels.voxel_size[:2],
            HEAD_STRIDE,
        )

    def _linear(self, layer: str, rows: torch.Tensor) -> torch.Tensor:
        return rows @ self._tensors[f"{layer}.weight"][0] + self._tensors[f"{layer}.bias"]
