"""Drives are repeatable, their ground truth fits their points, and the geometry is consistent."""

from __future__ import annotations

import dataclasses
import hashlib
from functools import cache

import numpy as np
import pytest

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import NUSCENES_CLASSES, SceneFrame
from driveRT_ros.sim.config import LidarSensorConfig, SimConfig
from driveRT_ros.sim.lidar import Lidar
from driveRT_ros.sim.simulate import count_points, frame_of, simulate
from driveRT_ros.sim.solids import BOX
from driveRT_ros.sim.streams import SWEEP, stream
from driveRT_ros.sim.world import World
from test.support.streets import corners_xy, inside, overlap, world_points


@cache
def drive(seed: int, num_sweeps: int) -> tuple[SceneFrame, ...]:
    return tuple(simulate(SimConfig(seed=seed, num_sweeps=num_sweeps)))


def digest(frame: SceneFrame) -> str:
    truth = frame.ground_truth
    parts = (
        frame.points.xyz, frame.points.intensity, frame.points.time_lag_s, frame.points.ring,
        np.int64(frame.points.stamp_ns), frame.T_world_ego, frame.T_ego_lidar,
        truth.boxes.numpy(), truth.labels.numpy(), truth.num_points.numpy(),
        truth.track_ids.numpy(),
    )  # fmt: skip
    return hashlib.sha256(b"".join(np.ascontiguousarray(p).tobytes() for p in parts)).hexdigest()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not():
    again = [digest(f) for f in simulate(SimConfig(seed=3, num_sweeps=2))]
    assert again == [digest(f) for f in drive(3, 4)[:2]]
    assert digest(drive(4, 2)[0]) != again[0]


def test_a_short_drive_is_the_beginning_of_a_longer_one():
    long = [digest(f) for f in simulate(SimConfig(seed=3, num_sweeps=6))]
    assert long[:4] == [digest(f) for f in drive(3, 4)]


def test_a_sweep_has_32_beams_of_1084_firings_at_20_hz():
    frames = drive(3, 4)
    for frame in frames:
        points = frame.points
        assert len(points) == 32 * 1084 == len(points.ring)
        np.testing.assert_array_equal(np.bincount(points.ring), np.full(32, 1084))
        assert points.xyz.dtype == np.float32 and np.isfinite(points.xyz).all()
        assert points.intensity.min() >= 0 and points.intensity.max() <= 255
        assert not points.time_lag_s.any()
    stamps = [f.points.stamp_ns for f in frames]
    assert np.diff(stamps).tolist() == [50_000_000] * 3


def test_rings_keep_their_elevation_and_turn_clockwise():
    # A vehicle that stands still is not compensated for, so angles are those of the beams.
    config = SimConfig.from_dict({"seed": 1, "num_sweeps": 1, "traffic.ego_speed_mps": 0.0})
    points = next(simulate(config)).points
    elevations = np.linspace(-30.6667, 10.6667, 32)
    far = np.linalg.norm(points.xyz, axis=1) > 1.0
    measured = np.degrees(np.arctan2(points.xyz[:, 2], np.hypot(*points.xyz[:, :2].T)))
    np.testing.assert_allclose(measured[far], elevations[points.ring[far]], atol=0.02)
    azimuth = np.arctan2(points.xyz[:, 1], points.xyz[:, 0])[(points.ring == 12) & far]
    turn = np.unwrap(azimuth)
    assert (np.diff(turn) < 0).all() and abs(turn[0] - turn[-1]) < 2 * np.pi


def test_the_beams_are_those_of_a_real_sweep(data_dir):
    (path,) = (data_dir / "nuscenes/scene-0061").glob("*LIDAR_TOP*.pcd.bin")
    real = np.fromfile(path, np.float32).reshape(-1, 5)
    config = LidarSensorConfig()
    assert len(real) == config.num_beams * config.num_azimuths
    reach = np.hypot(real[:, 0], real[:, 1])
    elevations = np.linspace(config.elevation_min_deg, config.elevation_max_deg, 32)
    for ring in range(8, 32):  # lower beams mostly meet the vehicle itself
        mine = (real[:, 4] == ring) & (reach > 4.0)
        measured = np.degrees(np.median(np.arctan2(real[mine, 2], reach[mine])))
        # Compensation for 0.4 m of motion bends what is close, so low rings are off by more.
        assert abs(measured - elevations[ring]) < (0.1 if ring >= 15 else 0.25)


def test_rays_without_return_lie_at_the_sensor_and_can_be_left_out():
    config = SimConfig(seed=3, num_sweeps=1)
    lidar = Lidar(World(config))
    sweep = lidar.sweep(0, stream(3, SWEEP, 0))
    silent = ~sweep.returned
    assert 0.1 < silent.mean() < 0.6
    assert np.linalg.norm(sweep.points.xyz[silent], axis=1).max() < 1.0
    thin = dataclasses.replace(config, lidar=LidarSensorConfig(keep_no_returns=False))
    assert len(next(simulate(thin)).points) == sweep.returned.sum()


@pytest.mark.parametrize("seed", (3, 5))
def test_boxes_hold_the_points_of_their_object(seed):
    config = SimConfig.from_dict({"seed": seed, "num_sweeps": 3})
    lidar = Lidar(World(config))
    sweep = lidar.sweep(2, stream(seed, SWEEP, 2))
    frame = frame_of(lidar, 2, sweep)
    truth, missed, total = frame.ground_truth, 0, 0
    for box, track, number in zip(truth.boxes.numpy(), truth.track_ids, truth.num_points):
        own = sweep.points.xyz[sweep.owner == int(track)]
        inside = count_points(own, box[None], 0.12)[0]
        missed, total = missed + len(own) - inside, total + len(own)
        # What else is in the box: the ground below it, leaves above, someone who stands close.
        assert len(own) - 6 - 0.05 * len(own) <= int(number) <= len(own) + 12 + 0.3 * len(own)
    # Boxes stand upright in the tilted frame of the sensor, so tall objects stick out a little.
    assert total > 1000 and missed < 0.02 * total
    assert len(set(truth.track_ids.tolist())) == len(truth)


def test_velocity_is_displacement_in_the_world_over_time_and_not_relative_to_the_vehicle():
    frames = simulate(SimConfig.from_dict({"seed": 3, "num_sweeps": 5, "lidar.dropout": 0.0}))
    first, *_, last = frames
    dt = (last.points.stamp_ns - first.points.stamp_ns) * 1e-9

    def tracks(frame: SceneFrame) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        T = frame.T_world_ego @ frame.T_ego_lidar
        boxes = frame.ground_truth.boxes.numpy().astype(np.float64)
        velocity = np.c_[boxes[:, 7:9], np.zeros(len(boxes))] @ T[:3, :3].T
        ids = frame.ground_truth.track_ids.tolist()
        return dict(zip(ids, zip(boxes[:, :3] @ T[:3, :3].T + T[:3, 3], velocity)))

    before, after = tracks(first), tracks(last)
    moving = 0
    for track in before.keys() & after.keys():
        displacement = (after[track][0] - before[track][0])[:2] / dt
        expected = (after[track][1] + before[track][1])[:2] / 2
        np.testing.assert_allclose(displacement, expected, atol=0.06)
        moving += np.linalg.norm(expected) > 0.5
    assert moving >= 5 and len(before.keys() & after.keys()) - moving >= 5


def test_moving_objects_head_where_they_drive():
    for frame in (drive(3, 4)[0], drive(4, 2)[0]):
        boxes = frame.ground_truth.boxes.numpy()
        fast = boxes[np.hypot(boxes[:, 7], boxes[:, 8]) > 0.5]
        heading = np.stack([np.cos(fast[:, 6]), np.sin(fast[:, 6])], 1)
        along = (heading * fast[:, 7:9]).sum(1) / np.hypot(fast[:, 7], fast[:, 8])
        assert len(fast) and (along > 0.99).all()


def test_the_vehicle_drives_forward_at_its_speed_along_its_poses():
    frames = drive(3, 4)
    for before, after in zip(frames, frames[1:]):
        step = np.linalg.inv(before.T_world_ego) @ after.T_world_ego
        assert 0.05 * 9 * 0.8 < step[0, 3] < 0.05 * 9 * 1.2
        assert abs(step[1, 3]) < 0.02 and abs(step[2, 3]) < 0.02
        np.testing.assert_allclose(step[:3, :3] @ step[:3, :3].T, np.eye(3), atol=1e-12)


def test_the_sensor_is_mounted_as_on_nuscenes_vehicles():
    T = drive(3, 4)[0].T_ego_lidar
    measured = np.array(  # calibration of a real vehicle, rotation rounded
        [[0.0020, 0.9997, 0.0242], [-1.0000, 0.0022, -0.0058], [-0.0059, -0.0242, 0.9997]]
    )
    np.testing.assert_allclose(T[:3, :3], measured, atol=3e-3)
    np.testing.assert_allclose(T[:3, 3], (0.9437, 0.0, 1.8402))
    np.testing.assert_allclose(T[:3, :3] @ T[:3, :3].T, np.eye(3), atol=1e-12)


@pytest.mark.parametrize("seed", (2, 7))
def test_points_lie_on_the_ground_or_above_it_once_moved_into_the_world(seed):
    # Also proves the compensation within the sweep: the vehicle moves 0.45 m during one.
    config = SimConfig.from_dict({"seed": seed, "num_sweeps": 2, "lidar.range_noise_m": 0.0})
    lidar = Lidar(World(config))
    sweep = lidar.sweep(1, stream(seed, SWEEP, 1))
    frame = frame_of(lidar, 1, sweep)
    road = lidar.world.road
    keep = sweep.returned & (np.linalg.norm(sweep.points.xyz, axis=1) > 2.6)
    x, y, z = world_points(frame, keep).T
    above = z - road.height(x, y)
    assert above.min() > -0.06
    _, d = road.locate(x, y, float(lidar.world.ego_s(0.05)))
    carriageway = (np.abs(d) < road.lane_edge_m - 0.2) & (sweep.owner[keep] == -1) & (above < 1.0)
    assert carriageway.sum() > 2000
    assert np.abs(above[carriageway]).max() < 0.02


def test_nothing_is_seen_inside_a_solid_object():
    config = SimConfig.from_dict({"seed": 2, "num_sweeps": 1, "lidar.range_noise_m": 0.0})
    lidar = Lidar(World(config))
    sweep = lidar.sweep(0, stream(2, SWEEP, 0))
    frame = frame_of(lidar, 0, sweep)
    points = world_points(frame, sweep.returned)
    bodies = lidar.world.at(0.0).bodies
    deep = (bodies["kind"] == BOX) & (bodies["fill"] >= 1.0) & (bodies["half"].min(1) > 0.15)
    for body in bodies[deep]:
        shrunk = body.copy()
        shrunk["half"] = body["half"] - 0.1
        near = np.linalg.norm(points - body["centre"], axis=1) < np.linalg.norm(body["half"])
        assert not inside(shrunk, points[near]).any()
    assert deep.sum() > 50


@pytest.mark.parametrize("seed", range(10))
def test_no_two_objects_and_not_the_own_vehicle_share_a_place(seed):
    world = World(SimConfig(seed=seed, num_sweeps=400))
    for time_s in (0.0, 7.3, 19.0):
        actors = world.at(time_s).actors
        shapes = [corners_xy(np.array([a.x, a.y, 0, *a.size_lwh, a.yaw]), 0.06) for a in actors]
        pose = world.T_world_ego(np.array([time_s]))[0]
        middle = pose @ (1.3, 0.0, 0.0, 1.0)
        own = np.array([*middle[:2], 0, 4.1, 1.75, 1.6, np.arctan2(pose[1, 0], pose[0, 0])])
        shapes.append(corners_xy(own))
        centres = np.array([s.mean(0) for s in shapes])
        for k, shape in enumerate(shapes):
            near = np.linalg.norm(centres[k + 1 :] - centres[k], axis=1) < 16.0
            for other in np.nonzero(near)[0] + k + 1:
                assert not overlap(shape, shapes[other]), (
                    actors[k], "own vehicle" if other == len(actors) else actors[other]
                )  # fmt: skip


def test_all_ten_classes_appear_over_a_few_seeds_with_their_sizes():
    seen: dict[int, list[tuple[float, ...]]] = {}
    for seed in range(12):
        world = World(SimConfig(seed=seed, num_sweeps=1))
        for actor in world.at(0.0).actors:
            seen.setdefault(actor.label, []).append(actor.size_lwh)
    assert sorted(seen) == list(range(10))
    cars = np.array(seen[NUSCENES_CLASSES.index("car")])
    np.testing.assert_allclose(cars.mean(0), (4.55, 1.84, 1.66), atol=0.06)
    people = np.array(seen[NUSCENES_CLASSES.index("pedestrian")])
    np.testing.assert_allclose(people.mean(0), (0.70, 0.66, 1.75), atol=0.04)


def test_only_objects_within_range_that_are_hit_are_annotated():
    for frame in drive(3, 4):
        truth = frame.ground_truth
        assert (np.hypot(*truth.boxes[:, :2].numpy().T) <= 60.0 + 1e-3).all()
        assert (truth.num_points >= 1).all() and len(truth) >= 10
        assert (truth.scores == 1).all() and truth.boxes.shape == (len(truth), 9)


def test_densities_of_zero_leave_an_empty_road_with_ground():
    nothing = dict.fromkeys(("vehicles", "parked", "pedestrians", "cyclists", "roadworks"), 0.0)
    scenery = dict.fromkeys(("buildings", "vegetation", "street_furniture"), 0.0)
    config = SimConfig.from_dict({"num_sweeps": 1, "traffic": nothing, "scenery": scenery})
    frame = next(simulate(config))
    assert len(frame.ground_truth) == 0 and frame.ground_truth.boxes.shape == (0, 9)
    assert (np.linalg.norm(frame.points.xyz, axis=1) > 3.0).sum() > 5000


def test_haze_adds_close_faint_points_and_hides_far_ones():
    clear = drive(3, 4)[0]
    hazy = next(simulate(SimConfig.from_dict({"seed": 3, "num_sweeps": 1, "lidar.clutter": 0.3})))
    r_clear, r_hazy = (np.linalg.norm(f.points.xyz, axis=1) for f in (clear, hazy))
    assert (r_hazy > 15).sum() < 0.85 * (r_clear > 15).sum()
    faint = (hazy.points.intensity == 2.0) & (r_hazy > 0.9)
    assert faint.sum() > 3000 and np.median(r_hazy[faint]) < 6.0


def test_a_value_out_of_range_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"traffic\.parked"):
        SimConfig.from_dict({"traffic": {"parked": 9.0}})
    assert SimConfig.from_dict(SimConfig(seed=5).to_dict()) == SimConfig(seed=5)
    assert all(p.info.doc for p in SimConfig.parameters())
    assert list(simulate(SimConfig(num_sweeps=0))) == []
