"""From bird's-eye-view rows to boxes: one seam, two implementations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.stages import StageClock
from driveRT_ros.models.head import Heads

if TYPE_CHECKING:
    from driveRT_ros.core.front_end import FrontFrame


@dataclass(frozen=True, eq=False)
class Found:
    """The boxes of one frame, on the CPU, and how they came about.

    Args:
        boxes: (M, 9), head after head, within a head the best score first, equal scores by class,
            then by cell (y, x).
        scores: (M,).
        labels: (M,) int64 index into the class names of all heads.
        decoded: Boxes decoded, also those that were faulty, out of range or suppressed.
        dropped: Counts of what was left out, by reason.
        heat: Returns the logits of each head, (N, classes of the head) on the device; few frames
            are asked for them, and they hold until the next one.
        row_crcs: What :func:`driveRT_ros.core.fingerprint.row_crcs` would return, where it was
            asked for and taken on the way; else nothing.
    """

    boxes: torch.Tensor
    scores: torch.Tensor
    labels: torch.Tensor
    decoded: int
    dropped: Mapping[str, int]
    heat: Callable[[], list[torch.Tensor]]
    row_crcs: Mapping[str, int] = field(default_factory=dict)


class BackEnd(Protocol):
    """One implementation on one device."""

    @property
    def note(self) -> str:
        """A sentence on what makes it slower than it could be, or ""."""
        ...

    def run(self, front: FrontFrame, clock: StageClock, *, with_row_crcs: bool = False) -> Found:
        """Take the rows of one frame to boxes.

        Args:
            front: What the front end makes.
            clock: Given a lap after each of ``head`` and ``postprocess``.
            with_row_crcs: Take the CRC-32 of the rows where that costs no wait of its own.
        """
        ...


class ReferenceBackEnd:
    """Plain torch: any device, float32 and float64.

    Args:
        config: Classes, thresholds and grid.
        tensors: Folded weights on the device.
        ops: The operators to run.
    """

    def __init__(self, config: LidarConfig, tensors: Mapping[str, torch.Tensor], ops: Ops) -> None:
        self._heads = Heads(config, tensors, ops.rotated_nms)
        self.note = ""

    def run(self, front: FrontFrame, clock: StageClock, *, with_row_crcs: bool = False) -> Found:
        """See :class:`BackEnd`; takes no CRC-32."""
        # Heat at every row, boxes only where it passes the threshold.
        bev = front.result().bev
        heat = self._heads.heat(bev.features)
        proposals, dropped = self._heads.propose(bev, heat)
        clock.lap("head")

        # Overlapping boxes go, head by head.
        found = self._heads.suppress(proposals)
        boxes, scores, labels = (t.cpu() for t in (found.boxes, found.scores, found.labels))
        clock.lap("postprocess")
        faulty = ("non_finite_boxes", "implausible_boxes", "out_of_range_boxes")
        decoded = sum(len(p.boxes) for p in proposals) + sum(dropped[reason] for reason in faulty)
        return Found(boxes, scores, labels, decoded, dropped, lambda: heat)
