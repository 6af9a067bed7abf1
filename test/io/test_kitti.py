"""KITTI frames: labels in the camera frame become boxes in the LiDAR frame."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest

from driveRT_ros.core.boxes import corners
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import NUSCENES_CLASSES
from driveRT_ros.io.kitti import CLASS_OF_TYPE, frames
from test.io.test_nuscenes import points_inside

# LiDAR x forward, y left, z up; camera x right, y down, z forward, 0.1 m above the LiDAR
CALIBRATION = """\
P0: 1 0 0 0 0 1 0 0 0 0 1 0
P2: 700 0 600 70 0 700 180 0 0 0 1 0
R0_rect: 1 0 0 0 1 0 0 0 1
Tr_velo_to_cam: 0 -1 0 0 0 0 -1 0.1 1 0 0 0

"""


def write_frame(root, labels, number=0, image=False):
    for folder in ("velodyne", "calib", "label_2", "image_2"):
        (root / "training" / folder).mkdir(parents=True, exist_ok=True)
    points = np.random.default_rng(number).uniform(0, 1, (50, 4)).astype(np.float32)
    points.tofile(root / f"training/velodyne/{number:06}.bin")
    (root / f"training/calib/{number:06}.txt").write_text(CALIBRATION)
    (root / f"training/label_2/{number:06}.txt").write_text(labels)
    if image:
        cv2.imwrite(
            str(root / f"training/image_2/{number:06}.png"), np.zeros((37, 124, 3), np.uint8)
        )
    return points


def label(kind, x, y, z, rotation_y):
    return f"{kind} 0.00 0 0 0 0 10 10 1.5 1.6 4.0 {x} {y} {z} {rotation_y}\n"


@pytest.mark.parametrize(
    ("rotation_y", "yaw_ccw"),
    [(-math.pi / 2, 0.0), (0.0, -math.pi / 2), (math.pi / 2, math.pi), (-3.0, 3.0 - math.pi / 2)],
)
def test_a_label_is_lifted_to_its_centre_and_turned_counter_clockwise(
    tmp_path, rotation_y, yaw_ccw
):
    """20 m ahead, 3 m to the right, bottom 1.6 m below the camera, so 1.5 m below the LiDAR."""
    write_frame(tmp_path, label("Car", 3, 1.6, 20, rotation_y))
    (frame,) = frames(tmp_path)
    box = frame.ground_truth.boxes[0]
    assert box[:3].tolist() == pytest.approx((20, -3, -1.5 + 0.75), abs=1e-5)
    assert box[3:6].tolist() == pytest.approx((4.0, 1.6, 1.5))
    off = (box[6].item() - yaw_ccw + math.pi) % (2 * math.pi) - math.pi
    assert abs(off) < 1e-5
    assert box[7:].isnan().all(), "KITTI knows no velocity"


def test_types_map_to_nuscenes_classes_and_others_are_left_out(tmp_path):
    kinds = ("Car", "Van", "Truck", "Pedestrian", "Person_sitting", "Cyclist", "Tram", "Misc")
    labels = "".join(label(kind, 0, 1, 10, 0) for kind in kinds)
    write_frame(tmp_path, labels + "DontCare -1 -1 -10 1 1 2 2 -1 -1 -1 -1000 -1000 -1000 -10\n")
    (frame,) = frames(tmp_path)
    names = [NUSCENES_CLASSES[k] for k in frame.ground_truth.labels.tolist()]
    assert names == ["car", "car", "truck", "pedestrian", "pedestrian", "bicycle"]


def test_frames_carry_points_stamps_and_no_world(tmp_path):
    points = [write_frame(tmp_path, "", number) for number in range(3)]
    read = list(frames(tmp_path / "training"))
    assert [f.points.stamp_ns for f in read] == [100_000_000, 200_000_000, 300_000_000]
    for frame, expected in zip(read, points):
        np.testing.assert_array_equal(frame.points.xyz, expected[:, :3])
        np.testing.assert_array_equal(frame.points.intensity, expected[:, 3])
        assert frame.T_world_ego is None and len(frame.ground_truth) == 0
        assert frame.T_ego_lidar[2, 3] == 1.73
    scaled = next(frames(tmp_path, intensity_scale=255.0))
    np.testing.assert_allclose(scaled.points.intensity, points[0][:, 3] * 255)


def test_the_camera_sees_a_point_where_the_projection_matrix_puts_it(tmp_path):
    write_frame(tmp_path, "", image=True)
    (frame,) = frames(tmp_path)
    (camera,) = frame.cameras
    assert camera.size_wh == (124, 37) and camera.format == "png"
    point_lidar = np.array((20.0, -3.0, 0.5, 1.0))
    in_camera = np.linalg.inv(camera.T_ego_camera) @ frame.T_ego_lidar @ point_lidar
    pixel = camera.K @ in_camera[:3]
    P = np.array([[700, 0, 600, 70], [0, 700, 180, 0], [0, 0, 1, 0]], float)
    expected = P @ (3.0, -0.4, 20.0, 1.0)
    np.testing.assert_allclose(pixel / pixel[2], expected / expected[2], atol=1e-9)


def test_what_is_wrong_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"velodyne/\*\.bin' is missing"):
        list(frames(tmp_path))
    write_frame(tmp_path, "Car 0.00 0 0 0 0 10 10 1.5\n")
    with pytest.raises(ConfigError, match="line 1 lacks values"):
        list(frames(tmp_path))
    (tmp_path / "training/calib/000000.txt").write_text("P2: 1 2 3\n")
    with pytest.raises(ConfigError, match="lacks R0_rect, Tr_velo_to_cam"):
        list(frames(tmp_path))
    (tmp_path / "training/velodyne/000000.bin").write_bytes(b"\0" * 20)
    with pytest.raises(ConfigError, match="does not hold 4 float32"):
        list(frames(tmp_path))


def matrix_of(path, name):
    line = next(x for x in path.read_text().splitlines() if x.startswith(name + ":"))
    T = np.eye(4)
    values = np.array(line.split()[1:], float).reshape(3, -1)
    T[:3, : values.shape[1]] = values
    return T


def test_real_boxes_hold_points_and_cover_their_image_rectangle(data_dir):
    """The label also gives the rectangle in the image: an independent check of place, size and
    heading."""
    root = data_dir / "lidar" / "kitti_object" / "training"
    read = list(frames(root))
    assert [len(f.points) for f in read] == [115_384, 120_268, 126_891]
    for number, frame in enumerate(read):
        calibration = root / "calib" / f"{number:06}.txt"
        P, R, T = (matrix_of(calibration, n) for n in ("P2", "R0_rect", "Tr_velo_to_cam"))
        lines = [x.split() for x in (root / f"label_2/{number:06}.txt").read_text().splitlines()]
        rectangles = [np.array(w[4:8], float) for w in lines if w[0] in CLASS_OF_TYPE]
        boxes = frame.ground_truth.boxes
        assert len(boxes) == len(rectangles) > 0
        for box, place, expected in zip(boxes.numpy(), corners(boxes).numpy(), rectangles):
            assert points_inside(frame.points.xyz, box) >= 9
            pixels = P @ R @ T @ np.concatenate([place.T, np.ones((1, 8))])
            pixels = pixels[:2] / pixels[2]
            got = np.concatenate([pixels.min(axis=1), pixels.max(axis=1)])
            np.testing.assert_allclose(got, expected, atol=0.1 * (expected[3] - expected[1]))
