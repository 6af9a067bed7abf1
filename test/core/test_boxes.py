"""Box conventions: heading counter-clockwise from +x, size (l, w, h), velocity rotated only."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from driveRT_ros.core import boxes as bx
from driveRT_ros.core.errors import InvalidFrame


def row(x=0.0, y=0.0, z=0.0, size=(4.0, 2.0, 1.5), yaw=0.0, v=(0.0, 0.0)) -> torch.Tensor:
    return torch.tensor([[x, y, z, *size, yaw, *v]], dtype=torch.float64)


def yaw_transform(yaw: float, xyz=(0.0, 0.0, 0.0)) -> np.ndarray:
    T = np.eye(4)
    T[:2, :2] = [[math.cos(yaw), -math.sin(yaw)], [math.sin(yaw), math.cos(yaw)]]
    T[:3, 3] = xyz
    return T


def close(got, want, tolerance=1e-12):
    want = torch.as_tensor(want, dtype=got.dtype)
    torch.testing.assert_close(got, want, rtol=0, atol=tolerance)


def test_corners_start_front_left_and_run_counter_clockwise():
    close(bx.bev_corners(row())[0], [[2, 1], [-2, 1], [-2, -1], [2, -1]])
    turned = bx.bev_corners(row(x=10, y=5, yaw=math.pi / 2))[0]
    close(turned, [[9, 7], [9, 3], [11, 3], [11, 7]])
    x, y = turned.T
    area = 0.5 * (x * y.roll(-1) - x.roll(-1) * y).sum()
    assert area.item() == pytest.approx(8.0)


def test_eight_corners_are_the_bottom_face_then_the_top_face():
    corners = bx.corners(row(z=1.0))[0]
    close(corners[:4, 2], [0.25] * 4)
    close(corners[4:, 2], [1.75] * 4)
    close(corners[:4, :2], bx.bev_corners(row())[0])
    assert bx.corners(torch.zeros(0, 9)).shape == (0, 8, 3)


def test_quaternion_and_yaw_are_inverse_over_the_whole_circle():
    yaw = torch.linspace(-math.pi + 1e-6, math.pi - 1e-6, 101, dtype=torch.float64)
    quat = bx.yaw_to_quat_xyzw(yaw)
    close(quat.norm(dim=1), torch.ones(101))
    close(bx.quat_xyzw_to_yaw(quat), yaw)
    close(bx.quat_xyzw_to_yaw(-3.0 * quat), yaw)  # sign and length do not matter


@pytest.mark.parametrize("count", [0, 1, 7, 119, 1000])
def test_quaternions_of_arrays_are_those_of_tensors_to_the_last_bit(count):
    yaw = 3.2 * torch.randn(count, 9, generator=torch.Generator().manual_seed(count))[:, 6]
    yaw[:4] = torch.tensor([math.nan, -0.0, math.inf, 1e-45])[:count]
    expected = bx.yaw_to_quat_xyzw(yaw.double()).numpy()
    found = bx.quats_of_yaws(yaw.numpy().astype(np.float64))
    assert found.shape == (count, 4) and found.tobytes() == expected.tobytes()


def test_yaw_of_a_tilted_rotation_is_the_heading_of_its_x_axis():
    # 90 degrees about z after 30 degrees about y: x points up and along +y.
    half = math.radians(30) / 2
    tilt = np.array([0.0, math.sin(half), 0.0, math.cos(half)])
    turn = np.array([0.0, 0.0, math.sqrt(0.5), math.sqrt(0.5)])
    (x1, y1, z1, w1), (x2, y2, z2, w2) = turn, tilt
    product = [
        w1 * x2 + x1 * w2 + y1 * z2 - z1 * y2,
        w1 * y2 - x1 * z2 + y1 * w2 + z1 * x2,
        w1 * z2 + x1 * y2 - y1 * x2 + z1 * w2,
        w1 * w2 - x1 * x2 - y1 * y2 - z1 * z2,
    ]
    close(bx.quat_xyzw_to_yaw(torch.tensor([product])), [math.pi / 2], 1e-6)


@pytest.mark.parametrize("quat", [[0.0, 0.0, 0.0, 0.0], [math.nan, 0.0, 0.0, 1.0]])
def test_a_quaternion_that_is_none_is_refused(quat):
    with pytest.raises(InvalidFrame, match="quaternion"):
        bx.quat_xyzw_to_yaw(torch.tensor([quat]))


@pytest.mark.parametrize(
    ("yaw", "want"),
    [(0.0, 0.0), (math.pi, -math.pi), (-math.pi, -math.pi), (7.0, 7.0 - 2 * math.pi), (-9.0, None)],
)
def test_wrapping_gives_minus_pi_up_to_but_not_pi(yaw, want):
    got = bx.wrap_yaw(torch.tensor([yaw], dtype=torch.float64)).item()
    assert -math.pi <= got < math.pi
    assert math.isclose(math.cos(got), math.cos(yaw), abs_tol=1e-12)
    assert math.isclose(math.sin(got), math.sin(yaw), abs_tol=1e-12)
    if want is not None:
        assert got == pytest.approx(want, abs=1e-12)


@pytest.mark.parametrize("value", [-1e-9, math.pi - 1e-8, -math.pi - 1e-9, 1e5])
def test_wrapping_in_float32_never_returns_pi(value):
    got = bx.wrap_yaw(torch.tensor([value], dtype=torch.float32)).item()
    assert -3.1415928 <= got < 3.1415927


def test_a_yawed_frame_rotates_centre_heading_and_velocity():
    """Ego at 90 degrees, LiDAR mounted at -90: together they cancel for directions."""
    T_world_ego = yaw_transform(math.pi / 2, (100.0, 50.0, 0.0))
    T_ego_lidar = yaw_transform(-math.pi / 2, (1.0, 0.0, 2.0))
    T_lidar_world = np.linalg.inv(T_world_ego @ T_ego_lidar)
    world = row(x=110.0, y=51.0, yaw=0.0, v=(10.0, 0.0))
    lidar = bx.transform_boxes(world, T_lidar_world)
    close(lidar[0, bx.VELOCITY], [10.0, 0.0], 1e-9)
    close(lidar[0, bx.YAW], 0.0, 1e-9)
    close(lidar[0, bx.CENTER], [10.0, 0.0, -2.0], 1e-9)


def test_a_transform_turns_velocity_without_moving_it():
    moved = bx.transform_boxes(row(v=(1.0, 0.0)), yaw_transform(math.pi / 2, (7.0, 8.0, 9.0)))
    close(moved[0], [7, 8, 9, 4, 2, 1.5, math.pi / 2, 0, 1])


def test_a_transform_and_its_inverse_give_the_boxes_back():
    generator = torch.Generator().manual_seed(0)
    boxes = torch.randn(20, 9, generator=generator, dtype=torch.float64)
    boxes[:, bx.SIZE_LWH] = boxes[:, bx.SIZE_LWH].abs()
    boxes[:, bx.YAW] = bx.wrap_yaw(boxes[:, bx.YAW])
    T = yaw_transform(1.2, (3.0, -4.0, 5.0))
    close(bx.transform_boxes(bx.transform_boxes(boxes, T), np.linalg.inv(T)), boxes, 1e-12)
    single = bx.transform_boxes(boxes.float(), T)
    assert single.dtype == torch.float32


def test_unknown_velocity_stays_unknown():
    moved = bx.transform_boxes(row(v=(math.nan, math.nan)), yaw_transform(0.5))
    assert torch.isnan(moved[0, bx.VELOCITY]).all()
    assert torch.isfinite(moved[0, : bx.YAW + 1]).all()


def test_velocity_in_the_frame_of_the_object_is_rotated_by_minus_yaw():
    velocity = torch.tensor([[0.0, 10.0]], dtype=torch.float64)  # driving along +y
    close(
        bx.rotate_xy(velocity, torch.tensor([-math.pi / 2], dtype=torch.float64)),
        [[10.0, 0.0]],
        1e-12,
    )


def test_the_same_car_in_both_conventions_is_the_same_box():
    """A 4 m car at (10, 5, 0) that heads along +y, written by old and new mmdetection3d."""
    row_legacy = [10.0, 5.0, 0.0, 2.0, 4.0, 1.5, -math.pi, 0.0, 3.0]
    legacy = torch.tensor([row_legacy], dtype=torch.float64)
    box = bx.boxes_from_legacy_mmdet(legacy)
    close(box, row(x=10, y=5, yaw=math.pi / 2, v=(0.0, 3.0)))
    front = bx.bev_corners(box)[0, [0, 3]].mean(0)
    close(front, [10.0, 7.0], 1e-6)
    assert torch.isnan(bx.boxes_from_legacy_mmdet(legacy[:, :7])[0, bx.VELOCITY]).all()
