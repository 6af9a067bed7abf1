"""What is left out to save time is never seen: sweeps have the bytes that the plain way gives."""

from __future__ import annotations

import numpy as np
import pytest

from driveRT_ros.sim import lidar
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.lidar import Lidar, Sweep
from driveRT_ros.sim.simulate import simulate
from driveRT_ros.sim.solids import placed
from driveRT_ros.sim.streams import SWEEP, stream
from driveRT_ros.sim.world import World
from driveRT_ros.train.config import FIRST_TRAINING_SEED
from driveRT_ros.train.drives import varied_drive
from test.support.plain_ground import plain_ground
from test.support.plain_rays import plain_cast


def sweep_of(config: SimConfig, index: int) -> Sweep:
    return Lidar(World(config)).sweep(index, stream(config.seed, SWEEP, index))


CONFIGS = {
    "town": SimConfig(seed=3, num_sweeps=8),
    "own vehicle unseen": SimConfig.from_dict({"seed": 5, "lidar.self_returns": False}),
    "steep": SimConfig.from_dict({"seed": 6, "road.max_slope": 0.05, "road.kerb_height_m": 0.4}),
    "short sight": SimConfig.from_dict({"seed": 8, "lidar.max_range_m": 25.0}),
    "few beams": SimConfig.from_dict({"seed": 9, "lidar.num_beams": 3, "lidar.num_azimuths": 90}),
    "tilted": SimConfig.from_dict({"seed": 4, "lidar.pitch_rad": -0.1, "lidar.roll_rad": 0.15}),
    **{f"drive {k}": varied_drive(FIRST_TRAINING_SEED + k, 1.0, {}) for k in (2, 11, 40)},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_sweep_has_the_bytes_of_one_in_which_nothing_is_left_out(name, monkeypatch):
    config = CONFIGS[name]
    fast = sweep_of(config, 7)
    monkeypatch.setattr(lidar, "cast", plain_cast)
    monkeypatch.setattr(lidar, "cast_ground", plain_ground)
    plain = sweep_of(config, 7)
    assert fast.points.xyz.tobytes() == plain.points.xyz.tobytes()
    assert fast.points.intensity.tobytes() == plain.points.intensity.tobytes()
    np.testing.assert_array_equal(fast.owner, plain.owner)
    assert len(set(fast.owner.tolist())) > 5 and fast.returned.mean() > 0.2


def test_sweeps_that_nobody_asks_to_annotate_differ_in_nothing_else():
    config = SimConfig(seed=3, num_sweeps=3)
    some = list(simulate(config, annotated=lambda index: index == 1))
    assert [frame.ground_truth is not None for frame in some] == [False, True, False]
    for frame, full in zip(some, simulate(config)):
        assert frame.points.xyz.tobytes() == full.points.xyz.tobytes()
        assert frame.T_world_ego.tobytes() == full.T_world_ego.tobytes()
        if frame.ground_truth is not None:
            assert frame.ground_truth.boxes.equal(full.ground_truth.boxes)
            assert frame.ground_truth.num_points.equal(full.ground_truth.num_points)


def test_everyone_placed_at_once_stands_where_each_would_alone():
    world = World(SimConfig(seed=3))
    traffic, time_s = world.traffic, 1.7
    s_ego = float(world.ego_s(time_s))
    actors, bodies = traffic.at(time_s, s_ego, world.reach_m)
    riders = {
        rider.track_id: rider
        for flow in traffic.flows
        for slot in range(-40, 40)
        for rider in traffic._riders(flow, slot)
    }
    assert len(actors) > 50 and len({actor.track_id for actor in actors}) == len(actors)
    begin = 0
    for actor in actors:
        own = riders[actor.track_id].bodies
        alone = placed(own, actor.x, actor.y, actor.z, actor.yaw, actor.track_id)
        assert bodies[begin : begin + len(own)].tobytes() == alone.tobytes()
        begin += len(own)
    assert begin == len(bodies)
