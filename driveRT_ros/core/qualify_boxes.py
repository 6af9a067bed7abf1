"""How many detections of one precision are those of another."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from driveRT_ros.core.box_match import box_differences, explain_unlike
from driveRT_ros.core.boxes import CENTER
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.frame import Detections


@dataclass(frozen=True)
class BoxTally:
    """Detections of some frames in two precisions.

    Args:
        wanted: Of the reference.
        got: Of the precision in question.
        matched: Pairs of one class, close in place and score; each box is in one at most.
        near_limit: Boxes of either, without a partner, whose score is at its threshold or at the
            last place of a full head.
        ties: Boxes of either, without a partner, that lost against one of nearly equal score.
        unexplained: Boxes of either, without a partner, about which rounding does not decide.
        center_m: Largest distance of the centres of a pair.
        score: Largest difference of the scores of a pair.
    """

    wanted: int = 0
    got: int = 0
    matched: int = 0
    near_limit: int = 0
    ties: int = 0
    unexplained: int = 0
    center_m: float = 0.0
    score: float = 0.0

    def __add__(self, other: BoxTally) -> BoxTally:
        """Return the tally of the frames of both."""
        mine, theirs = asdict(self), asdict(other)
        worst = {name: max(mine[name], theirs[name]) for name in ("center_m", "score")}
        return BoxTally(**{name: mine[name] + theirs[name] for name in mine} | worst)

    @property
    def matched_share(self) -> float:
        """Share of the boxes of both that have a partner; 1 where there are none."""
        return 2 * self.matched / (self.wanted + self.got) if self.wanted + self.got else 1.0

    @property
    def agreeing_share(self) -> float:
        """Share of the boxes of both that have a partner, or about which rounding decides."""
        both = self.wanted + self.got
        return 1 - self.unexplained / both if both else 1.0

    def to_json(self) -> dict[str, Any]:
        """Return counts, differences and shares as plain JSON values."""
        shares = {"matched_share": self.matched_share, "agreeing_share": self.agreeing_share}
        return {**asdict(self), **shares}


def tally_boxes(
    want: Detections, got: Detections, config: LidarConfig, center_m: float, score: float
) -> BoxTally:
    """Compare two results for one cloud.

    Args:
        want: Of the reference.
        got: Of the precision in question.
        config: Thresholds and heads of both.
        center_m: Centres of a pair are at most so far apart, in three dimensions.
        score: Their scores differ by at most this.
    """
    difference, scores = box_differences(want, got)
    centers = (boxes.boxes[:, CENTER].double() for boxes in (want, got))
    distance = torch.linalg.vector_norm(next(centers)[:, None] - next(centers)[None], dim=2)
    distance[torch.isinf(difference) | (scores > score)] = torch.inf  # another class, or unlike
    rows, columns = _pairs(distance, center_m)
    alone, new = torch.ones(len(want), dtype=torch.bool), torch.ones(len(got), dtype=torch.bool)
    alone[rows], new[columns] = False, False
    unlike = explain_unlike(want, got, alone, new, difference, config, score)
    return BoxTally(
        wanted=len(want),
        got=len(got),
        matched=len(rows),
        near_limit=unlike.near_limit,
        ties=unlike.ties,
        unexplained=unlike.unexplained,
        center_m=float(distance[rows, columns].max()) if len(rows) else 0.0,
        score=float(scores[rows, columns].max()) if len(rows) else 0.0,
    )


def _pairs(distance: torch.Tensor, limit: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows and columns of pairs, the closest first; each row is in one, and each column."""
    rows, columns = (distance <= limit).nonzero(as_tuple=True)
    order = distance[rows, columns].argsort(stable=True).tolist()
    chosen: list[int] = []
    taken_rows: set[int] = set()
    taken_columns: set[int] = set()
    for index in order:
        row, column = int(rows[index]), int(columns[index])
        if row not in taken_rows and column not in taken_columns:
            taken_rows.add(row)
            taken_columns.add(column)
            chosen.append(index)
    return rows[chosen], columns[chosen]
