"""Changes of a frame that leave its objects what they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from driveRT_ros.core.nms import rotated_iou_bev
from driveRT_ros.train.config import AugmentConfig
from driveRT_ros.train.samples import Floats, Packed, Sample, points_in_boxes, unpack


@dataclass(frozen=True, eq=False)
class Motion:
    """A change of the whole frame: mirror, then turn, then scale.

    Args:
        linear_xy: (2, 2) float64 of x and y, orthogonal.
        scale: Of all lengths.
    """

    linear_xy: npt.NDArray[np.float64]
    scale: float

    @property
    def matrix(self) -> Floats:
        """(3, 3) float32: column vectors of the old frame to the new one."""
        full = np.eye(3)
        full[:2, :2] = self.linear_xy
        return (full * self.scale).astype(np.float32)

    def boxes(self, boxes: Floats) -> Floats:
        """Return boxes (M, 9) in the new frame."""
        out = boxes.astype(np.float64)
        heading = np.stack((np.cos(out[:, 6]), np.sin(out[:, 6])), axis=1) @ self.linear_xy.T
        out[:, :2] = out[:, :2] @ self.linear_xy.T
        out[:, 6] = np.arctan2(heading[:, 1], heading[:, 0])
        out[:, 7:9] = out[:, 7:9] @ self.linear_xy.T
        out[:, [0, 1, 2, 3, 4, 5, 7, 8]] *= self.scale
        return out.astype(np.float32)


def draw_motion(config: AugmentConfig, rng: np.random.Generator) -> Motion:
    """Draw a change; the same numbers are taken from ``rng`` whatever the configuration."""
    mirror_x, mirror_y = rng.random(2) < 0.5
    angle = config.max_rotation_rad * rng.uniform(-1.0, 1.0)
    scale = 1.0 + config.max_scale * rng.uniform(-1.0, 1.0)
    turn = np.array([(np.cos(angle), -np.sin(angle)), (np.sin(angle), np.cos(angle))])
    mirror = (config.flip_x and mirror_x, config.flip_y and mirror_y)
    return Motion(turn @ np.diag(np.where(mirror, -1.0, 1.0)), scale)


@dataclass(frozen=True, eq=False)
class Cutting:
    """One object cut out of a frame.

    Args:
        points: Its points of all sweeps, where they were in their frame.
        box: (9,) float32.
        label: Its class over all heads.
    """

    points: Packed
    box: Floats
    label: int


class Database:
    """Objects to paste, as many of each class as asked for.

    Args:
        num_classes: Of all heads.
        config: Size, and fewest points of an object.
    """

    def __init__(self, num_classes: int, config: AugmentConfig) -> None:
        self._config = config
        self._objects: list[list[Cutting]] = [[] for _ in range(num_classes)]

    @property
    def counts(self) -> tuple[int, ...]:
        """Objects of each class."""
        return tuple(map(len, self._objects))

    def add(self, sample: Sample) -> None:
        """Cut the objects with enough points out of a frame."""
        enough = sample.num_points >= self._config.database_min_points
        rows = np.nonzero(enough)[0]
        points = unpack(sample.points)
        for k, inside in zip(rows.tolist(), points_in_boxes(points, sample.boxes[rows])):
            label = int(sample.labels[k])
            cut = Packed(sample.points.xyz[inside], sample.points.rest[inside])
            self._append(Cutting(cut, sample.boxes[k], label))

    def _append(self, cutting: Cutting) -> None:
        mine = self._objects[cutting.label]
        mine.append(cutting)
        del mine[: -self._config.database_per_class]  # the oldest of a full class go

    def objects(self) -> list[Cutting]:
        """Return all objects, class after class."""
        return [cutting for mine in self._objects for cutting in mine]

    def take(self, objects: Iterable[Cutting]) -> None:
        """Add objects of another database."""
        for cutting in objects:
            self._append(cutting)

    def draw(self, wanted: Sequence[int], rng: np.random.Generator) -> list[Cutting]:
        """Draw objects without repetition, as many of each class as wanted and there are."""
        drawn = []
        for mine, count in zip(self._objects, wanted):
            rows = rng.permutation(len(mine))[: max(count, 0)]
            drawn += [mine[row] for row in rows.tolist()]
        return drawn


def paste(
    sample: Sample, database: Database, config: AugmentConfig, rng: np.random.Generator
) -> Sample:
    """Fill a frame up with objects at the places they were cut from.

    They collide with nothing: objects with few points, or of classes that the frame has more of
    than asked for, make way; others are in the way. In a full street rare and large objects hardly
    find a place otherwise. What stood where an object is pasted goes: its points are cut out of
    the frame.

    Args:
        sample: The frame.
        database: Objects.
        config: Objects of each class to fill up to.
        rng: Chooses.

    Source: Yan, Mao, Li, "SECOND: Sparsely embedded convolutional detection", Sensors 2018.
    """
    if not config.paste_to or rng.random() >= config.paste_share:
        return sample
    seen = sample.num_points >= config.database_min_points
    missing = np.array(config.paste_to)
    missing = missing - np.bincount(sample.labels[seen], minlength=len(missing))
    drawn = database.draw(tuple(missing), rng)
    chosen, stays = _places(sample, drawn, seen, -missing)
    if not chosen:
        return sample
    new = [drawn[k] for k in chosen]
    points, boxes = unpack(sample.points), np.stack([cutting.box for cutting in new])
    # The room an object takes is free of points of any sweep; who makes way takes theirs along.
    still = boxes.copy()
    still[:, 7:9] = 0.0
    blocked = np.zeros(len(points), bool)
    for rows in points_in_boxes(points, np.concatenate((still, sample.boxes[~stays]))):
        blocked[rows] = True
    kept = Packed(sample.points.xyz[~blocked], sample.points.rest[~blocked])
    parts = [kept, *(cutting.points for cutting in new)]
    return Sample(
        Packed(np.concatenate([p.xyz for p in parts]), np.concatenate([p.rest for p in parts])),
        np.concatenate((sample.boxes[stays], boxes)),
        np.concatenate((sample.labels[stays], [cutting.label for cutting in new])),
        np.concatenate((sample.num_points[stays], [len(cutting.points) for cutting in new])),
    )


def thin_sweeps(sample: Sample, config: AugmentConfig, rng: np.random.Generator) -> Sample:
    """Take past sweeps from a frame: all of them in half of the frames that lose any.

    Args:
        sample: The frame.
        config: How many frames lose sweeps.
        rng: Chooses.
    """
    if not config.fewer_sweeps_share or rng.random() >= config.fewer_sweeps_share:
        return sample
    lags = sample.points.rest[:, 1]
    if not len(lags):
        return sample
    sweeps = np.flatnonzero(np.bincount(lags))
    oldest = 0 if rng.random() < 0.5 else int(sweeps[rng.integers(len(sweeps))])
    keep = lags <= oldest
    points = Packed(sample.points.xyz[keep], sample.points.rest[keep])
    counts = [len(rows) for rows in points_in_boxes(unpack(points), sample.boxes)]
    return Sample(points, sample.boxes, sample.labels, np.array(counts, np.int64))


def _places(
    sample: Sample,
    drawn: Sequence[Cutting],
    seen: npt.NDArray[np.bool_],
    spare: npt.NDArray[np.int64],
) -> tuple[list[int], npt.NDArray[np.bool_]]:
    """Return which drawn objects find a place, and which of the frame stay.

    Args:
        sample: The frame.
        drawn: Objects to place, one after the other.
        seen: Which objects of the frame have enough points to be missed.
        spare: Of each class, how many of these may make way.
    """
    old = len(sample.boxes)
    chosen: list[int] = []
    stays = np.ones(old, bool)
    if not drawn:
        return chosen, stays
    every = torch.from_numpy(np.concatenate((sample.boxes, np.stack([c.box for c in drawn]))))
    hits = (rotated_iou_bev(every[old:], every) > 0).numpy()
    for k in range(len(drawn)):
        leave = hits[k, :old] & stays
        missed = sample.labels[leave & seen]
        left = spare - np.bincount(missed, minlength=len(spare))
        if hits[k, [old + other for other in chosen]].any() or (left[missed] < 0).any():
            continue
        chosen.append(k)
        stays &= ~leave
        spare = left
    return chosen, stays
