"""The KITTI object data set as frames; its frames are single moments, not a drive.

Source: the devkit of the KITTI object benchmark (Geiger et al., 2012). The rectified camera frame
is x right, y down, z forward; a label gives the bottom centre of a box there, its height, width and
length, and ``rotation_y`` about the y axis with 0 along +x. The LiDAR frame is x forward, y left,
z up.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from pathlib import Path

import cv2
import numpy as np

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import (
    NUSCENES_CLASSES,
    CameraFrame,
    Detections,
    PointBatch,
    SceneFrame,
)
from driveRT_ros.io.dont_care import DontCare
from driveRT_ros.io.nuscenes_boxes import ground_truth
from driveRT_ros.io.rigid import inverse

CLASS_OF_TYPE: dict[str, str] = {
    "Car": "car",
    "Van": "car",  # nuScenes counts vans as cars
    "Truck": "truck",
    "Pedestrian": "pedestrian",
    "Person_sitting": "pedestrian",
    "Cyclist": "bicycle",  # a box around rider and bicycle, as nuScenes has it
}
"""KITTI types with a nuScenes class; trams and 'Misc' have none and are left out."""
DONT_CARE = "DontCare"

FORWARD_YAW_DEG = 0.0
"""Where ahead is in a cloud: along +x of the LiDAR."""

LIDAR_HEIGHT_M = 1.73
"""Height of the Velodyne above the ground, from the sensor setup of KITTI."""

PERIOD_NS = 100_000_000
LIDAR = "LIDAR_TOP"
CAMERA = "CAM_FRONT"


def frames(root: str | Path, *, intensity_scale: float = 1.0) -> Iterator[SceneFrame]:
    """Yield every frame of a folder, 0.1 s apart, in the order of their numbers.

    The ego frame is on the ground below the LiDAR; its pose in a world is unknown, and so is
    velocity. Reflectance is 0..1 as recorded: whoever feeds a network trained on 0..255 sets
    ``intensity_scale`` here, or ``input.intensity_scale`` of the node, to 255. It also has to know
    that +x is ahead: ``input.forward_yaw_deg`` is :data:`FORWARD_YAW_DEG`.

    Args:
        root: Folder with ``velodyne`` and ``calib`` (and ``label_2``, ``image_2``), or its parent
            with ``training``.
        intensity_scale: Factor on reflectance.

    Raises:
        ConfigError: If there is no frame, or a file cannot be read.
    """
    for frame, _ in frames_and_regions(root, intensity_scale=intensity_scale):
        yield frame


def frames_and_regions(
    root: str | Path, *, intensity_scale: float = 1.0
) -> Iterator[tuple[SceneFrame, DontCare]]:
    """Yield every frame as :func:`frames` does, and where its image is not labelled."""
    root = Path(root)
    folder = root if (root / "velodyne").is_dir() else root / "training"
    clouds = sorted((folder / "velodyne").glob("*.bin"))
    if not clouds:
        raise ConfigError(f"'{root}' has no KITTI frames: 'velodyne/*.bin' is missing.")
    for index, cloud in enumerate(clouds):
        yield _frame(folder, cloud, (index + 1) * PERIOD_NS, intensity_scale)


def _frame(
    folder: Path, cloud: Path, stamp_ns: int, intensity_scale: float
) -> tuple[SceneFrame, DontCare]:
    values = np.fromfile(cloud, np.float32)
    if values.size % 4:
        raise ConfigError(f"Point cloud '{cloud}' does not hold 4 float32 values a point.")
    values = values.reshape(-1, 4)
    points = PointBatch(
        xyz=np.ascontiguousarray(values[:, :3]),
        intensity=values[:, 3] * np.float32(intensity_scale),
        time_lag_s=np.zeros(len(values), np.float32),
        ring=None,
        stamp_ns=stamp_ns,
        frame_id=LIDAR,
    )
    T_ego_lidar = np.eye(4)
    T_ego_lidar[2, 3] = LIDAR_HEIGHT_M
    calibration = _calibration(folder / "calib" / f"{cloud.stem}.txt")
    T_rect_lidar = _rectified_from_lidar(calibration)
    labels = folder / "label_2" / f"{cloud.stem}.txt"
    truth, regions = None, np.zeros((0, 4))
    if labels.exists():
        truth, regions = _ground_truth(labels, T_rect_lidar), _regions(labels)
    image = folder / "image_2" / f"{cloud.stem}.png"
    cameras: tuple[CameraFrame, ...] = ()
    T_ego_rect = T_ego_lidar @ inverse(T_rect_lidar)
    if image.exists():
        cameras = (_camera(image, calibration["P2"], T_ego_rect, stamp_ns),)
    size_wh = cameras[0].size_wh if cameras else None
    dont_care = DontCare(regions, calibration["P2"] @ inverse(T_ego_rect), size_wh)
    return SceneFrame(points, None, T_ego_lidar, truth, cameras), dont_care


def _calibration(path: Path) -> dict[str, np.ndarray]:
    """Return the matrices of a calibration file, (3, 3) or (3, 4), by name."""
    try:
        lines = [line.split(":", 1) for line in path.read_text().splitlines() if ":" in line]
        out = {name: np.array(text.split(), np.float64).reshape(3, -1) for name, text in lines}
        missing = [n for n in ("P2", "R0_rect", "Tr_velo_to_cam") if n not in out]
    except (OSError, ValueError) as error:
        raise ConfigError(f"KITTI calibration '{path}' cannot be read: {error}") from None
    if missing:
        raise ConfigError(f"KITTI calibration '{path}' lacks {', '.join(missing)}.")
    return out


def _rectified_from_lidar(calibration: dict[str, np.ndarray]) -> np.ndarray:
    T_cam_lidar, T_rect_cam = np.eye(4), np.eye(4)
    T_cam_lidar[:3] = calibration["Tr_velo_to_cam"]
    T_rect_cam[:3, :3] = calibration["R0_rect"]
    return T_rect_cam @ T_cam_lidar


def _ground_truth(path: Path, T_rect_lidar: np.ndarray) -> Detections:
    T_lidar_rect = inverse(T_rect_lidar)
    rows, labels = [], []
    for kind, values in _labelled(path, CLASS_OF_TYPE, slice(8, 15)):
        height, width, length, x, y, z, rotation_y = values
        centre = T_lidar_rect @ (x, y - height / 2, z, 1.0)  # y points down: up is minus
        # at rotation_y = 0 a box heads along +x of the camera, and turns about y, which is down
        heading = T_lidar_rect[:3, :3] @ (math.cos(rotation_y), 0.0, -math.sin(rotation_y))
        yaw_ccw = math.atan2(heading[1], heading[0])
        rows.append([*centre[:3], length, width, height, yaw_ccw, math.nan, math.nan])
        labels.append(NUSCENES_CLASSES.index(CLASS_OF_TYPE[kind]))
    return ground_truth(rows, labels, None, None)


def _regions(path: Path) -> np.ndarray:
    """Return the (K, 4) rectangles left, top, right, bottom in which nothing is labelled."""
    rows = [corners for _, corners in _labelled(path, (DONT_CARE,), slice(4, 8))]
    return np.array(rows, np.float64).reshape(-1, 4)


def _labelled(
    path: Path, kinds: Collection[str], columns: slice
) -> Iterator[tuple[str, list[float]]]:
    """Yield the kind of each object that is of one of these, and the numbers in some columns."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.split()
        if not words or words[0] not in kinds:
            continue
        try:
            values = [float(word) for word in words[columns]]
        except ValueError:
            values = []
        if len(values) != columns.stop - columns.start:
            raise ConfigError(f"KITTI label '{path}', line {number} lacks values: {line}")
        yield words[0], values


def _camera(path: Path, P: np.ndarray, T_ego_rect: np.ndarray, stamp_ns: int) -> CameraFrame:
    """Return the left colour camera; P = K [I | t] tells where it is beside the reference one."""
    encoded = path.read_bytes()
    image = cv2.imdecode(np.frombuffer(encoded, np.uint8), cv2.IMREAD_COLOR)
    if image is None:
        raise ConfigError(f"KITTI image '{path}' cannot be decoded.")
    K = P[:, :3]
    T_camera_rect = np.eye(4)
    T_camera_rect[:3, 3] = np.linalg.solve(K, P[:, 3])
    return CameraFrame(
        name=CAMERA,
        stamp_ns=stamp_ns,
        frame_id=CAMERA,
        image=None,
        encoded=encoded,
        format="png",
        K=K.copy(),
        D=np.zeros(0),
        distortion_model="plumb_bob",
        size_wh=(image.shape[1], image.shape[0]),
        T_ego_camera=T_ego_rect @ inverse(T_camera_rect),
    )
