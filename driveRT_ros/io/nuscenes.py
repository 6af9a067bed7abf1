"""The nuScenes data set, from the tables that come with it, as frames in order of time.

Source: the nuScenes schema (https://www.nuscenes.org/nuscenes#data-format). Quaternions there are
w, x, y, z; sizes are width, length, height; times are integer microseconds.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import CameraFrame, Detections, PointBatch, SceneFrame
from driveRT_ros.io.nuscenes_boxes import CLASS_OF_CATEGORY, annotated_boxes, info_boxes, pose_of

_log = logging.getLogger(__name__)

LIDAR = "LIDAR_TOP"
Record = dict[str, Any]


@dataclass(frozen=True)
class SceneInfo:
    """One drive of about 20 s."""

    token: str
    name: str
    description: str
    num_keyframes: int


class NuScenes:
    """Read-only view of a nuScenes folder.

    Args:
        root: Folder with ``samples``, ``sweeps`` and the tables. Files may also lie in it directly.
        version: Folder of the tables, such as ``v1.0-mini``; empty takes the only one.

    Raises:
        ConfigError: If there are no such tables.
    """

    def __init__(self, root: str | Path, version: str = "") -> None:
        self.root = Path(root)
        found = sorted(p.parent.name for p in self.root.glob("*/sample_data.json"))
        if not version and len(found) == 1:
            version = found[0]
        if not found:
            what = "holds no folder with nuScenes tables (such as v1.0-mini/sample_data.json)"
            if not self.root.is_dir():
                what = "is no folder"
            raise ConfigError(f"'{self.root}' {what}; name the root of the data set.")
        if version not in found:
            which = f"no nuScenes tables '{version}'" if version else "several nuScenes tables"
            raise ConfigError(
                f"'{self.root}' has {which}; name one of {', '.join(found)} with --version."
            )
        self.version = version

    def scenes(self) -> list[SceneInfo]:
        """Return the scenes in the order of their first keyframe."""
        times: dict[str, list[int]] = defaultdict(list)
        for sample in self._samples.values():
            times[sample["scene_token"]].append(sample["timestamp"])
        infos = [
            SceneInfo(s["token"], s["name"], s.get("description", ""), len(times[s["token"]]))
            for s in self._table("scene").values()
            if s["token"] in times
        ]
        return sorted(infos, key=lambda info: min(times[info.token]))

    def frames(
        self, scene: str = "", *, keyframes_only: bool = False, cameras: bool = True
    ) -> Iterator[SceneFrame]:
        """Yield the LiDAR sweeps of a scene (20 Hz), in order of time.

        Keyframes (2 Hz) carry ground truth, where the tables or an mmdetection3d info file
        ``*_info.json`` beside them have it, and the six images; sweeps in between carry neither.

        Args:
            scene: Scene name such as ``scene-0061``; empty takes all scenes, one after the other.
            keyframes_only: Leave out the sweeps in between.
            cameras: Whether to read images.

        Raises:
            ConfigError: If the scene or a point cloud is missing.
        """
        infos = self.scenes()
        chosen = [i for i in infos if not scene or scene in (i.name, i.token)]
        if not chosen:
            raise ConfigError(
                f"nuScenes {self.version} in '{self.root}' has no scene '{scene}'; it has: "
                f"{', '.join(i.name for i in infos) or 'none'}."
            )
        for info in chosen:
            for data in self._data_of(info.token, LIDAR):
                if data["is_key_frame"] or not keyframes_only:
                    yield self._frame(data, cameras)

    def _frame(self, data: Record, cameras: bool) -> SceneFrame:
        T_world_ego, T_ego_lidar = self._poses(data)
        truth: Detections | None = None
        images: tuple[CameraFrame, ...] = ()
        if data["is_key_frame"]:
            truth = self._ground_truth(data["sample_token"], T_world_ego @ T_ego_lidar)
            images = self._cameras(data["sample_token"]) if cameras else ()
        return SceneFrame(self._points(data), T_world_ego, T_ego_lidar, truth, images)

    def _points(self, data: Record) -> PointBatch:
        path = self._file(data)
        if path is None:
            raise ConfigError(
                f"Point cloud '{data['filename']}' is not in '{self.root}'. Where only keyframes "
                "are at hand, read those only."
            )
        values = np.fromfile(path, np.float32)
        if values.size % 5:
            raise ConfigError(f"Point cloud '{path}' does not hold 5 float32 values a point.")
        values = values.reshape(-1, 5)
        return PointBatch(
            xyz=np.ascontiguousarray(values[:, :3]),
            intensity=np.ascontiguousarray(values[:, 3]),
            time_lag_s=np.zeros(len(values), np.float32),  # the data set has no time a point
            ring=values[:, 4].astype(np.int32),
            stamp_ns=data["timestamp"] * 1000,
            frame_id=LIDAR,
        )

    def _ground_truth(self, sample_token: str, T_global_lidar: np.ndarray) -> Detections | None:
        if self._annotations is not None:
            records = [
                (a, name, self._track_numbers[a["instance_token"]])
                for a in self._annotations_by_sample[sample_token]
                if (name := self._class_name(a)) is not None
            ]
            return annotated_boxes(records, T_global_lidar, self._annotations, self._samples)
        info = self._infos.get(sample_token)
        return None if info is None else info_boxes(*info)

    def _class_name(self, annotation: Record) -> str | None:
        instance = self._table("instance")[annotation["instance_token"]]
        return CLASS_OF_CATEGORY.get(self._table("category")[instance["category_token"]]["name"])

    def _cameras(self, sample_token: str) -> tuple[CameraFrame, ...]:
        frames = []
        for data in self._keyframe_data[sample_token]:
            if self._sensor(data)["modality"] != "camera":
                continue
            path = self._file(data)
            if path is None:
                self._warn_once(f"Images such as '{data['filename']}' are missing and left out.")
                continue
            channel = self._channel(data)
            calibration = self._table("calibrated_sensor")[data["calibrated_sensor_token"]]
            frames.append(
                CameraFrame(
                    name=channel,
                    stamp_ns=data["timestamp"] * 1000,
                    frame_id=channel,
                    image=None,
                    encoded=path.read_bytes(),
                    format="png" if path.suffix == ".png" else "jpeg",
                    K=np.array(calibration["camera_intrinsic"], np.float64),
                    D=np.zeros(0),  # images of the data set are undistorted
                    distortion_model="plumb_bob",
                    size_wh=(data["width"], data["height"]),
                    T_ego_camera=pose_of(calibration),
                )
            )
        return tuple(sorted(frames, key=lambda f: f.name))

    def _poses(self, data: Record) -> tuple[np.ndarray, np.ndarray]:
        """Return T_world_ego and T_ego_sensor at the time of one recording."""
        return (
            pose_of(self._table("ego_pose")[data["ego_pose_token"]]),
            pose_of(self._table("calibrated_sensor")[data["calibrated_sensor_token"]]),
        )

    def _file(self, data: Record) -> Path | None:
        name = Path(data["filename"])
        candidates = (self.root / name, self.root / name.name)
        return next((path for path in candidates if path.exists()), None)

    def _data_of(self, scene_token: str, channel: str) -> list[Record]:
        return sorted(self._data_by_scene[scene_token, channel], key=lambda d: d["timestamp"])

    def _sensor(self, data: Record) -> Record:
        calibration = self._table("calibrated_sensor")[data["calibrated_sensor_token"]]
        return self._table("sensor")[calibration["sensor_token"]]

    def _channel(self, data: Record) -> str:
        return self._sensor(data)["channel"]

    def _warn_once(self, text: str) -> None:
        if text.split("'")[0] not in self._warned:
            self._warned.add(text.split("'")[0])
            _log.warning(text)

    @cached_property
    def _warned(self) -> set[str]:
        return set()

    @cached_property
    def _tables(self) -> dict[str, dict[str, Record]]:
        return {}

    def _table(self, name: str) -> dict[str, Record]:
        """Return the records of one table by token."""
        if name not in self._tables:
            path = self.root / self.version / f"{name}.json"
            try:
                records = json.loads(path.read_text(encoding="utf-8"))
                self._tables[name] = {r["token"]: r for r in records}
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"nuScenes table '{path}' cannot be read: {error}") from None
        return self._tables[name]

    @property
    def _samples(self) -> dict[str, Record]:
        return self._table("sample")

    @cached_property
    def _data_by_scene(self) -> dict[tuple[str, str], list[Record]]:
        groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
        for data in self._table("sample_data").values():
            sample = self._samples.get(data["sample_token"])
            if sample is not None:
                groups[sample["scene_token"], self._channel(data)].append(data)
        return groups

    @cached_property
    def _keyframe_data(self) -> dict[str, list[Record]]:
        groups: dict[str, list[Record]] = defaultdict(list)
        for data in self._table("sample_data").values():
            if data["is_key_frame"]:
                groups[data["sample_token"]].append(data)
        return groups

    @cached_property
    def _annotations(self) -> dict[str, Record] | None:
        """Annotations by token; None where the tables have none, as those of the test split."""
        exists = (self.root / self.version / "sample_annotation.json").exists()
        return self._table("sample_annotation") if exists else None

    @cached_property
    def _annotations_by_sample(self) -> dict[str, list[Record]]:
        groups: dict[str, list[Record]] = defaultdict(list)
        for annotation in (self._annotations or {}).values():
            groups[annotation["sample_token"]].append(annotation)
        return groups

    @cached_property
    def _track_numbers(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self._table("instance"))}

    @cached_property
    def _infos(self) -> dict[str, tuple[Record, Mapping[str, int]]]:
        infos: dict[str, tuple[Record, Mapping[str, int]]] = {}
        for path in sorted(self.root.glob("*_info.json")):
            try:
                tree = json.loads(path.read_text(encoding="utf-8"))
                categories = tree["metainfo"]["categories"]
                infos.update({info["token"]: (info, categories) for info in tree["data_list"]})
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"Info file '{path}' cannot be read: {error!r}") from None
        return infos
