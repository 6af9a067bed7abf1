"""The LiDAR node writes voxels beside the detector, tells what fails, and goes on."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.io import nvdb_frames
from driveRT_ros.io.nvdb import read_nvdb
from driveRT_ros.nodes import lidar_session
from driveRT_ros.nodes.handler import LidarHandler, PosedCloud
from driveRT_ros.nodes.lidar import LidarNode
from driveRT_ros.nodes.perception import EXIT_GRACE_S, PerceptionNode
from driveRT_ros.nodes.stop import EXIT_BOUND_S
from test.support.lidar_messages import SECOND as S
from test.support.lidar_messages import make_cloud
from test.support.live_node import active_node
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
    assert handler.grid_files.wait(90)
    handler.reconfigure(into(tmp_path / "grids"))
    result = handler.handle(PosedCloud(make_cloud(3 * S)), ())
    assert "diagnostics.nanovdb_dir" in result.faults["nanovdb_failed"]
    assert handler.grid_files.wait(90)
    assert handler.handle(PosedCloud(make_cloud(4 * S)), ()).faults == {}
    assert handler.grid_files.wait(90)
    grids, index = sorted((tmp_path / "grids").iterdir(), reverse=True)
    assert (grids.name, index.name) == (
        f"voxels_{4 * S:019d}.nvdb",
        f"voxels_{4 * S:019d}.index.nvdb",
    )
    assert read_nvdb(grids)[0].voxel_count == result.found.report.num_voxels > 0


@pytest.fixture
def active(domain_id: int, tmp_path: Path) -> Iterator[LidarNode]:
    """A node that writes the voxels of every cloud into a folder."""
    folder = str(tmp_path)
    more = {"diagnostics__nanovdb_every": 1, "diagnostics__nanovdb_dir": folder}
    with active_node(domain_id, **more) as node:
        yield node


@pytest.mark.parametrize("end", ["deactivate", "shutdown", "close"])
def test_a_file_that_is_being_written_is_finished_before_the_node_ends(
    end: str, active: LidarNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends without waiting for threads: the file would be lost half written."""
    write, may = nvdb_frames.write_cloud_grid, threading.Event()

    def slowly(*given: Any) -> Any:
        assert may.wait(90.0)
        return write(*given)

    monkeypatch.setattr(nvdb_frames, "write_cloud_grid", slowly)
    # On a busy machine, the moment left for a file at the end of a process may be too short.
    monkeypatch.setattr(PerceptionNode.close, "__defaults__", (90.0,))
    monkeypatch.setattr(lidar_session, "GRID_FILES_GRACE_S", 90.0)
    active.handle_cloud(make_cloud(S))
    assert active.wait_idle(90.0) and not list(tmp_path.iterdir())
    threading.Timer(0.2, may.set).start()  # while the node ends
    assert active.close() if end == "close" else getattr(active, f"trigger_{end}")()
    assert read_nvdb(tmp_path / f"lidar_node_voxels_{S:019d}.nvdb")[0].voxel_count > 0


def test_a_disk_that_hangs_keeps_no_node_from_ending(
    active: LidarNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lidar_session, "GRID_FILES_GRACE_S", 0.1)
    hangs = threading.Event()
    monkeypatch.setattr(nvdb_frames, "write_cloud_grid", lambda *_: hangs.wait(90.0))
    active.handle_cloud(make_cloud(S))
    assert active.wait_idle(90.0)
    begin_s = time.monotonic()
    assert active.close()
    assert time.monotonic() - begin_s < 60.0 and not hangs.is_set()  # the disk hangs for longer
    hangs.set()


def test_files_and_the_frame_in_work_share_the_time_before_ctrl_c_forces_the_process_out(
    active: LidarNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the process is gone while it still waits, and says goodbye to nobody."""
    waited_s: list[float] = []
    monkeypatch.setattr(active._handler.grid_files, "wait", waited_s.append)
    active.close()
    (longest_s,) = waited_s
    assert 0.0 <= longest_s <= EXIT_GRACE_S < EXIT_BOUND_S
