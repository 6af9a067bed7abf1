"""Where cameras look: fields of view, the scatter map, and what makes it be built again."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from driveRT_ros.core import camera_rig
from driveRT_ros.core.bev_pool import bev_pool, build_scatter_map
from driveRT_ros.core.camera_config import CameraConfig, CameraModelConfig, bevdet_r50
from driveRT_ros.core.camera_images import ImageFit
from driveRT_ros.core.camera_rig import (
    Calibration,
    Rig,
    camera_geometry,
    cells_in_sight,
    frustum_shape,
    pool_grid,
    rig_key,
)
from test.support.camera_rig import MOUNTS, NAMES, frame, project

MODEL = CameraConfig().model
CPU = torch.device("cpu")


def calibrations(model: CameraModelConfig = MODEL) -> list[Calibration]:
    return [Calibration.of(frame(name), model) for name in NAMES]


def cell_centres(model: CameraModelConfig) -> tuple[np.ndarray, np.ndarray]:
    """Return x and y of every cell, each (Y, X)."""
    grid = model.grid
    _, rows, cols = grid.shape_zyx
    x = grid.x_range_m[0] + (np.arange(cols) + 0.5) * grid.resolution_m
    y = grid.y_range_m[0] + (np.arange(rows) + 0.5) * grid.resolution_m
    return np.meshgrid(x, y)


def test_each_camera_sees_the_sector_around_its_axis():
    x, y = cell_centres(MODEL)
    for name, camera in zip(NAMES, calibrations()):
        yaw_deg, focal, position = MOUNTS[name]
        seen = cells_in_sight(camera, MODEL)
        local = np.exp(-1j * np.radians(yaw_deg)) * ((x - position[0]) + 1j * (y - position[1]))
        inside = (
            (local.real >= 1) & (local.real < 60) & (np.abs(local.imag / local.real) <= 800 / focal)
        )
        # Only cells that the edge of the sector touches may differ.
        assert (seen != inside).mean() < 0.005, name
        assert seen.sum() > 1000, name


def test_the_points_of_each_camera_fall_where_it_sees():
    rig = Rig.build(calibrations(), MODEL, CPU)
    bins, (rows, cols) = MODEL.depth.bins, MODEL.image.feature_size_hw
    _, count_y, count_x = MODEL.grid.shape_zyx
    for index, name in enumerate(NAMES):
        depth = torch.zeros(1, len(NAMES), bins, rows, cols)
        depth[:, index] = 1
        context = torch.ones(1, len(NAMES), rows, cols, 1)
        hit = bev_pool(depth, context, rig.scatter_map)[0, 0, :, :, 0].numpy() > 0
        assert hit.shape == (count_y, count_x)
        assert hit.sum() > 1000, name
        # The outermost pixel lies on the edge of the image, so its cell's centre may lie beyond.
        grown = np.zeros_like(hit)
        for dy in (-1, 0, 1):
            for dx in (-1, 0, 1):
                grown |= np.roll(rig.sees[index], (dy, dx), (0, 1))
        assert not (hit & ~grown).any(), name


def test_a_point_in_sight_projects_into_the_image():
    rng = np.random.default_rng(3)
    camera = frame("CAM_BACK_LEFT")
    seen = cells_in_sight(Calibration.of(camera, MODEL), MODEL)
    x, y = cell_centres(MODEL)
    fit = ImageFit.of(camera.size_wh, MODEL.image)
    for row, col in rng.integers(0, 180, (300, 2)):
        z = np.linspace(-5, 3, 200)
        points = np.stack([np.full(200, x[row, col]), np.full(200, y[row, col]), z], axis=1)
        pixels, depth = project(camera, points)
        u, v = (pixels * fit.scale_xy - (fit.left, fit.top)).T
        ahead = (depth >= 1) & (depth < 60)
        visible = ahead & (u >= 0) & (u < 704) & (v >= 0) & (v < 256)
        assert seen[row, col] == visible.any()


def test_an_unknown_camera_adds_no_point_and_sees_nothing():
    known = calibrations()
    with_gap = [*known[:2], None, *known[3:]]
    rig = Rig.build(with_gap, MODEL, CPU)
    bins, (rows, cols) = MODEL.depth.bins, MODEL.image.feature_size_hw
    depth = torch.zeros(1, len(NAMES), bins, rows, cols)
    depth[:, 2] = 1
    pooled = bev_pool(depth, torch.ones(1, len(NAMES), rows, cols, 1), rig.scatter_map)
    assert not pooled.any()
    assert not rig.sees[2].any()
    assert rig.known.tolist() == [True, True, False, True, True, True]


def test_only_cameras_that_changed_are_looked_through_again(monkeypatch):
    looked = []

    def counting(camera, model):
        looked.append(camera)
        return cells_in_sight(camera, model)

    monkeypatch.setattr(camera_rig, "cells_in_sight", counting)
    rig = Rig.build([*calibrations()[:5], None], MODEL, CPU)
    raised = frame(NAMES[1])
    raised.T_ego_camera[:2, 3] += 3.0
    changed = [*calibrations()[:1], Calibration.of(raised, MODEL), *calibrations()[2:]]
    looked.clear()
    found = Rig.build(changed, MODEL, CPU, rig)
    assert looked == [changed[1], changed[5]]
    whole = Rig.build(changed, MODEL, CPU)
    np.testing.assert_array_equal(found.sees, whole.sees)
    assert (found.sees[1] != rig.sees[1]).any() and found.key == whole.key


def test_cells_without_a_camera_are_hidden_and_those_of_missing_cameras_are_lost():
    rig = Rig.build(calibrations(), MODEL, CPU)
    here = np.array([True, False, True, True, True, True])
    sight = rig.sight(here)
    counts = rig.sees[here].sum(axis=0)
    np.testing.assert_array_equal(sight.counts, counts)
    np.testing.assert_array_equal(np.isnan(sight.unknown), counts == 0)
    assert set(np.unique(sight.unknown[counts > 0])) == {0.0}
    np.testing.assert_array_equal(sight.lost, (counts == 0) & rig.sees[1])
    assert 0 < sight.lost.sum() < (counts == 0).sum()
    # The cells of a camera that was never there are not known: every unseen one may be its.
    rig = Rig.build([calibrations()[0], None, *calibrations()[2:]], MODEL, CPU)
    np.testing.assert_array_equal(rig.sight(here).lost, counts == 0)


def test_the_key_tells_every_change_of_calibration_and_nothing_else():
    base = rig_key(calibrations())
    assert rig_key(calibrations()) == base
    moved = frame(NAMES[0])
    moved.T_ego_camera[0, 3] += 1e-9
    zoomed = frame(NAMES[0])
    zoomed.K[0, 0] += 1e-9
    smaller = frame(NAMES[0], size_wh=(800, 450))
    for other in (moved, zoomed, smaller):
        changed = rig_key([Calibration.of(other, MODEL), *calibrations()[1:]])
        assert changed != base
        assert changed[1:] == base[1:]
    brighter = frame(NAMES[0], np.full((900, 1600, 3), 250, np.uint8))
    assert rig_key([Calibration.of(brighter, MODEL), *calibrations()[1:]]) == base


def real_calibrations(
    data_dir, rig_name: str, model: CameraModelConfig, names
) -> list[Calibration]:
    path = data_dir / "nuscenes" / "nuscenes_camera_rigs.json"
    cameras = json.loads(path.read_text())[rig_name]["cameras"]
    return [
        Calibration(
            K=np.array(cameras[name]["K"]),
            T_ego_camera=np.array(cameras[name]["cam2ego"]),
            fit=ImageFit.of((1600, 900), model.image),
        )
        for name in names
    ]


# Where the middle of each field of view must lie: signs of x and y in the ego frame.
DIRECTIONS = {
    "CAM_FRONT_LEFT": (1, 1),
    "CAM_FRONT": (1, 0),
    "CAM_FRONT_RIGHT": (1, -1),
    "CAM_BACK_LEFT": (-1, 1),
    "CAM_BACK": (-1, 0),
    "CAM_BACK_RIGHT": (-1, -1),
}


@pytest.mark.parametrize("rig_name", ["n008-2018-08-01_scene-0103", "n015-2018-07-24_scene-0061"])
def test_the_six_frusta_of_a_real_rig_point_where_their_names_say(data_dir, rig_name):
    x, y = cell_centres(MODEL)
    for name, camera in zip(
        DIRECTIONS, real_calibrations(data_dir, rig_name, MODEL, list(DIRECTIONS))
    ):
        seen = cells_in_sight(camera, MODEL)
        middle = np.array([x[seen].mean(), y[seen].mean()])
        signs = np.where(np.abs(middle) > 5, np.sign(middle), 0)
        assert tuple(signs) == DIRECTIONS[name], (name, middle)


def test_real_depth_and_context_pool_to_the_recorded_view(data_dir):
    # The whole chain of conventions at once: resize, crop, order of cameras, frame, grid, rounding.
    folder = data_dir / "bevpool"
    with np.load(folder / "bevpool_ranks_n008-2018-08-01_scene-0103.npz") as ranks:
        names = [str(name) for name in ranks["cam_order"]]
        depth_bins = ranks["depth_bins"]
    assert tuple(names) == bevdet_r50().cameras
    model = bevdet_r50().model
    np.testing.assert_allclose(
        model.depth.min_m + model.depth.step_m * np.arange(model.depth.bins), depth_bins
    )
    placed = real_calibrations(data_dir, "n008-2018-08-01_scene-0103", model, names)
    scatter_map = build_scatter_map(
        camera_geometry(placed),
        frustum_shape(model),
        pool_grid(model),
        device="cpu",
        rounding="floor",  # as the recorded view was made, unlike the published checkpoints
    )
    depth = torch.from_numpy(np.load(folder / "bevdet_r50_one_frame" / "dep.npy"))
    context = torch.from_numpy(np.load(folder / "bevdet_r50_one_frame" / "fea.npy"))
    pooled = bev_pool(depth, context, scatter_map)[0, 0].numpy()
    with np.load(folder / "bevpool_reference_scene0103_kf1.npz") as reference:
        expected = reference["bev"]
    np.testing.assert_allclose(pooled, expected, atol=1e-4)
