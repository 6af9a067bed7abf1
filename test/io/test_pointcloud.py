"""Decoding PointCloud2: every layout gives the same points, and nothing is guessed in silence."""

from __future__ import annotations

import copy
import importlib.util
import time

import numpy as np
import pytest

from driveRT_ros.core.config import InputConfig
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.io.pointcloud import decode
from test.support.clouds import make_cloud, random_points, xyzi_cloud

POINTS = random_points(1000)
XYZ = np.stack([POINTS[a] for a in "xyz"], axis=1)


def column(name: str, code: str, offset: int):
    return {name: (POINTS[name], code, offset)}


LAYOUTS = {
    "packed_xyzi": xyzi_cloud(POINTS),
    "padded_step_with_uint8_intensity_and_ring": make_cloud(
        column("x", "f4", 0) | column("y", "f4", 4) | column("z", "f4", 8)
        | column("intensity", "u1", 16) | column("ring", "u2", 18), 32,
    ),
    "xyzirc_16_bytes": make_cloud(
        column("x", "f4", 0) | column("y", "f4", 4) | column("z", "f4", 8)
        | column("intensity", "u1", 12) | {"return_type": (POINTS["ring"] * 0, "u1", 13)}
        | {"channel": (POINTS["ring"], "u2", 14)}, 16,
    ),
    "xyzircaedt_32_bytes": make_cloud(
        column("x", "f4", 0) | column("y", "f4", 4) | column("z", "f4", 8)
        | column("intensity", "u1", 12) | {"return_type": (POINTS["ring"] * 0, "u1", 13)}
        | {"channel": (POINTS["ring"], "u2", 14)}
        | {n: (POINTS["x"] + 7, "f4", 16 + 4 * k)
           for k, n in enumerate(("azimuth", "elevation", "distance"))}
        | {"time_stamp": (POINTS["t"], "u4", 28)}, 32,
    ),
    "big_endian": xyzi_cloud(POINTS, big_endian=True),
    "float64_coordinates": make_cloud(
        column("x", "f8", 0) | column("y", "f8", 8) | column("z", "f8", 16)
        | column("intensity", "f4", 24), 32,
    ),
    "fields_in_another_order_at_odd_offsets": make_cloud(
        column("ring", "u2", 1) | column("intensity", "u2", 3) | column("z", "f4", 5)
        | column("x", "f4", 9) | column("y", "f8", 13), 23,
    ),
    "organized_with_row_padding": xyzi_cloud(POINTS, height=8, row_padding=52),
    "organized_big_endian_with_row_padding": xyzi_cloud(
        POINTS, height=25, row_padding=3, big_endian=True
    ),
    "float32_misaligned_in_memory": make_cloud(
        column("x", "f4", 1) | column("y", "f4", 5) | column("z", "f4", 9)
        | column("intensity", "f4", 13), 17,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_gives_the_same_points_and_intensity(name):
    """Stride, padding, offsets, prefixes of wider types, byte order and types are all honoured."""
    batch = decode(LAYOUTS[name])
    np.testing.assert_array_equal(batch.xyz, XYZ)
    np.testing.assert_array_equal(batch.intensity, POINTS["intensity"])
    for array, shape in ((batch.xyz, (1000, 3)), (batch.intensity, (1000,))):
        assert array.dtype == np.float32 and array.shape == shape
    assert batch.time_lag_s.shape == (1000,) and (batch.time_lag_s >= 0).all()
    assert batch.report.num_input == 1000 and not batch.report.dropped
    assert (batch.stamp_ns, batch.frame_id) == (1_700_000_000_123_456_789, "lidar")


@pytest.mark.parametrize("container", ["bytes", "array", "numpy"])
@pytest.mark.parametrize("big_endian", [False, True])
def test_decoding_twice_gives_the_same_and_leaves_the_message_alone(container, big_endian):
    """A byte swap in place on a view of the buffer would spoil the second reading."""
    cloud = xyzi_cloud(POINTS, container=container, big_endian=big_endian)
    before = bytes(cloud.data)
    first, second = decode(cloud), decode(cloud)
    np.testing.assert_array_equal(first.xyz, XYZ)
    np.testing.assert_array_equal(first.xyz, second.xyz)
    np.testing.assert_array_equal(first.intensity, second.intensity)
    assert bytes(cloud.data) == before


def test_nothing_in_the_result_can_write_to_the_message():
    cloud = xyzi_cloud(POINTS, container="numpy")
    batch = decode(cloud)
    batch.xyz[:], batch.intensity[:], batch.time_lag_s[:] = 1.0, 1.0, 1.0
    assert cloud.data.tobytes() == xyzi_cloud(POINTS).data
    assert cloud.data.flags.writeable, "the buffer of the message keeps its own flag"


@pytest.mark.parametrize("name", ["ring", "channel", "line"])
def test_ring_is_found_under_its_usual_names(name):
    cloud = xyzi_cloud(POINTS)
    assert decode(cloud).ring is None
    columns = column("x", "f4", 0) | column("y", "f4", 4) | column("z", "f4", 8)
    batch = decode(make_cloud(columns | {name: (POINTS["ring"], "u2", 12)}, 14))
    np.testing.assert_array_equal(batch.ring, POINTS["ring"])
    assert batch.ring.dtype == np.int32


def test_a_field_can_be_chosen_or_ignored_by_role():
    columns = column("x", "f4", 0) | column("y", "f4", 4) | column("z", "f4", 8)
    columns |= {"power": (POINTS["intensity"], "f4", 12), "t": (POINTS["t"], "u4", 16)}
    batch = decode(make_cloud(columns, 20), fields={"intensity": "power", "time": None})
    np.testing.assert_array_equal(batch.intensity, POINTS["intensity"])
    assert not batch.time_lag_s.any()
    with pytest.raises(InvalidFrame, match="exactly one field 'pwr'"):
        decode(make_cloud(columns, 20), fields={"intensity": "pwr"})
    with pytest.raises(ConfigError, match="Role 'colour'"):
        decode(make_cloud(columns, 20), fields={"colour": "power"})
    with pytest.raises(ConfigError, match="Role 'x' of a point cannot be ignored"):
        decode(make_cloud(columns, 20), fields={"x": None})


# --- sizes that contradict each other -------------------------------------------------------------


def broken(**changes):
    cloud = copy.copy(xyzi_cloud(POINTS))
    cloud.fields = [copy.copy(f) for f in cloud.fields]
    for name, value in changes.items():
        setattr(cloud, name, value)
    return cloud


def test_a_stale_row_step_is_refused_with_both_numbers():
    """A driver changed width and height and left row_step; stepping by it would run off the end."""
    cloud = broken(height=480, width=640, point_step=20, row_step=2_000_000)
    cloud.data = bytes(20 * 480 * 640)
    with pytest.raises(InvalidFrame, match=r"960000000.*6144000") as error:
        decode(cloud)
    assert error.value.code == "row_step"


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"row_step": 100}, "row_step", "row_step 100 is less than width x point_step"),
        ({"data": bytes(15_999)}, "data", "data holds 15999"),
        ({"data": bytes(16_001)}, "row_step", "data holds 16001"),
        ({"data": b""}, "data", "data holds 0"),
        ({"point_step": 0}, "point_step", "at least one byte"),
        ({"point_step": 12, "row_step": 16_000}, "offset", "past point_step 12"),
        ({"width": 0}, "data", "0 points but 16000 bytes"),
        ({"fields": []}, "missing_field", "exactly one field 'x'; its fields are: none"),
    ],
)
def test_contradicting_sizes_are_refused_in_a_sentence(changes, code, words):
    with pytest.raises(InvalidFrame) as error:
        decode(broken(**changes))
    assert words in str(error.value) and error.value.code == code


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("datatype", 9, "data type"),
        ("datatype", 0, "data type"),
        ("count", 3, "is an array"),
        ("offset", 14, "past point_step"),
        ("offset", 2, "overlap"),
        ("name", "x", "exactly one field 'x'"),
    ],
)
def test_an_impossible_field_is_refused_in_a_sentence(attribute, value, words):
    cloud = broken()
    setattr(cloud.fields[1], attribute, value)
    with pytest.raises(InvalidFrame, match=words):
        decode(cloud)


def test_fields_that_are_not_used_may_overlap():
    """Some drivers list colour twice, as one word and as four bytes."""
    cloud = broken(point_step=20, row_step=20_000, data=bytes(20_000))
    for name in ("rgb", "rgba"):
        extra = copy.copy(cloud.fields[0])
        extra.name, extra.offset = name, 16
        cloud.fields.append(extra)
    assert len(decode(cloud)) == 1000


# --- header -------------------------------------------------------------------------------------


def test_a_header_without_frame_is_refused_or_filled():
    cloud = xyzi_cloud(POINTS, frame_id="", stamp_ns=0)
    with pytest.raises(InvalidFrame, match="no frame_id") as error:
        decode(cloud)
    assert error.value.code == "frame_id"
    batch = decode(cloud, config=InputConfig(default_frame_id="base_link"))
    assert batch.frame_id == "base_link"
    assert {"default_frame_id", "stamp_zero"} <= set(batch.report.notes)


# --- empty, not a number, far away -------------------------------------------------------------


def test_an_empty_cloud_gives_an_empty_batch_with_its_header():
    cloud = xyzi_cloud(random_points(0))
    assert cloud.data == b""
    batch = decode(cloud)
    assert batch.xyz.shape == (0, 3) and len(batch.intensity) == len(batch.time_lag_s) == 0
    assert batch.frame_id == "lidar" and batch.report.notes == ("empty",)
    cloud.fields, cloud.height, cloud.point_step = [], 0, 0  # a message nobody filled in
    assert len(decode(cloud)) == 0


@pytest.mark.parametrize("is_dense", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_points_that_are_not_finite_leave_every_array_together(bad, is_dense):
    """One mask for coordinates, intensity, ring and time; the flag is_dense is not trusted."""
    points = {k: v.copy() for k, v in POINTS.items()}
    points["y"][::4] = bad
    names = (("x", "f4", 0), ("y", "f4", 4), ("z", "f4", 8), ("intensity", "u1", 16))
    names += (("ring", "u2", 18), ("t", "u4", 20))
    columns = {n: (points[n], code, offset) for n, code, offset in names}
    batch = decode(make_cloud(columns, 32, is_dense=is_dense))
    clean = {n: (np.delete(v, np.s_[::4]), c, o) for n, (v, c, o) in columns.items()}
    expected = decode(make_cloud(clean, 32))
    for name in ("xyz", "intensity", "ring", "time_lag_s"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(expected, name))
    assert batch.report.dropped == {"non_finite": 250} and batch.report.num_input == 1000


def test_invalid_points_never_turn_into_points_at_the_sensor():
    points = {k: v.copy() for k, v in POINTS.items()}
    points["x"] = np.abs(points["x"]) + 2
    for axis in "xyz":
        points[axis][:250] = np.nan
    batch = decode(xyzi_cloud(points))
    assert len(batch) == 750 and np.linalg.norm(batch.xyz, axis=1).min() >= 2


def test_a_cloud_of_invalid_points_only_is_empty():
    points = dict(POINTS, x=np.full(1000, np.nan, np.float32))
    batch = decode(xyzi_cloud(points))
    assert len(batch) == 0 and batch.report.dropped == {"non_finite": 1000}


def test_coordinates_of_a_map_are_refused_or_moved_to_an_origin():
    """At 200 km float32 is 16 mm apart and at 4500 km half a metre: voxels would collapse."""
    origin = (206_494.75, 4.5e6, 0.0)
    shifted = {a: POINTS[a].astype(np.float64) + o for a, o in zip("xyz", origin)}
    cloud = make_cloud({a: (shifted[a], "f8", 8 * k) for k, a in enumerate("xyz")}, 24)
    with pytest.raises(InvalidFrame, match="map frame") as error:
        decode(cloud)
    assert error.value.code == "coordinates_too_large"
    batch = decode(cloud, origin_xyz=origin)
    np.testing.assert_allclose(batch.xyz, XYZ, atol=1e-5)


def test_coordinates_that_no_map_has_point_at_the_layout():
    """A wrong byte order makes huge numbers; a map frame is not what to look for then."""
    cloud = make_cloud({axis: (np.full(9, 1e9), "f4", 4 * k) for k, axis in enumerate("xyz")}, 12)
    with pytest.raises(InvalidFrame, match="Check is_bigendian"):
        decode(cloud)


def test_a_few_absurd_coordinates_are_dropped_and_counted():
    points = {k: v.copy() for k, v in POINTS.items()}
    points["z"][:3] = 1e20
    points["x"][3] = -8192
    batch = decode(xyzi_cloud(points))
    assert len(batch) == 996 and batch.report.dropped == {"too_far_for_float32": 4}


# --- intensity ----------------------------------------------------------------------------------


def test_a_cloud_without_intensity_gets_the_default_and_says_so():
    columns = column("x", "f4", 0) | column("y", "f4", 4) | column("z", "f4", 8)
    batch = decode(make_cloud(columns, 12), config=InputConfig(default_intensity=7.0))
    assert (batch.intensity == 7).all() and batch.report.notes == ("intensity_missing",)


@pytest.mark.parametrize("code", ["u1", "i2", "u2", "i4", "u4", "f4", "f8"])
def test_intensity_of_any_type_is_read_by_value(code):
    columns = column("x", "f4", 0) | column("y", "f4", 4) | column("z", "f4", 8)
    batch = decode(make_cloud(columns | column("intensity", code, 12), 20))
    np.testing.assert_array_equal(batch.intensity, POINTS["intensity"])


def test_sensors_of_different_scale_agree_once_their_scale_is_set():
    columns = column("x", "f4", 0) | column("y", "f4", 4) | column("z", "f4", 8)
    raw = POINTS["intensity"]
    unit = make_cloud(columns | {"intensity": (raw / 255, "f4", 12)}, 16)
    wide = make_cloud(columns | {"intensity": (raw * 20, "u2", 12)}, 16)
    for cloud, scale in ((unit, 255.0), (wide, 1 / 20)):
        batch = decode(cloud, config=InputConfig(intensity_scale=scale))
        np.testing.assert_allclose(batch.intensity, raw, rtol=1e-6)
        assert not batch.report.notes
    assert decode(unit).report.notes == ("intensity_looks_like_0_to_1",)
    unscaled = decode(wide)
    assert unscaled.report.notes == ("intensity_out_of_range",) and unscaled.intensity.max() == 255


def test_an_intensity_that_is_not_a_number_does_not_cost_the_point():
    points = dict(POINTS, intensity=POINTS["intensity"].copy())
    points["intensity"][:2] = np.nan, np.inf
    batch = decode(xyzi_cloud(points), config=InputConfig(default_intensity=3.0))
    assert batch.intensity[:2].tolist() == [3, 3] and len(batch) == 1000
    assert "intensity_non_finite" in batch.report.notes


# --- capacity -----------------------------------------------------------------------------------


def test_more_points_than_the_capacity_are_thinned_evenly_and_the_same_way_every_time():
    config = InputConfig(point_capacity=300)
    batch, again = (decode(xyzi_cloud(POINTS), config=config) for _ in range(2))
    assert len(batch) == 300 and batch.report.dropped == {"over_capacity": 700}
    np.testing.assert_array_equal(batch.xyz, again.xyz)
    rows = np.flatnonzero(np.isin(XYZ[:, 0], batch.xyz[:, 0]))
    assert set(np.diff(rows)) == {3, 4}, "the kept points are spread over the whole cloud"
    np.testing.assert_array_equal(batch.intensity, POINTS["intensity"][rows])
    exact = decode(xyzi_cloud(POINTS), config=InputConfig(point_capacity=1000))
    assert len(exact) == 1000 and not exact.report.dropped


# --- sensor_msgs_py -------------------------------------------------------------------------------


@pytest.mark.skipif(
    importlib.util.find_spec("sensor_msgs_py") is None or importlib.util.find_spec("rclpy") is None,
    reason="sensor_msgs_py comes with a ROS install only",
)
@pytest.mark.parametrize("step", [16, 32])
def test_sensor_msgs_py_reads_the_same_where_it_reads_correctly(step):
    """It ignores row_step, keeps Inf and swaps bytes in place, so only plain layouts compare."""
    from sensor_msgs.msg import PointCloud2, PointField
    from sensor_msgs_py.point_cloud2 import read_points
    from std_msgs.msg import Header

    plain = make_cloud(
        {n: (POINTS[n], "f4", 4 * k) for k, n in enumerate(("x", "y", "z", "intensity"))}, step
    )
    msg = PointCloud2(header=Header(frame_id="lidar"), height=1, width=1000, is_dense=True)
    msg.fields = [PointField(**vars(f)) for f in plain.fields]
    msg.point_step, msg.row_step, msg.data = step, plain.row_step, plain.data
    theirs = read_points(msg, field_names=["x", "y", "z", "intensity"])
    ours = decode(msg)
    np.testing.assert_array_equal(ours.xyz, np.stack([theirs[a] for a in "xyz"], axis=1))
    np.testing.assert_array_equal(ours.intensity, theirs["intensity"])


# --- cost ---------------------------------------------------------------------------------------


BIG = random_points(300_000)
BIG_XYZ = {a: (BIG[a], "f4", 4 * k) for k, a in enumerate("xyz")}
WITH_HOLES = dict(BIG, x=np.where(np.arange(300_000) % 4, BIG["x"], np.nan).astype(np.float32))


@pytest.mark.parametrize("container", ["array", "numpy"])
@pytest.mark.parametrize(
    ("columns", "point_step", "options"),
    [
        (BIG_XYZ | {"intensity": (BIG["intensity"], "f4", 12)}, 16, {}),
        (BIG_XYZ | {"intensity": (BIG["intensity"], "f4", 12)}, 16, {"big_endian": True}),
        (
            {a: (BIG[a], "f8", 8 * k) for k, a in enumerate("xyz")}
            | {"intensity": (BIG["intensity"], "u1", 24), "ring": (BIG["ring"], "u2", 25)},
            27,
            {},
        ),
        (
            {a: (WITH_HOLES[a], "f4", 4 * k) for k, a in enumerate("xyz")}
            | {"intensity": (BIG["intensity"], "f4", 16), "t": (BIG["t"], "u4", 20)}
            | {"ring": (BIG["ring"], "u2", 26)},
            48,
            {"height": 100},
        ),
    ],
    ids=["plain", "big_endian", "float64_misaligned", "organized_with_nan_time_and_ring"],
)
def test_three_hundred_thousand_points_decode_in_the_time_of_four_plain_passes(
    columns, point_step, options, container
):
    """A pass finds and copies the finite rows of an array. Best of each, in turn, in CPU time: the
    machine may be slow, or busy beside. A decoder that looks at one point at a time takes forty.
    """
    cloud = make_cloud(columns, point_step, container=container, **options)
    rows = np.stack([BIG[name] for name in ("x", "y", "z", "intensity")], axis=1)
    decode_s, passes_s = [], []
    for _ in range(20):
        start = time.thread_time()
        decode(cloud)
        between = time.thread_time()
        rows[np.isfinite(rows).all(axis=1)]
        decode_s.append(between - start)
        passes_s.append(time.thread_time() - between)
    best_s, pass_s = min(decode_s), min(passes_s)
    assert best_s <= 4 * pass_s, f"{best_s * 1e3:.1f} ms, a pass {pass_s * 1e3:.1f} ms"
