"""Voxels written beside the detector: complete files, a bounded number of them, faults told."""

from __future__ import annotations

import math
import os
import sys
import threading

import numpy as np
import pytest
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.turn import Turn, facing
from driveRT_ros.core.voxelize import voxelize
from driveRT_ros.io import nvdb_frames
from driveRT_ros.io.nvdb import active_voxels, channels, read_nvdb
from driveRT_ros.io.nvdb_frames import GridFiles, prefix_of, write_cloud_grid

STAMP_NS = 1_700_000_000_000_000_000


def config_for(folder, **more):
    settings = {"nanovdb_dir": str(folder), "nanovdb_every": 1, **more}
    return LidarConfig.from_dict({f"diagnostics.{key}": value for key, value in settings.items()})


def points_of(seed=0, count=500):
    rng = np.random.default_rng(seed)
    points = rng.uniform((-20, -20, -2, 0, 0), (20, 20, 2, 255, 0), (count, 5))
    return torch.from_numpy(points.astype(np.float32))


def test_a_frame_becomes_the_files_that_export_writes(tmp_path):
    files, config, points = GridFiles(), config_for(tmp_path / "grids"), points_of()
    assert files.frame(STAMP_NS, points, config) == {} and files.wait(90)
    names = sorted(path.name for path in (tmp_path / "grids").iterdir())
    assert names == [f"voxels_{STAMP_NS}.index.nvdb", f"voxels_{STAMP_NS}.nvdb"]
    (index,) = read_nvdb(tmp_path / "grids" / names[0])
    voxels = voxelize(points, config.voxelization)
    found = active_voxels(index)
    order = np.lexsort(found.coords_zyx.T[::-1])
    cells = voxels.coords_bzyx[:, 1:].numpy()
    expected = np.lexsort(cells.T[::-1])
    assert np.array_equal(found.coords_zyx[order], cells[expected])
    counts = channels(index)["point_count"][found.values[order]]
    assert np.array_equal(counts, voxels.num_points.numpy()[expected])


@pytest.mark.parametrize("forward_yaw_deg", [0.0, 180.0, -57.0])
def test_voxels_lie_where_the_sensor_has_them_however_it_is_mounted(tmp_path, forward_yaw_deg):
    """Cells are those of the network, which has turned them; tools show them among the points."""
    straight = LidarConfig()
    config, points = facing(straight, forward_yaw_deg), points_of()
    to_sensor = Turn.to_network(config).back
    write_cloud_grid(tmp_path / "a.nvdb", points, straight)
    write_cloud_grid(tmp_path / "b.nvdb", to_sensor.rows(points), config)
    for name in ("a.nvdb", "b.nvdb"):
        grid = read_nvdb(tmp_path / name)[0]
        record, T = grid.record, grid.T_lidar_voxel
        assert np.allclose(record["map"]["inverse"] @ T[:3, :3], np.eye(3), atol=1e-12)
        cells_xyz = active_voxels(grid).coords_zyx[:, ::-1]
        centres = cells_xyz @ T[:3, :3].T + T[:3, 3]
        seen = points if name == "a.nvdb" else to_sensor.rows(points)
        apart = np.abs(centres[:, None, :2] - seen[None, :, :2].numpy()).max(axis=2).min(axis=1)
        assert apart.max() < 0.075 / math.sqrt(2) + 1e-4 and len(centres) > 400
        low, high = record["world_bbox"]
        assert (centres >= low - 1e-9).all() and (centres <= high + 1e-9).all()
        assert (high - low < 41.5).all() or forward_yaw_deg == -57.0


def test_every_so_manieth_frame_is_written_and_the_newest_are_kept(tmp_path):
    files, config = GridFiles(), config_for(tmp_path, nanovdb_every=3, nanovdb_keep=2)
    (tmp_path / "mine.nvdb").write_text("not one of these")
    (tmp_path / f"voxels_{1:019d}.nvdb.part").write_text("left by a process that was killed")
    for number in range(10):  # frames 0, 3, 6 and 9 are written
        files.frame(STAMP_NS + number, points_of(), config)
        assert files.wait(90)
    left = {path.name for path in tmp_path.iterdir()}
    kept = {f"voxels_{STAMP_NS + n}{end}" for n in (6, 9) for end in (".nvdb", ".index.nvdb")}
    assert left == {"mine.nvdb", *kept}


@pytest.mark.parametrize(
    "names",
    [("/front/lidar_node", "/rear/lidar_node"), ("/a", "/a_voxels_1"), ("", "/voxels"), ("/b", "")],
)
def test_two_nodes_of_one_folder_leave_each_other_their_files(names, tmp_path):
    """Each would remove the newest of the other, and what the other is still writing."""
    config = config_for(tmp_path, nanovdb_keep=1)
    writers = [GridFiles(name) for name in names]
    half = [f"{prefix_of(name)}{1:019d}.index.nvdb.part" for name in names]
    for number, files in enumerate(2 * writers):
        if number == 3:
            (tmp_path / half[0]).touch()
        assert files.frame(STAMP_NS + number, points_of(), config) == {} and files.wait(90)
    kept = {
        f"{prefix_of(name)}{STAMP_NS + number}{end}"
        for name, number in zip(names, (2, 3))
        for end in (".nvdb", ".index.nvdb")
    }
    assert {path.name for path in tmp_path.iterdir()} == {*kept, half[0]} and len(kept) == 4


def test_files_that_cannot_be_written_do_not_keep_old_ones(tmp_path, monkeypatch):
    """On a full disk nothing is written; the room that a smaller number frees must come back."""

    def write(path, points, grid):
        raise ConfigError("No space left on device.")

    for number in range(5):
        (tmp_path / f"voxels_{number:019d}.nvdb").write_text("old")
    monkeypatch.setattr(nvdb_frames, "write_cloud_grid", write)
    files, config = GridFiles(), config_for(tmp_path, nanovdb_keep=2)
    assert files.frame(STAMP_NS, points_of(), config) == {} and files.wait(90)
    assert len(list(tmp_path.iterdir())) == 2
    faults = files.frame(STAMP_NS + 1, points_of(), config)
    assert "No space left" in faults["nanovdb_failed"] and files.wait(90)


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = GridFiles()
    assert files.frame(STAMP_NS, points_of(), LidarConfig()) == {}
    assert files.wait(0.0) and not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_is_a_fault_of_the_next_frame(tmp_path):
    (tmp_path / "file").write_text("")
    files, config = GridFiles(), config_for(tmp_path / "file" / "grids")
    assert files.frame(STAMP_NS, points_of(), config) == {} and files.wait(90)
    faults = files.frame(STAMP_NS + 1, points_of(), config)
    assert "diagnostics.nanovdb_dir" in faults["nanovdb_failed"]
    assert "Not a directory" in faults["nanovdb_failed"]


def test_a_slow_disk_costs_files_and_no_time_of_the_detector(tmp_path, monkeypatch):
    slow, written = threading.Event(), []

    def write(path, points, grid):
        slow.wait(90)
        written.append(path.name)

    monkeypatch.setattr(nvdb_frames, "write_cloud_grid", write)
    files, config = GridFiles(), config_for(tmp_path)
    assert files.frame(STAMP_NS, points_of(), config) == {}
    faults = files.frame(STAMP_NS + 1, points_of(), config)  # returns while the first one waits
    assert "raise diagnostics.nanovdb_every" in faults["nanovdb_late"]
    slow.set()
    assert files.wait(90) and written == [f"voxels_{STAMP_NS}.nvdb"]
    assert files.frame(STAMP_NS + 2, points_of(), config) == {} and files.wait(90)
    assert len(written) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_only_the_thread_that_writes_stands_back(tmp_path, monkeypatch):
    seen = []

    def write(path, points, grid):
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    monkeypatch.setattr(nvdb_frames, "write_cloud_grid", write)
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    files = GridFiles()
    files.frame(STAMP_NS, points_of(), config_for(tmp_path))
    assert files.wait(90) and seen == [max(before, 10)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
