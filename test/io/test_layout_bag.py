"""Twelve recorded PointCloud2 layouts of real points."""

from __future__ import annotations

import numpy as np
import pytest

from driveRT_ros.core.config import InputConfig
from driveRT_ros.core.frame import PointBatch
from driveRT_ros.io.bag import BagReader
from driveRT_ros.io.pointcloud import decode

NUSCENES = (
    "xyzir_f32_step20",
    "xyzir_f32_bigendian",
    "xyz_f64_i_u8_ring_u16_step27",
    "pcl_xyzi_pad_step32",
    "velodyne_xyzirt_step22",
    "field_order_intensity_first",
    "xyz_only",
    "rowpad_12B_h32",
)


@pytest.fixture(scope="module")
def messages(data_dir):
    with BagReader(data_dir / "bags" / "rosbag2_pointcloud2_layouts_mcap") as reader:
        return {m.topic: m.deserialize() for m in reader}


@pytest.fixture(scope="module")
def sweep(data_dir):
    """The recorded file itself, which no message layout has touched."""
    (path,) = (data_dir / "nuscenes" / "scene-0061").glob("*.pcd.bin")
    return np.fromfile(path, np.float32).reshape(-1, 5)


@pytest.mark.parametrize("name", NUSCENES)
def test_every_layout_of_one_sweep_decodes_to_the_recorded_points(messages, sweep, name):
    batch = decode(messages[f"/nuscenes/{name}"])
    np.testing.assert_array_equal(batch.xyz, sweep[:, :3])
    assert (batch.frame_id, batch.stamp_ns) == ("LIDAR_TOP", 1_532_402_927_647_951_000)
    if name == "xyz_only":
        assert not batch.intensity.any() and batch.report.notes == ("intensity_missing",)
    else:
        np.testing.assert_array_equal(batch.intensity, sweep[:, 3])
    if batch.ring is not None:
        np.testing.assert_array_equal(batch.ring, sweep[:, 4].astype(int))
    assert not batch.report.dropped
    assert ("row_padding" in batch.report.notes) == name.startswith("rowpad")


def test_the_recorded_layouts_have_rings_where_they_should(messages):
    with_ring = {n for n in NUSCENES if decode(messages[f"/nuscenes/{n}"]).ring is not None}
    assert with_ring == set(NUSCENES) - {
        "pcl_xyzi_pad_step32",
        "field_order_intensity_first",
        "xyz_only",
    }


def test_an_empty_recorded_cloud_is_an_empty_batch(messages):
    assert len(decode(messages["/nuscenes/empty"])) == 0


def check(batch: PointBatch, count: int, rings: int, longest_lag_s: float) -> None:
    assert len(batch) == count and batch.ring.max() == rings - 1
    assert batch.xyz.dtype == np.float32 and np.isfinite(batch.xyz).all()
    assert batch.time_lag_s.min() == 0
    assert batch.time_lag_s.max() == pytest.approx(longest_lag_s, abs=1e-6)


def test_hesai_with_misaligned_float64_clock(messages):
    message = messages["/hesai/40p_step35_f64_misaligned"]
    batch = decode(message)
    check(batch, 60_000, 38, 0.0565629)
    ranges = np.linalg.norm(batch.xyz.astype(np.float64), axis=1)
    raw = np.ndarray((60_000,), "<f4", message.data, 22, (35,))
    np.testing.assert_allclose(ranges, raw, atol=0.02)  # the field 'distance' is an own witness


def test_velodyne_with_the_wide_autoware_point(messages):
    message = messages["/velodyne/vlp16_xyzircaedt_step32"]
    batch = decode(message)
    check(batch, 14_831, 16, 0.001304065)
    raw = np.ndarray((14_831,), "<f4", message.data, 24, (32,))
    np.testing.assert_allclose(np.linalg.norm(batch.xyz, axis=1), raw, atol=0.01)
    assert batch.intensity.max() == 119


def test_ouster_organized_with_invalid_points(messages):
    message = messages["/ouster/os0_128x1024_organized_nan_step48"]
    batch = decode(message)
    check(batch, 97_299, 128, 0.09986505)
    assert batch.report.dropped == {"non_finite": 33_773}
    raw = np.ndarray((131_072,), "<u4", message.data, 32, (48,))
    valid = np.isfinite(np.ndarray((131_072,), "<f4", message.data, 0, (48,)))
    # the field 'range' is in millimetres, from another origin than the coordinates
    np.testing.assert_allclose(np.linalg.norm(batch.xyz, axis=1), raw[valid] * 1e-3, atol=0.2)


def test_every_recorded_layout_stays_as_it_was_and_decodes_twice_alike(messages):
    for topic, message in messages.items():
        before = bytes(message.data)
        first, second = decode(message), decode(message)
        np.testing.assert_array_equal(first.xyz, second.xyz, topic)
        np.testing.assert_array_equal(first.time_lag_s, second.time_lag_s, topic)
        assert bytes(message.data) == before, topic


def test_thinning_a_real_cloud_is_repeatable(messages):
    message = messages["/ouster/os0_128x1024_organized_nan_step48"]
    batch = decode(message, config=InputConfig(point_capacity=50_000))
    assert len(batch) == 50_000
    assert batch.report.dropped == {"non_finite": 33_773, "over_capacity": 47_299}
    again = decode(message, config=InputConfig(point_capacity=50_000))
    np.testing.assert_array_equal(batch.xyz, again.xyz)
