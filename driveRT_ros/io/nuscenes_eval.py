"""What only an evaluation wants to know of nuScenes: splits, sample tokens, attributes, racks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import SceneFrame
from driveRT_ros.io.nuscenes import LIDAR, NuScenes, Record
from driveRT_ros.io.nuscenes_boxes import pose_of

_VAL = (
    "3 12-18 35-36 38-39 92-110 221 268-278 329-332 344-346 519-524 552-565 625-627 629-630 "
    "632-638 770-771 775 777-778 780-784 794-800 802 904-917 919-931 962-963 966-969 971-972 "
    "1059-1073"
)
_MINI_TRAIN, _MINI_VAL = "61 553 655 757 796 1077 1094 1100", "103 916"
SPLITS = ("all", "train", "val", "mini_train", "mini_val")
"""``all`` takes every scene of the tables; ``train`` those that are not in ``val``."""

_RACK = "static_object.bicycle_rack"


@dataclass(frozen=True, eq=False)
class KeyframeFacts:
    """What belongs to one annotated sample.

    Args:
        token: Sample token.
        attributes: Attribute of each ground truth, empty where it has none; None where the source
            of the ground truth does not know attributes.
        num_points: (M,) int64 LiDAR and radar points of each ground truth; None likewise.
        racks: (K, 7) float64 x, y, z, l, w, h, yaw of bicycle racks in the world.
    """

    token: str
    attributes: tuple[str, ...] | None
    num_points: npt.NDArray[np.int64] | None
    racks: npt.NDArray[np.float64]


class NuScenesEval(NuScenes):
    """A nuScenes folder to evaluate on; arguments and errors as its base."""

    def split_frames(self, split: str, *, keyframes_only: bool) -> Iterator[SceneFrame]:
        """Yield the frames of a split without images, scene by scene, in order of time.

        Args:
            split: One of :data:`SPLITS`, or the name of a scene.
            keyframes_only: Leave out the sweeps in between.

        Raises:
            ConfigError: If the tables hold no scene of the split, or a point cloud is missing.
        """
        for name in self.scene_names(split):
            yield from self.frames(name, keyframes_only=keyframes_only, cameras=False)

    def scene_names(self, split: str) -> list[str]:
        """Return the scenes of a split that the tables hold.

        Raises:
            ConfigError: If there is none.
        """
        names = [info.name for info in self.scenes()]
        chosen = [name for name in names if name == split or _belongs(name, split)]
        if not chosen:
            raise ConfigError(
                f"nuScenes {self.version} in '{self.root}' has no scene of split '{split}'; give "
                f"one of {', '.join(SPLITS)}, or one of its scenes: {', '.join(names) or 'none'}."
            )
        return chosen

    def num_keyframes(self, split: str) -> int:
        """Return how many samples the scenes of a split have."""
        chosen = set(self.scene_names(split))
        return sum(info.num_keyframes for info in self.scenes() if info.name in chosen)

    def facts_at(self, stamp_ns: int) -> KeyframeFacts | None:
        """Return what belongs to the LiDAR keyframe at a stamp; None for a sweep in between."""
        token = self._token_by_stamp.get(stamp_ns)
        if token is None:
            return None
        if self._annotations is None:
            return KeyframeFacts(token, None, None, np.zeros((0, 7)))
        mine = self._annotations_by_sample[token]
        objects = [a for a in mine if self._class_name(a) is not None]
        counts = [int(a.get("num_lidar_pts", 0)) + int(a.get("num_radar_pts", 0)) for a in objects]
        racks = [_box(a) for a in mine if self._category(a) == _RACK]
        return KeyframeFacts(
            token,
            self._attributes(objects),
            np.array(counts, np.int64),
            np.array(racks, np.float64).reshape(-1, 7),
        )

    def _attributes(self, annotations: list[Record]) -> tuple[str, ...] | None:
        if not (self.root / self.version / "attribute.json").exists():
            return None
        table = self._table("attribute")
        tokens = [a.get("attribute_tokens", []) for a in annotations]
        return tuple(table[t[0]]["name"] if len(t) == 1 else "" for t in tokens)

    def _category(self, annotation: Record) -> str:
        instance = self._table("instance")[annotation["instance_token"]]
        return str(self._table("category")[instance["category_token"]]["name"])

    @cached_property
    def _token_by_stamp(self) -> dict[int, str]:
        return {
            data["timestamp"] * 1000: data["sample_token"]
            for records in self._keyframe_data.values()
            for data in records
            if self._channel(data) == LIDAR
        }


def _belongs(scene: str, split: str) -> bool:
    number = int(scene.rpartition("-")[2]) if scene.rpartition("-")[2].isdigit() else -1
    if split == "train":
        return number not in _numbers(_VAL)
    lists = {"val": _VAL, "mini_train": _MINI_TRAIN, "mini_val": _MINI_VAL}
    return split == "all" or (split in lists and number in _numbers(lists[split]))


def _numbers(text: str) -> set[int]:
    ends = ([int(n) for n in part.split("-")] for part in text.split())
    return {number for end in ends for number in range(end[0], end[-1] + 1)}


def _box(annotation: Record) -> list[float]:
    pose = pose_of(annotation)
    width, length, height = annotation["size"]
    return [*pose[:3, 3], length, width, height, float(np.arctan2(pose[1, 0], pose[0, 0]))]
