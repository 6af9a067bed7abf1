"""Statistics count voxels and neighbours rightly, and simulated scenes resemble real ones."""

from __future__ import annotations

import itertools

import numpy as np

from driveRT_ros.core.frame import PointBatch, SceneFrame
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.simulate import simulate
from driveRT_ros.sim.stats import REAL_INTENSITY, REAL_LEVELS, accumulate, scene_statistics

SHAPE = (41, 1440, 1440)


def frame_at(cells_xyz: np.ndarray, T_world_ego: np.ndarray | None = None) -> SceneFrame:
    """Return a frame with one point in the middle of each voxel."""
    xyz = (np.array([-54, -54, -5]) + (cells_xyz + 0.5) * (0.075, 0.075, 0.2)).astype(np.float32)
    zeros = np.zeros(len(xyz), np.float32)
    points = PointBatch(xyz, zeros, zeros, None, 0, "lidar")
    return SceneFrame(points, np.eye(4) if T_world_ego is None else T_world_ego, np.eye(4))


def by_dictionary(cells_zyx: set[tuple[int, ...]]) -> list[tuple[int, float]]:
    """Return voxels and mean neighbours of four levels, cell by cell."""
    out, shape = [], SHAPE
    for level in range(4):
        if level:
            shape = tuple((n - 1) // 2 + 1 for n in shape)
            coarse = set()
            for cell, tap in itertools.product(cells_zyx, itertools.product(range(3), repeat=3)):
                twice = [c + 1 - t for c, t in zip(cell, tap)]
                if all(v % 2 == 0 and 0 <= v // 2 < n for v, n in zip(twice, shape)):
                    coarse.add(tuple(v // 2 for v in twice))
            cells_zyx = coarse
        near = sum(
            tuple(c + o for c, o in zip(cell, offset)) in cells_zyx
            for cell in cells_zyx
            for offset in itertools.product((-1, 0, 1), repeat=3)
        )
        out.append((len(cells_zyx), near / len(cells_zyx)))
    return out


def test_levels_agree_with_a_dictionary():
    rng = np.random.default_rng(0)
    clump = rng.integers((700, 700, 10), (716, 712, 16), (120, 3))
    edges = np.array([(0, 0, 0), (1439, 1439, 39), (1439, 0, 39), (0, 1439, 0), (1, 0, 1)])
    cells = np.unique(np.concatenate([clump, edges]), axis=0)
    ours = scene_statistics([frame_at(cells)])
    assert ours.num_points == len(cells)
    expected = by_dictionary({tuple(map(int, c[::-1])) for c in cells})
    for (n, mean), (wanted_n, wanted_mean) in zip(ours.levels, expected):
        assert n == wanted_n and abs(mean - wanted_mean) < 1e-12


def test_accumulation_moves_past_points_into_the_present_frame_and_drops_close_ones():
    past, now = np.array([(800, 720, 20)]), np.array([(760, 720, 20)])
    forward = np.eye(4)
    forward[0, 3] = 3.0  # 40 voxels: the past cell of 800 is now at 760
    both = scene_statistics([frame_at(past), frame_at(now, forward)])
    assert both.num_points == 2 and both.levels[0] == (1, 1.0)
    close = np.array([(722, 722, 20)])
    assert len(accumulate([frame_at(close), frame_at(close)])) == 1


def test_no_frames_give_empty_statistics():
    empty = scene_statistics([])
    assert empty.levels == ((0, 0.0),) * 4 and "0 voxels" in str(empty)


def test_the_table_of_real_clouds_is_what_the_same_code_counts_on_one(data_dir):
    path = data_dir / "nuscenes/multisweep_points/ff9eff4389a740848f9a56ad749a4ae8.bin"
    xyz = np.fromfile(path, np.float16).reshape(-1, 5)[:, :3].astype(np.float32)
    zeros = np.zeros(len(xyz), np.float32)
    cloud = PointBatch(xyz, zeros, zeros, None, 0, "lidar")
    ours = scene_statistics([SceneFrame(cloud, np.eye(4), np.eye(4))])
    for (n, mean), (real_n, real_mean) in zip(ours.levels, REAL_LEVELS["real C"]):
        # Points on a face of a voxel round differently in float32: 4 in 10,000 voxels.
        assert abs(n - real_n) < 1e-3 * real_n and abs(mean - real_mean) < 0.06


def test_ten_simulated_sweeps_resemble_real_ones():
    frames = list(simulate(SimConfig(seed=4, num_sweeps=10)))
    ours = scene_statistics(frames)
    assert 50_000 < ours.levels[0][0] < 125_000
    for (_, mean), low, high in zip(ours.levels, (5.5, 11.5, 14.0, 15.0), (7.6, 14.5, 16.8, 17.0)):
        assert low < mean < high
    assert 0.5 * np.abs(np.subtract(ours.intensity, REAL_INTENSITY)).sum() < 0.2
    cars = ours.points_per_object["car"]
    assert cars[0] > 200 and cars[0] > cars[1] > cars[2] > cars[3] and cars[4] < 20
    text = str(ours)
    assert "real C" in text and "simulated" in text and "pedestrian" in text
