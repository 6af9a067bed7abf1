"""Frames on disk: one file of 8 bytes a point for each drive, and an index beside them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.train.samples import Packed, Sample

INDEX = "index.json"
FORMAT = "driveRT_ros.frames"
VERSION = 2
REMAKE = "remove the folder and make the frames again."

T = TypeVar("T")


def write_shard(path: Path, samples: Sequence[Sample]) -> dict[str, object]:
    """Write the frames of one drive and return its entry of the index."""
    arrays: dict[str, np.ndarray] = {}
    for k, sample in enumerate(samples):
        arrays[f"xyz{k}"], arrays[f"rest{k}"] = sample.points.xyz, sample.points.rest
        arrays[f"boxes{k}"], arrays[f"labels{k}"] = sample.boxes, sample.labels
        arrays[f"num_points{k}"] = sample.num_points
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.savez(file, **arrays)
    part.replace(path)
    return {
        "file": path.name,
        "labels": [sample.labels.tolist() for sample in samples],
        "num_points": [sample.num_points.tolist() for sample in samples],
    }


def write_index(
    folder: Path,
    entries: Sequence[dict[str, object]],
    class_names: tuple[str, ...],
    source: str,
) -> None:
    """Write the index of a folder of shards.

    Args:
        folder: Of the shards.
        entries: As :func:`write_shard` returned them.
        class_names: What the labels mean.
        source: What the frames are made of.
    """
    tree = {
        "format": FORMAT,
        "version": VERSION,
        "source": source,
        "class_names": list(class_names),
        "shards": list(entries),
    }
    replace_index(folder, tree)


def replace_index(folder: Path, tree: Mapping[str, Any]) -> None:
    """Write an index in place of the older one: readers find either, and each of them whole."""
    part = folder / f"{INDEX}.part"
    part.write_text(json.dumps(tree), encoding="utf-8")
    os.replace(part, folder / INDEX)


def read_index(
    folder: Path,
    take: Callable[[Any], T],
    kind: tuple[str, int] | None = None,
    remedy: str = REMAKE,
) -> T:
    """Return what ``take`` makes of the index of a folder.

    Args:
        folder: Of the shards.
        take: Called with the tree; a value that it misses or cannot use makes the index unreadable.
        kind: Format and version that the index must be of; None where that does not matter.
        remedy: What to do where the index cannot be read.

    Raises:
        ConfigError: If the index cannot be read, or is of another kind.
    """
    path = folder / INDEX
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        found, taken = (tree.get("format"), tree.get("version")), take(tree)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"Index of frames '{path}' cannot be read: {error!r}; {remedy}") from None
    if kind not in (None, found):
        raise ConfigError(f"'{path}' is {found}, but what is wanted here is {kind}.")
    return taken


class Shards:
    """A folder of frames.

    Args:
        folder: With an index.
        class_names: What the labels must mean.

    Attributes:
        labels: Of each frame, the classes of its objects.
        num_points: Of each frame, the points of its objects.
        name: What the frames are, for reports.

    Raises:
        ConfigError: If the index cannot be read, is of another version or of other classes.
    """

    def __init__(self, folder: Path, class_names: tuple[str, ...]) -> None:
        def take(tree: Any) -> tuple[str, tuple[str, ...]]:
            shards = tree["shards"]
            self._where = [(s["file"], k) for s in shards for k in range(len(s["labels"]))]
            self.labels = [np.array(v, np.int64) for s in shards for v in s["labels"]]
            self.num_points = [np.array(v, np.int64) for s in shards for v in s["num_points"]]
            return str(tree["source"]), tuple(tree["class_names"])

        source, names = read_index(folder, take, (FORMAT, VERSION))
        if names != class_names:
            raise ConfigError(
                f"The frames in '{folder}' have the classes {', '.join(names)}, but the model has "
                f"{', '.join(class_names)}; make them again with this configuration."
            )
        if not self._where:
            raise ConfigError(f"'{folder}' holds no frame.")
        self.folder, self.name = folder, f"{source}, {len(self._where)} frames"

    def __len__(self) -> int:
        return len(self._where)

    def __getitem__(self, index: int) -> Sample:
        name, k = self._where[index]
        try:
            with np.load(self.folder / name, allow_pickle=False) as file:
                return Sample(
                    Packed(file[f"xyz{k}"], file[f"rest{k}"]),
                    file[f"boxes{k}"],
                    file[f"labels{k}"],
                    file[f"num_points{k}"],
                )
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"Frame {k} of '{self.folder / name}' cannot be read: {error!r}; make the frames "
                "again."
            ) from None
