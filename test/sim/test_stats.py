"""Statistics count voxels and neighbours rightly, and simulated scenes resemble real ones."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import NUSCENES_CLASSES, PointBatch, SceneFrame
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.realism import (
    Sample,
    difference,
    draw_samples,
    real_sample,
    simulated_sample,
    table_samples,
    tabled_sample,
)
from driveRT_ros.sim.simulate import simulate
from driveRT_ros.sim.stats import (
    REAL_INTENSITY,
    REAL_LEVELS,
    REAL_POINTS,
    accumulate,
    scene_statistics,
)

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


# ---- simulated frames beside real ones -----------------------------------------------------------


def test_a_sample_of_one_drive_has_the_statistics_of_its_last_sweep():
    config = SimConfig.from_dict({"lidar.num_azimuths": 180})
    told = []
    sample = simulated_sample(1, 4, config, lambda: told.append(1))
    frames = list(simulate(SimConfig.from_dict({**config.to_dict(), "seed": 4, "num_sweeps": 10})))
    whole, last = scene_statistics(frames), scene_statistics(frames[-1:])
    assert len(told) == sample.frames == 1
    assert sample.voxels == (whole.levels[0][0],)
    assert sample.points == last.points_per_object
    assert sample.intensity == pytest.approx(last.intensity)
    assert sample.objects == int((frames[-1].ground_truth.num_points > 0).sum())


def test_recorded_files_give_points_voxels_and_intensity(tmp_path):
    far, near = (10.0, 0.0, 0.0, 20.0, 3.0), (1.0, 0.0, 0.0, 200.0, 3.0)
    sweep = np.array([far, far, near, (0.0, 10.0, 0.0, 5.0, 0.0)], np.float32)
    sweep.tofile(tmp_path / "n015__LIDAR_TOP__1.pcd.bin")
    (tmp_path / "deep" / "multisweep_points").mkdir(parents=True)
    sweep.astype(np.float16).tofile(tmp_path / "deep" / "multisweep_points" / "a.bin")
    info = {
        "gt_boxes": [[3.0, 4.0, 0, 1, 1, 1, 0], [0, 25.0, 0, 1, 1, 1, 0], [0, 6.0, 0, 1, 1, 1, 0]],
        "gt_names": ["car", "ignore", "car"],
        "num_lidar_pts": [30, 99, 10],
    }
    (tmp_path / "some_infos.json").write_text(json.dumps({"infos": [info]}))
    sample = real_sample(tmp_path)
    assert (sample.frames, sample.objects) == (2, 2)
    assert sample.voxels == (3,)
    assert sample.points["car"] == (20.0, None, None, None, None, None)
    assert sample.intensity == pytest.approx((0, 1 / 3, 0, 2 / 3, 0, 0, 0))


def test_folders_without_frames_and_broken_files_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="has no real frames"):
        real_sample(tmp_path)
    (tmp_path / "x_infos.json").write_text("[]")
    with pytest.raises(ConfigError, match="x_infos.json' cannot be read"):
        real_sample(tmp_path)
    np.zeros(7, np.float32).tofile(tmp_path / "LIDAR_TOP.pcd.bin")
    with pytest.raises(ConfigError, match="does not hold 5 float32"):
        real_sample(tmp_path)


def test_the_table_of_points_on_real_objects_is_what_the_same_code_counts(data_dir):
    sample = real_sample(data_dir / "nuscenes")
    for name, points in REAL_POINTS.items():
        for ours, tabled in zip(sample.points[name], points):
            assert tabled is None or ours == pytest.approx(tabled, rel=0.05), name
    assert 100_000 < sample.voxels[0] < 110_000 and sample.frames >= 3


def test_the_difference_of_samples_is_in_octaves_and_shares():
    def bright(first):
        return (first, 1 - first, 0, 0, 0, 0, 0)

    points = dict.fromkeys(NUSCENES_CLASSES, (None,) * 6)
    one = Sample("a", 1, 1, points | {"car": (8.0, 4.0, None, 1.0, None, None)}, (50,), bright(0.5))
    two = Sample(
        "b", 1, 1, points | {"car": (2.0, 1.0, 7.0, None, None, None)}, (100,), bright(0.2)
    )
    apart = difference(one, two)
    assert apart["points_car"] == 2.0 and apart["voxels"] == -1.0
    assert apart["intensity"] == pytest.approx(0.3) and apart["points_bus"] is None
    assert difference(one, tabled_sample())["voxels"] == pytest.approx(math.log2(50 / 91_090))


def test_both_samples_are_in_one_picture():
    real = tabled_sample()
    few = dict.fromkeys(NUSCENES_CLASSES, (100.0, 10.0, 1.0, None, None, None))
    sample = Sample("few", 1, 30, few, (90_000,), REAL_INTENSITY)
    picture = draw_samples(sample, real)
    other = draw_samples(Sample("few", 1, 30, few, (120_000,), REAL_INTENSITY), real)
    changed = np.nonzero((picture != other).any(axis=2))
    # only the panel of voxels, the third of the last row of four, tells them apart
    height, width = picture.shape[:2]
    assert width / 2 < changed[1].min() and changed[1].max() < 3 * width / 4 + 10
    assert changed[0].min() > height / 2


def test_tables_hold_both_samples_class_by_class():
    few = dict.fromkeys(NUSCENES_CLASSES, (None,) * 6) | {"car": (300.0, 12.5, None, 1, None, None)}
    text = table_samples(Sample("few", 1, 30, few, (50, 70, 90), (1, *[0] * 6)), tabled_sample())
    lines = text.splitlines()
    assert "| car | 466 / 300 | 52.5 / 12.5 | 11 / - | 4 / 1 | 3 / - | 2 / - |" in lines
    assert not any(line.startswith("| trailer") for line in lines)  # neither knows any
    assert (
        "| real | 68,843 | 91,090 | 102,998 |" in lines and "| simulated | 60 | 70 | 80 |" in lines
    )
    assert "| simulated | 1.000 | 0.000 | 0.000 | 0.000 | 0.000 | 0.000 | 0.000 |" in lines
