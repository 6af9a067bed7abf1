"""The LiDAR node writes voxels beside the detector, tells what fails, and goes on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.io.nvdb import read_nvdb
from driveRT_ros.nodes.handler import LidarHandler, PosedCloud
from test.support.lidar_messages import SECOND as S
from test.support.lidar_messages import make_cloud
from test.support.worker_bench import CONFIG


def into(folder: Path) -> object:
    settings = dataclasses.replace(
        CONFIG.diagnostics, nanovdb_dir=str(folder), nanovdb_every=1, nanovdb_keep=1
    )
    return dataclasses.replace(CONFIG, diagnostics=settings)


def test_the_folder_may_be_named_while_the_node_runs_and_a_bad_one_costs_no_frame(
    tmp_path: Path,
) -> None:
    handler = LidarHandler(CONFIG, LidarPipeline(CONFIG, device="cpu"))
    assert handler.handle(PosedCloud(make_cloud(S)), ()).faults == {}
    (tmp_path / "file").touch()
    handler.reconfigure(into(tmp_path / "file"))
    handler.handle(PosedCloud(make_cloud(2 * S)), ())
    assert handler.grid_files.wait(20)
    handler.reconfigure(into(tmp_path / "grids"))
    result = handler.handle(PosedCloud(make_cloud(3 * S)), ())
    assert "diagnostics.nanovdb_dir" in result.faults["nanovdb_failed"]
    assert handler.grid_files.wait(20)
    assert handler.handle(PosedCloud(make_cloud(4 * S)), ()).faults == {}
    assert handler.grid_files.wait(20)
    grids, index = sorted((tmp_path / "grids").iterdir(), reverse=True)
    assert (grids.name, index.name) == (
        f"voxels_{4 * S:019d}.nvdb",
        f"voxels_{4 * S:019d}.index.nvdb",
    )
    assert read_nvdb(grids)[0].voxel_count == result.found.report.num_voxels > 0
