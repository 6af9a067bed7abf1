"""nuScenes tables to frames: order of transforms, annotations in the LiDAR frame, velocity."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import NUSCENES_CLASSES
from driveRT_ros.io.nuscenes import NuScenes
from driveRT_ros.io.nuscenes_boxes import CLASS_OF_CATEGORY
from driveRT_ros.io.rigid import inverse, rigid
from test.support.nuscenes import JPEG, START_US, MiniNuScenes

QUARTER = math.pi / 2


def keyframe(data, root, number=0):
    frames = list(NuScenes(data.write(root)).frames(keyframes_only=True))
    return frames[number]


def test_lidar_to_global_is_ego_to_global_times_lidar_to_ego():
    """Two matrices in the wrong order look like pose drift. By hand: LiDAR (1,0,0) is turned by 90
    degrees to (0,1,0), moved to (1,1,2), turned by 45 degrees to (0, sqrt 2, 2), moved to
    (100, 50 + sqrt 2, 2)."""
    T_ego_lidar = rigid((1, 0, 2), (0, 0, math.sin(QUARTER / 2), math.cos(QUARTER / 2)))
    T_global_ego = rigid((100, 50, 0), (0, 0, math.sin(QUARTER / 4), math.cos(QUARTER / 4)))
    T_global_lidar = T_global_ego @ T_ego_lidar
    point = T_global_lidar @ (1, 0, 0, 1)
    np.testing.assert_allclose(point, (100, 50 + math.sqrt(2), 2, 1), atol=1e-9)
    np.testing.assert_allclose(inverse(T_global_lidar) @ point, (1, 0, 0, 1), atol=1e-9)
    wrong = T_ego_lidar @ T_global_ego @ (1, 0, 0, 1)
    assert np.abs(wrong - point).max() > 10, "the test must tell the orders apart"


def test_the_inverse_of_a_sensor_pose_rotates_its_translation_too():
    """Camera at (1,2,3), turned by 30 degrees: its centre maps to (1,2,3), and there and back is
    nothing."""
    T_lidar_cam = rigid((1, 2, 3), (0, 0, math.sin(math.pi / 12), math.cos(math.pi / 12)))
    T_cam_lidar = inverse(T_lidar_cam)
    np.testing.assert_allclose(T_cam_lidar @ T_lidar_cam, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(T_lidar_cam @ (0, 0, 0, 1), (1, 2, 3, 1))
    rotation = T_lidar_cam[:3, :3]
    np.testing.assert_allclose(T_cam_lidar[:3, 3], -rotation.T @ (1, 2, 3), atol=1e-12)


def test_frames_come_in_order_with_poses_points_and_images(tmp_path):
    data = MiniNuScenes(keyframes=3, ego_yaw=math.pi / 4, lidar_yaw=QUARTER)
    frames = list(NuScenes(data.write(tmp_path)).frames("scene-0001"))
    assert len(frames) == 21
    stamps = [f.points.stamp_ns for f in frames]
    assert stamps == [START_US * 1000 + k * 50_000_000 for k in range(21)]
    keys = [k for k, f in enumerate(frames) if f.ground_truth is not None]
    assert keys == [0, 10, 20] == [k for k, f in enumerate(frames) if f.cameras]
    first = frames[0]
    np.testing.assert_allclose(first.T_ego_lidar[:3, 3], (1, 0, 2))
    np.testing.assert_allclose(frames[4].T_world_ego[:3, 3], (101, 50, 0))
    assert first.points.xyz.shape == (30, 3) and first.points.ring.dtype == np.int32
    assert first.points.frame_id == "LIDAR_TOP" and not first.points.time_lag_s.any()
    (camera,) = first.cameras
    assert (camera.name, camera.encoded, camera.size_wh) == ("CAM_FRONT", JPEG, (1600, 900))
    np.testing.assert_allclose(camera.T_ego_camera[:3, :3] @ (0, 0, 1), (1, 0, 0), atol=1e-12)
    assert len(list(NuScenes(tmp_path).frames(keyframes_only=True, cameras=False))) == 3


def test_a_box_is_moved_and_turned_into_the_lidar_frame(tmp_path):
    """Ego at (100,50) heading +y; LiDAR 1 m ahead, turned by -90 degrees, so along global +x."""
    data = MiniNuScenes(keyframes=1, ego_yaw=QUARTER, lidar_yaw=-QUARTER)
    data.add_object("vehicle.car", {0: (110.0, 56.0, 3.0)}, yaw=QUARTER)
    truth = keyframe(data, tmp_path).ground_truth
    box = truth.boxes[0].tolist()
    # the LiDAR is at global (100, 51, 2) and looks along +x
    assert box[:3] == pytest.approx((10, 5, 1), abs=1e-5)
    assert box[3:6] == [4.0, 2.0, 1.5], "length, width, height; the tables have width first"
    assert box[6] == pytest.approx(QUARTER, abs=1e-6)
    assert truth.labels.tolist() == [NUSCENES_CLASSES.index("car")]
    assert truth.num_points.tolist() == [10] and truth.scores.tolist() == [1]


def test_velocity_is_turned_into_the_lidar_frame_and_not_moved(tmp_path):
    """Ego heading +y, LiDAR along +x: 10 m/s along global +x stays along x; and the ego's own
    motion is not subtracted."""
    data = MiniNuScenes(keyframes=3, ego_yaw=QUARTER, lidar_yaw=-QUARTER)
    data.add_object("vehicle.car", {k: (110.0 + 5 * k, 50.0, 1.0) for k in range(3)})
    for number in range(3):
        truth = keyframe(data, tmp_path / str(number), number).ground_truth
        assert truth.boxes[0, 7:].tolist() == pytest.approx((10, 0), abs=1e-4)
    turned = MiniNuScenes(keyframes=3, ego_yaw=QUARTER, lidar_yaw=0.0)
    turned.add_object("vehicle.car", {k: (110.0 + 5 * k, 50.0, 1.0) for k in range(3)})
    truth = keyframe(turned, tmp_path / "turned", 1).ground_truth
    assert truth.boxes[0, 7:].tolist() == pytest.approx((0, -10), abs=1e-4)


@pytest.mark.parametrize(
    ("seen_at", "at", "known"),
    [
        ([0], 0, False),  # a single appearance
        ([0, 3], 0, True),  # 1.5 s to the only neighbour
        ([0, 4], 0, False),  # 2 s to the only neighbour
        ([0, 3, 6], 3, True),  # 3 s between two neighbours
        ([0, 3, 7], 3, False),  # 3.5 s between two neighbours
    ],
)
def test_velocity_is_absent_without_near_neighbours(tmp_path, seen_at, at, known):
    data = MiniNuScenes(keyframes=8)
    data.add_object("vehicle.car", {k: (float(k), 0.0, 0.0) for k in seen_at})
    truth = keyframe(data, tmp_path, at).ground_truth
    velocity = truth.boxes[0, 7:].tolist()
    if known:
        assert velocity == pytest.approx((2, 0), abs=1e-4)
    else:
        assert all(math.isnan(v) for v in velocity)


def test_categories_map_to_the_ten_classes_and_others_are_left_out(tmp_path):
    assert set(CLASS_OF_CATEGORY.values()) == set(NUSCENES_CLASSES)
    data = MiniNuScenes(keyframes=1)
    for category in (
        "animal",
        "vehicle.bus.bendy",
        "movable_object.debris",
        "vehicle.construction",
    ):
        data.add_object(category, {0: (110.0, 50.0, 1.0)})
    truth = keyframe(data, tmp_path).ground_truth
    names = [NUSCENES_CLASSES[k] for k in truth.labels.tolist()]
    assert names == ["bus", "construction_vehicle"]
    assert truth.track_ids.tolist() == [1, 3], "an object keeps its number over time"


def test_a_keyframe_without_objects_has_ground_truth_without_boxes(tmp_path):
    truth = keyframe(MiniNuScenes(keyframes=1), tmp_path).ground_truth
    assert truth is not None and truth.boxes.shape == (0, 9)


def test_what_is_missing_is_named(tmp_path):
    root = MiniNuScenes(keyframes=2).write(tmp_path)
    with pytest.raises(ConfigError, match=r"no nuScenes tables 'v1\.0-trainval'; .* v1\.0-mini"):
        NuScenes(root, "v1.0-trainval")
    with pytest.raises(ConfigError, match="holds no folder with nuScenes tables"):
        NuScenes(root / "sweeps")
    with pytest.raises(ConfigError, match="nowhere' is no folder"):
        NuScenes(root / "nowhere")
    with pytest.raises(ConfigError, match=r"no scene 'scene-9'; it has: scene-0001"):
        next(NuScenes(root).frames("scene-9"))
    (root / "sweeps" / "lidar" / "lidar3.pcd.bin").unlink()
    with pytest.raises(ConfigError, match=r"lidar3\.pcd\.bin.*read those only"):
        list(NuScenes(root).frames())
    assert len(list(NuScenes(root).frames(keyframes_only=True))) == 2
    (root / "v1.0-mini" / "scene.json").write_text("[")
    with pytest.raises(ConfigError, match=r"scene\.json' cannot be read"):
        NuScenes(root).scenes()


def test_missing_images_are_left_out_with_one_warning(tmp_path, caplog):
    root = MiniNuScenes(keyframes=3).write(tmp_path)
    for path in (root / "samples" / "camera").iterdir():
        path.unlink()
    assert all(not f.cameras for f in NuScenes(root).frames(keyframes_only=True))
    assert len(caplog.records) == 1 and "left out" in caplog.text


def test_an_info_file_beside_tables_without_annotations_gives_ground_truth(tmp_path):
    data = MiniNuScenes(keyframes=1)
    del data.tables["sample_annotation"]
    root = data.write(tmp_path)
    assert next(NuScenes(root).frames()).ground_truth is None
    instance = {"bbox_3d": [1, 2, 3, 4, 2, 1.5, 0.5], "bbox_label_3d": 3, "num_lidar_pts": 7}
    info = {
        "metainfo": {"categories": {"car": 0, "bus": 3}},
        "data_list": [
            {
                "token": "sample0",
                "instances": [
                    instance | {"velocity": [1.0, -1.0]},
                    instance | {"velocity": [None, None]},
                    instance | {"bbox_label_3d": -1, "velocity": [0, 0]},
                ],
            }
        ],
    }
    (root / "x_info.json").write_text(json.dumps(info))
    truth = next(NuScenes(root).frames()).ground_truth
    assert truth.labels.tolist() == [NUSCENES_CLASSES.index("bus")] * 2
    assert truth.boxes[0].tolist() == [1, 2, 3, 4, 2, 1.5, 0.5, 1, -1]
    assert truth.boxes[1, 7:].isnan().all() and truth.num_points.tolist() == [7, 7]


# --- real data ----------------------------------------------------------------------------------


def points_inside(xyz: np.ndarray, box: np.ndarray) -> int:
    offset = xyz - box[:3]
    cos, sin = np.cos(box[6]), np.sin(box[6])
    along = cos * offset[:, 0] + sin * offset[:, 1]
    across = cos * offset[:, 1] - sin * offset[:, 0]
    half = box[3:6] / 2
    inside = (abs(along) <= half[0]) & (abs(across) <= half[1]) & (abs(offset[:, 2]) <= half[2])
    return int(inside.sum())


def test_a_real_keyframe_has_as_many_points_in_its_boxes_as_annotated(data_dir):
    """A box with length and width swapped, or turned the wrong way, would miss its points."""
    (frame,) = NuScenes(data_dir / "nuscenes" / "scene-0061").frames()
    assert len(frame.points) == 34_688 and len(frame.cameras) == 6
    assert frame.points.stamp_ns == 1_532_402_927_647_951_000
    truth = frame.ground_truth
    counted = np.array([points_inside(frame.points.xyz, box) for box in truth.boxes.numpy()])
    annotated = truth.num_points.numpy()
    assert len(truth) == 68 and annotated.sum() > 900
    assert np.abs(counted - annotated).sum() < 0.03 * annotated.sum()
    assert (counted == annotated).mean() > 0.85
    assert truth.boxes[:, :7].isfinite().all() and truth.boxes[:, 7:].isnan().any()


def test_real_tables_and_the_info_file_beside_them_agree_on_calibration(data_dir):
    root = data_dir / "nuscenes" / "scene-0061"
    (frame,) = NuScenes(root).frames()
    (path,) = root.glob("*_info.json")
    (info,) = json.loads(path.read_text())["data_list"]
    np.testing.assert_allclose(frame.T_ego_lidar, info["lidar_points"]["lidar2ego"], atol=1e-6)
    np.testing.assert_allclose(frame.T_world_ego, info["ego2global"], atol=1e-4)
    for camera in frame.cameras:
        np.testing.assert_allclose(
            camera.T_ego_camera, info["images"][camera.name]["cam2ego"], atol=1e-6
        )
        np.testing.assert_allclose(camera.K, info["images"][camera.name]["cam2img"], atol=1e-9)
