"""The transform buffer: interpolation, bounds, tree walk, and forgetting."""

from __future__ import annotations

import math

import numpy as np
import pytest

from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.nodes.tf import TF_FUTURE, TF_MISSING, TF_PAST, TransformBuffer
from driveRT_ros.nodes.timejump import JumpDetector

S = 1_000_000_000


def quat_z(yaw: float) -> tuple[float, float, float, float]:
    return (0.0, 0.0, math.sin(yaw / 2), math.cos(yaw / 2))


def buffer_with_ego_at(*samples: tuple[int, float, float]) -> TransformBuffer:
    """Return map -> base_link at (stamp ns, x, yaw), and a LiDAR 1 m up and turned left."""
    buffer = TransformBuffer()
    for stamp_ns, x, yaw in samples:
        buffer.insert("map", "base_link", stamp_ns, (x, 0.0, 0.0), quat_z(yaw))
    buffer.insert("base_link", "lidar", 0, (0.0, 0.0, 1.0), quat_z(math.pi / 2), static=True)
    return buffer


def test_chain_is_composed_in_the_right_order() -> None:
    T = buffer_with_ego_at((5 * S, 10.0, math.pi / 2)).lookup("map", "lidar", 5 * S).T_target_source
    # The LiDAR looks left of an ego that looks along +y, so its x axis is the world's -x.
    np.testing.assert_allclose(T @ [1, 0, 0, 1], [9, 0, 1, 1], atol=1e-12)


def test_lookup_both_ways_is_inverse_and_a_frame_is_itself() -> None:
    buffer = buffer_with_ego_at((5 * S, 10.0, 0.3))
    there = buffer.lookup("map", "lidar", 5 * S).T_target_source
    back = buffer.lookup("lidar", "map", 5 * S).T_target_source
    np.testing.assert_allclose(there @ back, np.eye(4), atol=1e-12)
    assert buffer.lookup("lidar", "/lidar", 123).T_target_source == pytest.approx(np.eye(4))


def test_siblings_meet_in_their_common_ancestor_without_the_moving_parent() -> None:
    buffer = TransformBuffer()
    buffer.insert("base_link", "a", 0, (1.0, 0.0, 0.0), quat_z(0), static=True)
    buffer.insert("base_link", "b", 0, (0.0, 2.0, 0.0), quat_z(0), static=True)
    T = buffer.lookup("a", "b", 99 * S).T_target_source
    assert T[:3, 3] == pytest.approx([-1, 2, 0])


@pytest.mark.parametrize("w", [0.0, 0.25, 0.5, 1.0])
def test_between_two_samples_position_is_linear_and_rotation_takes_the_shorter_arc(
    w: float,
) -> None:
    # From 170 to -170 degrees the short way leads through 180, not through 0.
    start, end = math.radians(170), math.radians(-170)
    buffer = buffer_with_ego_at((10 * S, 0.0, start), (12 * S, 4.0, end))
    T = buffer.lookup("map", "base_link", 10 * S + int(2 * S * w)).T_target_source
    assert T[0, 3] == pytest.approx(4 * w)
    angle = math.radians(170 + 20 * w)
    assert T[:2, 0] == pytest.approx([math.cos(angle), math.sin(angle)], abs=1e-9)


def test_latest_is_never_taken_for_a_stamp_in_the_future() -> None:
    found = buffer_with_ego_at((10 * S, 1.0, 0.0)).lookup("map", "lidar", 10 * S + 700_000)
    assert (found.T_target_source, found.code, found.may_come) == (None, TF_FUTURE, True)
    assert "10.000700 s" in found.reason and "10.000000 s" in found.reason


def test_a_stamp_older_than_the_history_is_refused_for_good_with_both_times() -> None:
    buffer = TransformBuffer()
    for tenth in range(200):
        stamp_ns = 100 * S + tenth * S // 10
        buffer.insert("map", "lidar", stamp_ns, (0.0, 0.0, 0.0), quat_z(0))
    newest_ns = 100 * S + 199 * S // 10
    assert buffer.lookup("map", "lidar", newest_ns - 10 * S).T_target_source is not None
    found = buffer.lookup("map", "lidar", newest_ns - 11 * S)
    assert (found.code, found.may_come) == (TF_PAST, False)
    assert "108.900000 s" in found.reason and "109.900000 s" in found.reason


def test_missing_frame_is_named() -> None:
    found = buffer_with_ego_at((S, 0.0, 0.0)).lookup("odom", "lidar", S)
    assert (found.code, found.may_come) == (TF_MISSING, True)
    assert "'odom' is unknown" in found.reason


def test_late_sample_is_sorted_in_and_a_repeated_stamp_replaces() -> None:
    buffer = buffer_with_ego_at((10 * S, 0.0, 0.0), (12 * S, 2.0, 0.0), (11 * S, 5.0, 0.0))
    assert buffer.lookup("map", "base_link", 11 * S).T_target_source[0, 3] == 5.0
    buffer.insert("map", "base_link", 11 * S, (7.0, 0.0, 0.0), quat_z(0))
    assert buffer.lookup("map", "base_link", 11 * S).T_target_source[0, 3] == 7.0
    assert buffer.lookup("map", "base_link", 11 * S + S // 2).T_target_source[0, 3] == 4.5


def test_loop_of_frames_ends_as_not_connected() -> None:
    buffer = TransformBuffer()
    buffer.insert("a", "b", 0, (0.0, 0.0, 0.0), quat_z(0), static=True)
    buffer.insert("b", "a", 0, (0.0, 0.0, 0.0), quat_z(0), static=True)
    assert buffer.lookup("map", "a", 0).code == TF_MISSING


@pytest.mark.parametrize(
    ("parent", "child", "xyz", "quat"),
    [
        ("map", "", (0.0, 0.0, 0.0), quat_z(0)),
        ("map", "map", (0.0, 0.0, 0.0), quat_z(0)),
        ("map", "lidar", (math.nan, 0.0, 0.0), quat_z(0)),
        ("map", "lidar", (0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_unusable_transform_is_refused_and_not_stored(parent, child, xyz, quat) -> None:
    buffer = TransformBuffer()
    with pytest.raises(InvalidFrame):
        buffer.insert(parent, child, 0, xyz, quat)
    assert buffer.lookup("map", "lidar", 0).code == TF_MISSING


def test_after_a_jump_only_the_old_time_is_forgotten_and_static_stays() -> None:
    buffer = buffer_with_ego_at((100 * S, 0.0, 0.0))
    buffer.forget_newer(50 * S)
    buffer.insert("map", "base_link", 10 * S, (3.0, 0.0, 0.0), quat_z(0))
    assert buffer.lookup("map", "lidar", 10 * S).T_target_source[0, 3] == 3.0
    assert buffer.lookup("map", "lidar", 100 * S).code == TF_FUTURE


def test_one_jump_is_reported_once_whoever_sees_it_first() -> None:
    for first, *others in (("tf", "clock", "cloud"), ("cloud", "tf"), ("clock", "cloud", "tf")):
        detector = JumpDetector()
        for source in ("tf", "cloud"):
            assert detector.observe(source, 99 * S) is None
        see = {
            "tf": lambda: detector.observe("tf", 90 * S),  # noqa: B023
            "cloud": lambda: detector.observe("cloud", 90 * S),  # noqa: B023
            "clock": lambda: detector.announced("clock", 99 * S, 90 * S),  # noqa: B023
        }
        assert see[first]() is not None
        assert [see[other]() for other in others] == [None] * len(others)
        # The new time runs on without an alarm, and the next loop is seen again.
        assert detector.observe("tf", 99 * S) is None
        assert detector.observe("cloud", 99 * S) is None
        assert detector.observe("cloud", 90 * S) is not None
