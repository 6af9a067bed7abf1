"""Which boxes of a frame can be drawn, and where and in which colour."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch

from driveRT_ros.core.boxes import BOX_DIM, CENTER, SIZE_LWH, bev_corners
from driveRT_ros.core.frame import Detections
from driveRT_ros.io.bev_view import BevView
from driveRT_ros.io.palette import Rgb, class_color

MAX_BOX_M = 200.0
MAX_CENTRE_M = 10_000.0


@dataclasses.dataclass(frozen=True)
class Drawable:
    """The boxes of a frame that can be drawn, weakest first.

    Args:
        boxes: (M, 9) float32.
        scores: (M,) float32.
        names: M class names.
        num_points: (M,) LiDAR points in each box, -1 where unknown.
        skipped: Boxes left out: a value is not finite, a side is not in (0, 200] m, the centre is
            beyond 10 km, or the score is not in [0, 1].
    """

    boxes: torch.Tensor
    scores: npt.NDArray[np.floating]
    names: tuple[str, ...]
    num_points: npt.NDArray[np.int64]
    skipped: int

    def __len__(self) -> int:
        return len(self.boxes)

    def corners_px(self, view: BevView) -> npt.NDArray[np.float64]:
        """Return (M, 4, 2) corners in the order of ``bev_corners``, as pixels."""
        return view.to_pixels(bev_corners(self.boxes.double()).numpy())

    @property
    def colors(self) -> list[Rgb]:
        """One colour a box."""
        return [class_color(name) for name in self.names]


def drawable(detections: Detections | None, min_score: float = 0.0) -> Drawable:
    """Sort out the boxes that cannot be drawn, and count them.

    Args:
        detections: Any frame, or None for no boxes.
        min_score: Boxes with a lower score are left out, without being counted as skipped.

    Returns:
        The rest in ascending order of score, so that the surest is drawn on top.
    """
    if detections is None:
        detections = Detections.empty()
    boxes = detections.boxes.detach().cpu().reshape(-1, BOX_DIM).float()
    scores = detections.scores.detach().cpu().numpy()
    sides, centre = boxes[:, SIZE_LWH], boxes[:, CENTER]
    good = torch.isfinite(boxes[:, :7]).all(dim=1)
    good &= ((sides > 0) & (sides <= MAX_BOX_M)).all(dim=1)
    good &= (centre.abs() <= MAX_CENTRE_M).all(dim=1)
    usable = good.numpy() & (scores >= 0) & (scores <= 1)
    (kept,) = np.nonzero(usable & (scores >= min_score))
    kept = kept[np.argsort(scores[kept], kind="stable")]
    labels = detections.labels.detach().cpu().numpy()[kept]
    known = detections.class_names
    if detections.num_points is None:
        num_points = np.full(len(kept), -1, np.int64)
    else:
        num_points = detections.num_points.detach().cpu().numpy()[kept]
    return Drawable(
        boxes=boxes[kept],
        scores=scores[kept],
        names=tuple(known[i] if 0 <= i < len(known) else f"class {i}" for i in labels),
        num_points=num_points,
        skipped=int((~usable).sum()),
    )
