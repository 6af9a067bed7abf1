"""Rendered frames, their truth, and what augmentation does to both."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.pool_types import FrustumShape
from driveRT_ros.core.reference.bev_pool import points_of
from driveRT_ros.sim.cameras import Cameras
from driveRT_ros.sim.config import SimConfig
from driveRT_ros.sim.world import World
from driveRT_ros.train.camera_config import CameraAugmentConfig, CameraTrainConfig
from driveRT_ros.train.camera_data import CameraBatches, ImageChange, changed, unchanged
from driveRT_ros.train.camera_frames import (
    DEPTH_STEP_M,
    DEPTH_STRIDE,
    NO_DEPTH,
    CameraDrives,
    CameraShards,
    make_camera_shards,
    packed_depth,
)
from driveRT_ros.train.camera_targets import drivable, ego_boxes, rasterize, truth_of
from driveRT_ros.train.data import Place
from driveRT_ros.train.drives import varied_drive
from test.support.camera_training import rendered, small_camera_config

GRID = small_camera_config().model.grid


def test_a_turned_box_covers_the_cells_whose_middle_lies_in_it():
    x, y, length, width, yaw = 3.3, -5.1, 7.0, 2.6, 0.7
    mask = rasterize([(x, y, length, width, yaw)], GRID)
    for row in range(mask.shape[0]):
        for col in range(mask.shape[1]):
            away = np.array([col + 0.5 - 24.0 - x, row + 0.5 - 24.0 - y])
            along = away @ (np.cos(yaw), np.sin(yaw))
            across = away @ (-np.sin(yaw), np.cos(yaw))
            inside = abs(along) <= length / 2 and abs(across) <= width / 2
            assert mask[row, col] == (inside or (row, col) == (18, 27)), (row, col)
    assert abs(mask.sum() - length * width) < 4


def test_a_box_smaller_than_a_cell_covers_the_cell_below_it_and_boxes_outside_none():
    assert np.argwhere(rasterize([(0.1, 10.9, 0.3, 0.3, 0.0)], GRID)).tolist() == [[34, 24]]
    assert not rasterize([(40.0, 0.0, 4.0, 2.0, 0.0)], GRID).any()
    assert not rasterize(np.zeros((0, 5)), GRID).any()


def test_what_no_camera_sees_is_hidden_and_the_road_is_drivable():
    config, model = SimConfig.from_dict({"seed": 4}), small_camera_config().model
    world = World(config)
    boxes, labels, tracks = ego_boxes(world, 0.0)
    everything = {int(track): 100.0 for track in tracks}
    shown = truth_of(world, 0.0, everything, model, 20.0)
    nothing = truth_of(world, 0.0, {}, model, 20.0)
    covered, hidden = shown.of(0)
    assert covered.sum() > 10 and not hidden.any()
    assert np.array_equal(nothing.of(0)[1], covered) and not nothing.of(0)[0].any()
    near = np.abs(boxes[:, :2]).max(axis=1) < 20
    assert near.sum() > 3
    for (x, y, *_), label in zip(boxes[near], labels[near]):
        layer = {8: 1}.get(int(label), 0 if label in (0, 1, 2, 3, 4, 6, 7) else None)
        if layer is not None:
            assert shown.of(layer)[0][int(np.floor(y + 24)), int(np.floor(x + 24))]
    road = drivable(world, 0.0, model.grid)
    assert np.array_equal(shown.of(2)[0], road) and road[24, 22:27].all()
    # Of the road no more is drivable than what lies between its kerbs, where nothing joins it.
    plain = World(SimConfig.from_dict({"seed": 4, "road.junction_share": 0.0}))
    reach = plain.road.kerb_m
    across = (np.arange(48) - 23.5) + plain.ego_offset_m
    inside = np.abs(across) < reach - 0.5
    assert drivable(plain, 0.0, model.grid)[inside, 24].all()
    pavement = (np.abs(across) > reach + 0.5) & (np.abs(across) < plain.road.frontage_m - 0.5)
    assert not drivable(plain, 0.0, model.grid)[pavement, 24].any()


def test_depths_are_kept_in_quarters_of_a_metre():
    depth = np.array([[0.3, 10.0, 63.6, 64.0, np.inf]], np.float32)
    assert packed_depth(depth).tolist() == [[1, 40, 254, NO_DEPTH, NO_DEPTH]]


def test_pixels_of_vehicles_stay_on_their_cells_however_a_frame_is_changed():
    config = small_camera_config(augment={"max_shift_px": 12.0})
    model, fixed = config.model, {"num_sweeps": 1, "cameras.scale": 192 / 1600 * 1.5}
    sample = rendered()[0]
    cameras = Cameras(World(varied_drive(config.data.first_seed, 1.0, fixed)))
    views = list(cameras.views(0).values())
    boxes, labels, tracks = ego_boxes(cameras.world, 0.0)
    vehicles = tracks[np.isin(labels, (0, 1, 2, 3, 4, 6, 7))]
    (images, *_), flips = list(sample.images()), set()
    cut = views[0].owner.shape[0] - images.shape[0]
    for position in range(6):
        batch = changed([sample], config, [position])
        right = total = 0
        # The same random numbers give the same changes, here of who is in each pixel.
        rng = np.random.default_rng([config.seed, 1, position])
        rng.uniform(size=12), rng.random(2)
        for n, view in enumerate(views):
            change = ImageChange.draw(
                (images.shape[1], images.shape[0]), model.image, config.augment, rng
            )
            flips.add(change.flip)
            owners = view.owner[cut + 2 :: DEPTH_STRIDE, 2::DEPTH_STRIDE]
            mine = np.empty(batch.depth.shape[2:], np.uint8)
            change.depth(np.isin(owners, vehicles).astype(np.uint8), mine)
            depth = batch.depth[0, n].numpy()
            rows, cols = np.nonzero((mine == 1) & (depth < 22.0 / DEPTH_STEP_M))
            for row, col in zip(rows, cols):
                at = FrustumShape((1, 1), (1, 1), 1.0, 2.0, 1.0)
                shifted = batch.coefficients[0, n : n + 1].clone()
                # One ray through this pixel: the frustum has its only pixel at 0, 0.
                shifted[0, 9:12] -= torch.tensor(
                    [
                        4.0 * col + 2.0,
                        4.0 * row + 2.0,
                        depth[row, col] * DEPTH_STEP_M - 1.0,
                    ]
                )
                x, y, _ = points_of(shifted, at)[0, 0, 0, 0].tolist()
                cell = int(np.floor(y + 24)), int(np.floor(x + 24))
                if min(cell) >= 1 and max(cell) < 47:
                    total += 1
                    around = batch.covered[0, cell[0] - 1 : cell[0] + 2, cell[1] - 1 : cell[1] + 2]
                    right += bool((around & 1).any())
        assert total > 100 and right > 0.97 * total, (position, right, total)
    assert flips == {False, True}


def test_an_unchanged_frame_is_what_the_pipeline_makes_of_whole_images():
    config = small_camera_config()
    change = ImageChange.draw(
        (240, 100), config.model.image, unchanged(config).augment, np.random.default_rng(0)
    )
    # 240 x 135 whole, of which the upper 35 rows are cut: 192 x 108 with the last 64 rows.
    assert change.fit.resized_wh == (192, 80) and (change.fit.left, change.fit.top) == (0, 16)
    assert not change.flip


def test_a_marker_goes_where_the_geometry_says():
    rules = CameraAugmentConfig(max_shift_px=12.0)
    model = small_camera_config().model
    for seed in range(8):
        change = ImageChange.draw((240, 100), model.image, rules, np.random.default_rng(seed))
        image = np.zeros((100, 240, 3), np.uint8)
        image[58:63, 118:123] = 255
        out = np.zeros((64, 192, 3), np.uint8)
        change.image(image, out)
        rows, cols = np.nonzero(out[..., 0] > 100)
        u, v, _ = change.post_rot @ (120.5, 60.5, 1.0) + change.post_trans
        assert abs(cols.mean() + 0.5 - u) < 1.6 and abs(rows.mean() + 0.5 - v) < 1.6


def test_shards_give_back_what_was_rendered_and_refuse_another_model(tmp_path):
    config, folder = small_camera_config(), tmp_path / "frames"
    drives = CameraDrives(config)
    assert make_camera_shards(drives, config, folder, 1, 1, lambda done: False) == 1
    assert make_camera_shards(drives, config, folder, 2, 1, lambda done: False) == 2
    shards = CameraShards(folder, config.model)
    assert len(shards) == 2
    for found, made in zip((shards[0], shards[1]), rendered()):
        for name in ("jpegs", "sizes", "depth", "K", "T_ego_camera"):
            assert np.array_equal(getattr(found, name), getattr(made, name)), name
        assert np.array_equal(found.truth.covered, made.truth.covered)
        assert np.array_equal(found.truth.hidden, made.truth.hidden)
    other = small_camera_config(model={"grid": {**config.model.grid.to_dict(), "z_cells": 2}})
    with pytest.raises(ConfigError, match="made for the grid"):
        CameraShards(folder, other.model)
    (folder / "index.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(ConfigError, match="cannot be read"):
        CameraShards(folder, config.model)


def test_batches_depend_on_seed_and_step_alone():
    config = small_camera_config()

    def batches(first: int, count: int, threads: int):
        made = CameraBatches(rendered(), config, Place(), first, threads)
        out = [next(made) for _ in range(count)]
        made.close()
        return out

    whole, rest = batches(0, 4, 2), batches(2, 2, 1)
    for a, b in zip(whole[2:], rest):
        assert all(torch.equal(getattr(a, n), getattr(b, n)) for n in vars(a))
    assert not torch.equal(whole[0].images, whole[1].images)
    assert all(len(b.covered.unique(dim=0)) == 2 for b in whole)  # both frames in every epoch


def test_parameters_that_fit_no_layer_are_refused():
    for tree, words in (
        ({"model.network.heads": ["car"]}, "must be empty"),
        ({"model.network.segmentation": ["lane"]}, "layers out of"),
        ({"loss.layer_weights": [1.0]}, "one value for each of the 3"),
        ({"model.grid.x_range_m": [0.0, 96.0]}, "flip_x' mirrors .* is .0, 96.; set it to false"),
    ):
        with pytest.raises(ConfigError, match=words):
            CameraTrainConfig.from_dict(tree)
    CameraTrainConfig.from_dict({"model.grid.x_range_m": [0.0, 96.0], "augment.flip_x": False})
