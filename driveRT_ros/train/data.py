"""Batches for training, in an order that depends on the seed and the step alone.

Frames are chosen, filled up and collected by worker processes. They come either from shards on
disk, frames with rare classes more often, or from drives that the workers make meanwhile; a frame
that was just made is then seen several times, each time augmented anew, so that a fast GPU need
not wait.
"""

from __future__ import annotations

import signal
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.train.augment import Cutting, Database, Motion, draw_motion, paste, thin_sweeps
from driveRT_ros.train.config import TrainConfig
from driveRT_ros.train.drives import (
    Drives,
    RecordedDrives,
    SimulatedDrives,
    all_cores,
    each_drive,
    is_nuscenes,
)
from driveRT_ros.train.samples import STEP_M, STEP_S, Sample
from driveRT_ros.train.shards import INDEX, Shards

_ORDER, _PICK, _CHANGE, _CUT = range(4)
"""Second key of a random stream: what it decides."""


@dataclass(frozen=True)
class Place:
    """Where one process stands among all that train.

    Args:
        rank: Of this process.
        world: Processes that train.
    """

    rank: int = 0
    world: int = 1


@dataclass(eq=False)
class Batch:
    """Several frames, as NumPy arrays while they travel and as tensors once they arrived.

    Arrays pass between processes through pipes: unlike tensors they need no shared memory, which
    containers often have little of.

    Args:
        xyz: (N, 3) int16 packed points, frame after frame.
        rest: (N, 2) uint8 packed intensity and time lag.
        matrices: (B, 3, 3) float32 what the points of each frame are multiplied by.
        boxes: (M, 9) float32, already changed.
        labels: (M,) int64.
        point_counts: Points of each frame.
        box_counts: Boxes of each frame.
    """

    xyz: npt.NDArray[np.int16] | torch.Tensor
    rest: npt.NDArray[np.uint8] | torch.Tensor
    matrices: npt.NDArray[np.float32] | torch.Tensor
    boxes: npt.NDArray[np.float32] | torch.Tensor
    labels: npt.NDArray[np.int64] | torch.Tensor
    point_counts: list[int]
    box_counts: list[int]

    def __len__(self) -> int:
        return len(self.point_counts)

    def _map(self, change) -> Batch:
        names = ("xyz", "rest", "matrices", "boxes", "labels")
        return replace(self, **{n: change(torch.as_tensor(getattr(self, n))) for n in names})

    def pin_memory(self) -> Batch:
        """Return tensors from which a copy to the GPU needs no wait."""
        return self._map(torch.Tensor.pin_memory)

    def to(self, device: torch.device) -> Batch:
        """Return tensors on a device."""
        return self._map(lambda t: t.to(device, non_blocking=True))

    def points(self) -> torch.Tensor:
        """Return (N, 5) float32 points of all frames, changed; needs tensors."""
        points = torch.empty(len(self.xyz), 5, device=self.xyz.device)
        parts = points[:, :3].split(self.point_counts)
        for part, xyz, matrix in zip(parts, self.xyz.split(self.point_counts), self.matrices):
            # Three products a point; a matrix product could be rounded to fewer bits.
            part.copy_(((xyz * STEP_M)[:, None, :] * matrix).sum(dim=2))
        points[:, 3] = self.rest[:, 0]
        points[:, 4] = self.rest[:, 1] * STEP_S
        return points


def collate(chosen: Sequence[tuple[Sample, Motion]]) -> Batch:
    """Join frames and their changes."""
    samples, motions = zip(*chosen)
    return Batch(
        np.concatenate([s.points.xyz for s in samples]),
        np.concatenate([s.points.rest for s in samples]),
        np.stack([m.matrix for m in motions]),
        np.concatenate([m.boxes(s.boxes) for s, m in chosen]),
        np.concatenate([s.labels for s in samples]),
        [len(s.points) for s in samples],
        [len(s.boxes) for s in samples],
    )


def changed(
    sample: Sample, database: Database, config: TrainConfig, keys: Sequence[int]
) -> tuple[Sample, Motion]:
    """Fill a frame up, take sweeps from it, drop objects hardly seen, and draw how it is changed.

    Args:
        sample: The frame.
        database: Objects to paste.
        config: Augmentation, and what counts as seen.
        keys: Of the random stream; a place in the order of training.
    """
    rng = np.random.default_rng([config.seed, _CHANGE, *keys])
    sample = thin_sweeps(paste(sample, database, config.augment, rng), config.augment, rng)
    seen = sample.num_points >= config.data.min_points
    sample = Sample(sample.points, sample.boxes[seen], sample.labels[seen], sample.num_points[seen])
    return sample, draw_motion(config.augment, rng)


# ---- from shards --------------------------------------------------------------------------------


def draw_weights(
    labels: Sequence[npt.NDArray[np.int64]], num_classes: int, balance: float
) -> npt.NDArray[np.float64]:
    """Return how often each frame is drawn, adding up to 1.

    Args:
        labels: Classes of the objects of each frame.
        num_classes: Of all heads.
        balance: 0 draws all frames alike; 1 gives every class that occurs the same share.

    Source: the class-balanced sampling of Zhu et al., "Class-balanced grouping and sampling for
    point cloud 3D object detection", 2019.
    """
    present = np.stack([np.bincount(v, minlength=num_classes) > 0 for v in labels])
    frames = present.sum(axis=0)
    occurs = frames > 0
    even = np.full(len(labels), 1.0 / len(labels))
    if not occurs.any():
        return even
    by_class = (present[:, occurs] / frames[occurs]).sum(axis=1) / occurs.sum()
    return (1.0 - balance) * even + balance * by_class


def epoch_order(
    weights: npt.NDArray[np.float64], rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Return as many frames as there are, each as often as its weight says, in random order.

    The counts are rounded by one random offset for all (systematic resampling), so that frames of
    equal weight come once each.
    """
    count = len(weights)
    marks = (np.arange(count) + rng.random()) / count
    order = np.searchsorted(np.cumsum(weights / weights.sum()), marks, side="right")
    return rng.permutation(np.minimum(order, count - 1))


class _ShardFrames(Dataset):
    def __init__(self, shards: Shards, database: Database, config: TrainConfig) -> None:
        self._shards, self._database, self._config = shards, database, config

    def __getitem__(self, key: tuple[int, int]) -> tuple[Sample, Motion]:
        position, index = key
        return changed(self._shards[index], self._database, self._config, (position,))


class _Positions:
    """Yields, batch after batch, the positions in the order of training and their frames."""

    def __init__(self, shards: Shards, config: TrainConfig, place: Place, first_step: int) -> None:
        self._config, self._place, self._first = config, place, first_step
        seen = [
            labels[counts >= config.data.min_points]
            for labels, counts in zip(shards.labels, shards.num_points)
        ]
        classes = len(config.model.class_names)
        self._weights = draw_weights(seen, classes, config.data.balance)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        size, (seed, length) = self._config.data.batch_size, (self._config.seed, len(self._weights))
        orders: dict[int, npt.NDArray[np.int64]] = {}
        step = self._first
        while True:
            start = (step * self._place.world + self._place.rank) * size
            batch = []
            for position in range(start, start + size):
                epoch, offset = divmod(position, length)
                if epoch not in orders:
                    rng = np.random.default_rng([seed, _ORDER, epoch])
                    orders = {epoch: epoch_order(self._weights, rng)}
                batch.append((position, int(orders[epoch][offset])))
            yield batch
            step += 1


# ---- from drives made meanwhile -----------------------------------------------------------------


class _Stream(IterableDataset):
    """The batches of one worker after the other: batch ``step`` is made by worker ``step % W``."""

    def __init__(
        self,
        drives: Drives,
        database: Database,
        config: TrainConfig,
        place: Place,
        first_step: int,
        workers: int,
    ) -> None:
        self._drives, self._database, self._config = drives, database, config
        self._place, self._first, self._workers = place, first_step, workers
        self._made: OrderedDict[int, list[Sample]] = OrderedDict()

    def __iter__(self) -> Iterator[Batch]:
        # The loader asks its workers in turn from its first one, wherever training goes on.
        step = self._first + get_worker_info().id
        size = self._config.data.batch_size
        while True:
            me = self._place.rank * self._workers + step % self._workers
            start = step // self._workers * size
            yield collate([self._draw(me, number) for number in range(start, start + size)])
            step += self._workers

    def _draw(self, me: int, number: int) -> tuple[Sample, Motion]:
        """Return what worker ``me`` of all processes gives as its ``number``-th frame."""
        data = self._config.data
        newest, again = divmod(number, data.reuse)
        frame = newest
        if again:
            rng = np.random.default_rng([self._config.seed, _PICK, me, number])
            frame = int(rng.integers(max(newest - data.window + 1, 0), newest + 1))
        return changed(self._frame(me, frame), self._database, self._config, (me, number))

    def _frame(self, me: int, frame: int) -> Sample:
        each = self._config.data.frames_per_drive
        everyone = self._place.world * self._workers
        turn, within = divmod(frame, each)
        visit, drive = 0, me + turn * everyone
        if self._drives.count is not None:
            visit, drive = divmod(drive, self._drives.count)
        if drive not in self._made:
            self._made[drive] = self._drives.samples(drive)
            while len(self._made) > self._config.data.window // each + 2:
                self._made.popitem(last=False)
        samples = self._made[drive]
        if not samples:
            raise ConfigError(f"Drive {drive} of {self._drives.name} has no annotated frame.")
        return samples[(visit * each + within) % len(samples)]


# ---- both ---------------------------------------------------------------------------------------


def open_data(where: str, config: TrainConfig) -> Drives | Shards:
    """Return what ``--data`` names: ``sim``, a folder of shards, or a nuScenes folder.

    Raises:
        ConfigError: If it is none of these.
    """
    if where == "sim":
        return SimulatedDrives(config)
    folder = Path(where)
    if (folder / INDEX).is_file():
        return Shards(folder, config.model.class_names)
    if is_nuscenes(folder):
        return RecordedDrives(folder, config)
    raise ConfigError(
        f"Option --data takes 'sim', a folder that 'drivert train --make-shards' wrote, or a "
        f"nuScenes folder; '{where}' is none of these."
    )


def build_database(
    data: Drives | Shards,
    config: TrainConfig,
    workers: int,
    told: Callable[[int, int], object] = lambda done, total: None,
) -> Database:
    """Return the objects to paste, the same ones each time.

    Args:
        data: Shards or drives.
        config: Which classes are pasted, out of how many drives.
        workers: Processes.
        told: Called with the drives or frames done so far, and their number.
    """
    database = Database(len(config.model.class_names), config.augment)
    if not any(config.augment.paste_to):
        return database
    drives = config.augment.database_drives
    if isinstance(data, Shards):
        # Rare classes first: frames as they come hold hardly any of them.
        weights = draw_weights(data.labels, len(database.counts), 1.0)
        order = epoch_order(weights, np.random.default_rng([config.seed, _CUT])).tolist()
        numbers = list(dict.fromkeys(order))[: drives * config.data.frames_per_drive]
    else:
        numbers = list(range(drives if data.count is None else min(drives, data.count)))
    found = {}
    for number, objects in each_drive(_objects_of, data, iter(numbers), workers, config):
        found[number] = objects
        told(len(found), len(numbers))
    for number in numbers:
        database.take(found[number])
    return database


def _objects_of(data: Drives | Shards, number: int, config: TrainConfig) -> list[Cutting]:
    database = Database(len(config.model.class_names), config.augment)
    for sample in [data[number]] if isinstance(data, Shards) else data.samples(number):
        database.add(sample)
    return database.objects()


def make_loader(
    data: Drives | Shards,
    database: Database,
    config: TrainConfig,
    place: Place,
    first_step: int,
    pin_memory: bool,
) -> DataLoader:
    """Return the batches from ``first_step`` on, without end.

    Args:
        data: Shards or drives.
        database: Objects to paste.
        config: Batch size, workers, order.
        place: Of this process.
        first_step: Where training goes on; the batches are those of a run that never stopped.
        pin_memory: For copies to a GPU.
    """
    workers = num_workers(config, place)
    common = {
        "num_workers": workers,
        "multiprocessing_context": "fork",
        "pin_memory": pin_memory,
        "worker_init_fn": _quiet,
        "prefetch_factor": 3,
        "generator": torch.Generator().manual_seed(0),  # the global one stays as it is
    }
    if isinstance(data, Shards):
        frames = _ShardFrames(data, database, config)
        positions = _Positions(data, config, place, first_step)
        return DataLoader(frames, batch_sampler=positions, collate_fn=collate, **common)
    stream = _Stream(data, database, config, place, first_step, workers)
    return DataLoader(stream, batch_size=None, **common)


def num_workers(config: TrainConfig, place: Place) -> int:
    """Return the processes that make batches for one that trains."""
    return config.data.workers or max(all_cores() // place.world, 1)


def _quiet(_: int) -> None:
    # Ctrl-C is for the process that trains: it stops cleanly and then ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
