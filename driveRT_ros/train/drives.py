"""Where frames come from: drives of the simulator or scenes of nuScenes, each made on demand."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.io.nuscenes_eval import NuScenesEval
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.simulate import simulate
from driveRT_ros.train.config import TrainConfig
from driveRT_ros.train.samples import Sample, samples_of
from driveRT_ros.train.shards import INDEX, read_index, write_index, write_shard

_VARIETY = 7919  # second key of the stream that draws what differs from drive to drive
_INDEX_EVERY_S = 5.0
_INDEX_SHARE = 0.05
"""Part of the time that writing the index may take: it grows with the number of drives."""


class Drives(Protocol):
    """Numbered drives; the same number gives the same frames in every process.

    Attributes:
        count: How many there are; None for as many as are asked for.
        name: What they are, for reports.
    """

    count: int | None
    name: str

    def samples(self, drive: int) -> list[Sample]:
        """Return the annotated frames of one drive."""
        ...


class SimulatedDrives:
    """Drives of the simulator, each with its own densities, speed, mounting and weather.

    Args:
        config: Seeds, sweeps and frames.
    """

    count: int | None = None
    name = "simulator"

    def __init__(self, config: TrainConfig) -> None:
        self._config = config

    def samples(self, drive: int) -> list[Sample]:
        """See :class:`Drives`."""
        data, past = self._config.data, self._config.densification_params.num_past_frames

        def wanted(sweep: int) -> bool:
            return sweep >= past and (sweep - past) % data.sweeps_between_frames == 0

        return list(
            samples_of(
                simulate(self.simulation(drive), wanted),
                self._config.densification_params,
                self._config.model.class_names,
            )
        )

    def simulation(self, drive: int) -> SimConfig:
        """Return what is simulated for one drive."""
        data = self._config.data
        sweeps = self._config.densification_params.num_past_frames + 1
        sweeps += (data.frames_per_drive - 1) * data.sweeps_between_frames
        fixed = {"num_sweeps": sweeps, "ground_truth_min_points": 0}
        return varied_drive(data.first_seed + drive, data.variety, fixed)


def varied_drive(seed: int, spread: float, fixed: Mapping[str, Any]) -> SimConfig:
    """Return a drive whose densities, speed, mounting and weather are drawn from its seed.

    Args:
        seed: Of the drive.
        spread: Scale of what is drawn; 0 is none.
        fixed: Other parameters by dotted name.
    """
    rng = np.random.default_rng([seed, _VARIETY])
    traffic, roadworks, scenery = np.exp(0.5 * spread * rng.uniform(-1.0, 1.0, 3))
    weather = rng.random() < 0.15 * spread
    clutter = 0.02 * rng.random() if weather else 0.0
    tilt = 0.01 * spread * rng.uniform(-1.0, 1.0, 2)
    height = 1.84 + 0.15 * spread * rng.uniform(-1.0, 1.0)
    speed = 9.0 * (1.0 + min(spread, 1.0) * rng.uniform(-1.0, 0.6))
    return SimConfig.from_dict(
        {
            "seed": seed,
            **fixed,
            "lidar.clutter": clutter,
            "lidar.pitch_rad": 0.0242 + tilt[0],
            "lidar.roll_rad": 0.0059 + tilt[1],
            "lidar.translation_xyz": (0.9437, 0.0, height),
            "traffic.ego_speed_mps": float(speed),
            "traffic.vehicles": float(min(traffic, 2.0)),
            "traffic.parked": float(min(traffic, 1.8)),
            "traffic.pedestrians": float(min(1.3 * traffic, 3.0)),
            "traffic.cyclists": float(min(1.5 * traffic, 3.0)),
            "traffic.roadworks": float(min(1.5 * roadworks, 5.0)),
            "scenery.buildings": float(min(scenery, 1.6)),
            "scenery.vegetation": float(min(scenery, 4.0)),
        }
    )


class RecordedDrives:
    """The scenes of a split of a nuScenes folder.

    Args:
        root: The folder.
        config: Split, sweeps and classes.

    Raises:
        ConfigError: If the folder holds no scene of the split.
    """

    def __init__(self, root: Path, config: TrainConfig) -> None:
        self._config, self._tables = config, NuScenesEval(root)
        self._scenes = self._tables.scene_names(config.data.split)
        self.count: int | None = len(self._scenes)
        self.name = f"nuScenes {self._tables.version}, split {config.data.split}"

    def samples(self, drive: int) -> list[Sample]:
        """See :class:`Drives`."""
        rules = self._config.densification_params
        alone = rules.num_past_frames == 0  # then the sweeps in between need not be there
        frames = self._tables.frames(self._scenes[drive], keyframes_only=alone, cameras=False)
        return list(samples_of(frames, rules, self._config.model.class_names))


def is_nuscenes(folder: Path) -> bool:
    """Return whether a folder holds nuScenes tables."""
    return any(folder.glob("*/sample_data.json"))


def all_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def each_drive(
    work: Callable[..., Any], data: Any, numbers: Iterator[int], workers: int, *extra: Any
) -> Iterator[tuple[int, Any]]:
    """Yield ``(number, work(data, number, *extra))`` as they get done, on several processes.

    Args:
        work: Function of a module.
        data: Drives or shards.
        numbers: Which ones; taken when a process is free.
        workers: Processes.
        extra: More arguments.
    """
    with ProcessPoolExecutor(workers, get_context("fork"), torch.set_num_threads, (1,)) as pool:
        running: dict[Future[Any], int] = {}
        try:
            while True:
                while len(running) < 2 * workers and (number := next(numbers, None)) is not None:
                    running[pool.submit(work, data, number, *extra)] = number
                if not running:
                    return
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(done), done.result()
        finally:
            for future in running:
                future.cancel()


def make_shards(
    drives: Drives,
    config: TrainConfig,
    folder: Path,
    count: int,
    workers: int,
    on_done: Callable[[int], bool],
) -> int:
    """Write drives 0 to ``count`` - 1 as shards; those that are there already are kept.

    Args:
        drives: What to write.
        config: Classes.
        folder: Made where it does not exist.
        count: Drives.
        workers: Processes.
        on_done: Called with the number of drives there are; True stops early. What was written
            until then can be trained on, and the same call goes on from there.

    Returns:
        Drives in the folder.

    Raises:
        ConfigError: If the folder holds something else.
    """
    names = config.model.class_names

    def index(entries: Sequence[dict[str, Any]]) -> None:
        write_index(folder, entries, names, drives.name)

    return fill_folder(folder, count, workers, on_done, index, _write_drive, drives)


def fill_folder(
    folder: Path,
    count: int,
    workers: int,
    on_done: Callable[[int], bool],
    write_index: Callable[[Sequence[dict[str, Any]]], None],
    write_drive: Callable[[Any, int, Path], dict[str, Any]],
    drives: Any,
) -> int:
    """Write the drives that a folder does not have yet, and its index.

    Args:
        folder: Made where it does not exist.
        count: Drives 0 to ``count`` - 1 are wanted.
        workers: Processes.
        on_done: Called with the number of drives there are; True stops early.
        write_index: Called with the entries of all drives: at first, in the end, and every few
            seconds in between, so that a process that is killed loses no more than that.
        write_drive: Function of a module that writes one drive and returns its entry.
        drives: What it writes.

    Returns:
        Drives in the folder.

    Raises:
        ConfigError: If the folder holds something else, or an index that cannot be read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / INDEX).exists() and any(folder.iterdir()):
        raise ConfigError(f"Folder '{folder}' holds other files; choose an empty one.")
    entries = _present(folder)
    missing = iter([number for number in range(count) if number not in entries])
    stopped = False

    def numbers() -> Iterator[int]:
        for number in missing:
            if stopped:
                return
            yield number

    def write() -> float:
        started = time.monotonic()
        write_index([entries[k] for k in sorted(entries)])
        ended = time.monotonic()
        return ended + max(_INDEX_EVERY_S, (ended - started) / _INDEX_SHARE)

    due_s = write()
    for number, entry in each_drive(write_drive, drives, numbers(), workers, folder):
        entries[number] = entry
        if time.monotonic() >= due_s:
            due_s = write()
        stopped = on_done(len(entries)) or stopped
    write()
    return len(entries)


def _shard_name(number: int) -> str:
    return f"drive-{number:06d}.npz"


def _write_drive(drives: Drives, number: int, folder: Path) -> dict[str, object]:
    return write_shard(folder / _shard_name(number), drives.samples(number))


def _present(folder: Path) -> dict[int, dict[str, object]]:
    if not (folder / INDEX).exists():
        return {}
    return read_index(folder, lambda tree: {int(e["file"][6:12]): e for e in tree["shards"]})
