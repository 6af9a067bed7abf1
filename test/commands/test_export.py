"""drivert export: recorded clouds become NanoVDB files with the voxels of the detector."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from driveRT_ros.cli import main
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.voxelize import voxelize
from driveRT_ros.io.bag import BagWriter
from driveRT_ros.io.encode import encode_pointcloud
from driveRT_ros.io.nvdb import active_voxels, channels, read_nvdb
from driveRT_ros.io.typestore import message_type
from driveRT_ros.models.checkpoint import save_weights
from driveRT_ros.models.voxelnext import Backbone, untrained_weights
from test.support.bags import CLOUD, PERIOD_NS, START_NS, cloud_batch, write_drive
from test.support.demo_files import tiny_network, tiny_scene


def export(*arguments: object) -> int:
    return main(["export", "nvdb", *(str(a) for a in arguments)])


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert export(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("drivert: ") and error.count("\n") == 1
    return error


def exported(folder: Path, index: int) -> dict[tuple[int, ...], dict[str, float]]:
    """Return the channels of one cloud by cell, from the index file."""
    (path,) = folder.glob(f"{index:06d}_*.index.nvdb")
    (grid,) = read_nvdb(path)
    voxels, columns = active_voxels(grid), channels(grid)
    rows = zip(*(columns[name][voxels.values].tolist() for name in columns))
    cells = map(tuple, voxels.coords_zyx.tolist())
    return {cell: dict(zip(columns, row)) for cell, row in zip(cells, rows)}


def points_of(index: int) -> torch.Tensor:
    cloud = cloud_batch(index)
    rows = (cloud.xyz, cloud.intensity[:, None], cloud.time_lag_s[:, None])
    return torch.from_numpy(np.concatenate(rows, axis=1))


def test_a_simulated_drive_becomes_files_that_tools_accept(tmp_path: Path, capsys) -> None:
    scene, bag, out = tiny_scene(tmp_path), tmp_path / "bag", tmp_path / "out"
    assert main([
        "convert", "--sim", str(bag), "--duration", "0.1", "--sim-config", str(scene)
    ]) == 0  # fmt: skip
    assert export("--bag", bag, "--out", out) == 0
    said = capsys.readouterr().out
    files = sorted(out.glob("*.nvdb"))
    assert len(files) == 4 and "voxels of 2 clouds" in said
    assert all(re.fullmatch(r"00000[01]_\d{19}(\.index)?\.nvdb", f.name) for f in files)
    floats = [f for f in files if ".index" not in f.name]
    for path in floats:
        grids = {grid.name: grid for grid in read_nvdb(path)}
        assert list(grids) == ["occupancy", "intensity", "height", "point_count"]
        counts = {grid.voxel_count for grid in grids.values()}
        assert len(counts) == 1 and counts.pop() > 500
        height = active_voxels(grids["height"])
        zyx1 = np.c_[height.coords_zyx, np.ones(len(height))]
        centre = (grids["height"].T_lidar_voxel @ zyx1[:, [2, 1, 0, 3]].T)[2]
        # The mean of the points of a cell lies in the cell, half a cell from its centre at most.
        assert np.abs(centre - height.values).max() <= 0.1 + 1e-4
    if shutil.which("nanovdb_validate"):
        command = ["nanovdb_validate", "-v", *map(str, floats)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 and done.stdout.count("passed") == 8, done.stdout + done.stderr


def test_voxels_are_those_of_the_detector(tmp_path: Path, capsys) -> None:
    bag, out = write_drive(tmp_path / "bag", 4), tmp_path / "out"
    config = LidarConfig.from_yaml(tiny_network(tmp_path))
    code = export("--bag", bag, "--out", out, "--config", tmp_path / "network.yaml")
    assert code == 0 and len(list(out.glob("*.nvdb"))) == 8
    for index in (0, 3):
        voxels = voxelize(points_of(index), config.voxelization)
        found = exported(out, index)
        cells = map(tuple, voxels.coords_bzyx[:, 1:].tolist())
        expected = {
            cell: {"intensity": f[3], "height": f[2], "point_count": n}
            for cell, f, n in zip(cells, voxels.features.tolist(), voxels.num_points.tolist())
        }
        assert found == expected
    dropped = sum(
        voxelize(points_of(i), config.voxelization).dropped["out_of_range_points"] for i in range(4)
    )
    assert (
        f"Left out: {dropped} points outside of voxelization.point_cloud_range."
        in capsys.readouterr().out
    )


def test_a_range_of_clouds_gives_the_same_files_as_all(tmp_path: Path) -> None:
    bag, network = write_drive(tmp_path / "bag", 5), tiny_network(tmp_path)
    common = ("--bag", bag, "--config", network)
    assert export(*common, "--out", tmp_path / "all", "--codec", "none") == 0
    some = ("--start", 1, "--frames", 2, "--codec", "none")
    assert export(*common, *some, "--out", tmp_path / "some") == 0
    names = sorted(p.name for p in (tmp_path / "some").glob("*.nvdb"))
    stamps = [START_NS + i * PERIOD_NS for i in (1, 2)]
    assert names == [
        f"00000{i + 1}_{stamp}{kind}" for i, stamp in enumerate(stamps)
        for kind in (".index.nvdb", ".nvdb")
    ]  # fmt: skip
    for name in names:
        assert (tmp_path / "some" / name).read_bytes() == (tmp_path / "all" / name).read_bytes()


def test_joined_clouds_hold_the_past_as_well(tmp_path: Path, capsys) -> None:
    bag, network = write_drive(tmp_path / "bag", 3), tiny_network(tmp_path)
    common = ("--bag", bag, "--config", network, "--start", 2)
    assert export(*common, "--out", tmp_path / "one") == 0
    assert export(*common, "--out", tmp_path / "joined", "--joined") == 0
    one, joined = exported(tmp_path / "one", 2), exported(tmp_path / "joined", 2)
    # Every cell of the cloud alone stays; three times the points are there.
    assert set(one) <= set(joined) and len(joined) > 1.5 * len(one)
    points = [sum(row["point_count"] for row in cells.values()) for cells in (one, joined)]
    assert points[1] > 2.5 * points[0]
    assert "stands alone" not in capsys.readouterr().out


def test_a_cloud_without_transform_stands_alone_and_that_is_said(tmp_path: Path, capsys) -> None:
    bag = tmp_path / "bag"
    with BagWriter(bag) as writer:
        writer.write("/points", CLOUD, encode_pointcloud(cloud_batch(0), message_type), START_NS)
    network = tiny_network(tmp_path)
    assert export("--bag", bag, "--config", network, "--out", tmp_path / "o", "--joined") == 0
    assert "Cloud 0 stands alone: its place in 'map' is unknown." in capsys.readouterr().out


def test_features_are_those_of_the_first_level(tmp_path: Path, capsys) -> None:
    bag, network = write_drive(tmp_path / "bag", 1), tiny_network(tmp_path)
    config = LidarConfig.from_yaml(network)
    weights = untrained_weights(config.model, seed=3)
    checkpoint = tmp_path / "w.safetensors"
    save_weights(checkpoint, weights)
    common = ("--bag", bag, "--config", network, "--features")
    assert export(*common, "--checkpoint", checkpoint, "--out", tmp_path / "out") == 0
    assert "untrained" not in capsys.readouterr().out
    voxels = voxelize(points_of(0), config.voxelization)
    backbone = Backbone(config.model, weights.to("cpu", torch.float32), Ops.for_device("cpu"))
    coords, shape = voxels.coords_bzyx, config.voxelization.sparse_shape_zyx
    # Level by level by hand: the layers of level 1 on the map that the whole network uses.
    maps, level = backbone.build_maps(coords, shape), backbone.graph.levels[0]
    features = backbone._run_layers(level, voxels.features, maps)
    found = exported(tmp_path / "out", 0)
    for cell, row in zip(map(tuple, coords[:, 1:].tolist()), features.tolist()):
        assert [found[cell][f"feature_{i}"] for i in range(4)] == row
    (path,) = (p for p in (tmp_path / "out").glob("*.nvdb") if ".index" not in p.name)
    norm = {grid.name: active_voxels(grid) for grid in read_nvdb(path)}["feature_norm"]
    expected = {c: np.linalg.norm([r[f"feature_{i}"] for i in range(4)]) for c, r in found.items()}
    for cell, value in zip(map(tuple, norm.coords_zyx.tolist()), norm.values.tolist()):
        assert value == pytest.approx(expected[cell], rel=1e-6)
    assert export(*common, "--out", tmp_path / "untrained") == 0
    assert "Features are those of untrained weights" in capsys.readouterr().out


def test_clouds_that_cannot_be_decoded_are_counted(tmp_path: Path, capsys) -> None:
    bag, network = tmp_path / "bag", tiny_network(tmp_path)
    with BagWriter(bag) as writer:
        for i in range(3):
            cloud = encode_pointcloud(cloud_batch(i), message_type)
            if i == 1:
                cloud.point_step = 0
            writer.write("/points", CLOUD, cloud, START_NS + i * PERIOD_NS)
    assert export("--bag", bag, "--config", network, "--out", tmp_path / "o") == 0
    said = capsys.readouterr().out
    assert "Cloud 1 is left out: " in said and "1 clouds could not be decoded." in said
    assert sorted(p.name[:6] for p in (tmp_path / "o").glob("*.index.nvdb")) == ["000000", "000002"]
    only = ("--start", 1, "--frames", 1, "--out", tmp_path / "none")
    assert "nothing is written" in refused(capsys, "--bag", bag, "--config", network, *only)


def test_what_cannot_be_exported_is_one_sentence(tmp_path: Path, capsys) -> None:
    bag = write_drive(tmp_path / "bag", 2, num_points=10)
    out = ("--out", tmp_path / "out")
    assert "nowhere" in refused(capsys, "--bag", tmp_path / "nowhere", *out)
    assert "no topic '/x'" in refused(capsys, "--bag", bag, "--topic", "/x", *out)
    assert "has 2 clouds" in refused(capsys, "--bag", bag, "--start", 2, *out)
    assert "--frames must be 0 or more, got -1" in refused(
        capsys, "--bag", bag, "--frames", -1, *out
    )
    weights = tmp_path / "w.safetensors"
    weights.write_bytes(b"")
    assert "needs --features" in refused(capsys, "--bag", bag, "--checkpoint", weights, *out)
    assert not (tmp_path / "out").exists()
