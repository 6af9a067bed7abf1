"""Sparsity counts against a count by dictionary, and the time model against known costs."""

from __future__ import annotations

import time
from itertools import product

import numpy as np
import pytest
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.reference.coordmap import submanifold_map
from driveRT_ros.core.reference.sparsity import (
    degree_histogram,
    leaf_occupancy,
    neighbour_masks,
    tile_work,
)
from driveRT_ros.core.sparsity import FrameTimeModel, SparsityMonitor
from test.support.lidar_frames import street

SHAPE = (9, 17, 20)
KERNEL, ONE = (3, 3, 3), (1, 1, 1)
CONFIG = LidarConfig.from_dict(
    {
        "model.channels": [8, 8, 16, 16, 16, 16],
        "voxelization.point_cloud_range": [-24.0, -24.0, -5.0, 24.0, 24.0, 3.0],
        "voxelization.voxel_size": [0.3, 0.3, 0.4],
    }
)


def random_coords(count: int, seed: int = 0) -> torch.Tensor:
    """Return (count, 4) int32 unique cells of SHAPE in no order."""
    rng = np.random.default_rng(seed)
    cells = rng.permutation(int(np.prod(SHAPE)))[:count]
    zyx = np.stack(np.unravel_index(cells, SHAPE), axis=1)
    return torch.from_numpy(np.pad(zyx, ((0, 0), (1, 0))).astype(np.int32))


def masks_by_dictionary(coords: torch.Tensor) -> list[int]:
    active = {tuple(c) for c in coords[:, 1:].tolist()}
    taps = list(product((-1, 0, 1), repeat=3))
    return [
        sum(((z + dz, y + dy, x + dx) in active) << k for k, (dz, dy, dx) in enumerate(taps))
        for z, y, x in coords[:, 1:].tolist()
    ]


@pytest.mark.parametrize("count", [0, 1, 2, 63, 64, 65, 900, 3060])
def test_masks_degrees_and_tiles_are_those_of_a_count_by_dictionary(count: int) -> None:
    coords = random_coords(count)
    found = submanifold_map(coords, SHAPE, KERNEL, ONE)
    want = masks_by_dictionary(coords)
    assert neighbour_masks(found).tolist() == want
    degrees = [bin(mask).count("1") - 1 for mask in want]
    assert degree_histogram(found).tolist() == [degrees.count(n) for n in range(27)]
    for rows in (1, 16, 64):
        tiles = [want[i : i + rows] for i in range(0, count, rows)]
        union = [int(np.bitwise_or.reduce(tile)) for tile in tiles]
        executed = rows * sum(bin(mask).count("1") for mask in union)
        assert tile_work(found, rows) == (executed, sum(degrees) + count)
    assert tile_work(found, 1)[0] == tile_work(found, 1)[1]  # tiles of one row waste nothing


def test_a_full_grid_has_27_of_everything_inside() -> None:
    coords = random_coords(3060)
    histogram = degree_histogram(submanifold_map(coords, SHAPE, KERNEL, ONE))
    assert histogram[26] == 7 * 15 * 18 and histogram[7] == 8 and histogram.sum() == 3060


def test_leaves_are_blocks_of_eight_cells_and_their_share_is_the_mean() -> None:
    coords = torch.tensor(
        [[0, z, y, x] for z, y, x in ((0, 0, 0), (7, 7, 7), (8, 0, 0), (0, 8, 19))]
    )
    assert leaf_occupancy(coords.int(), SHAPE) == (3, 4 / (3 * 512))
    assert leaf_occupancy(coords[:0].int(), SHAPE) == (0, 0.0)
    leaves, filled = leaf_occupancy(random_coords(3060), SHAPE)
    assert leaves == 2 * 3 * 3 and filled == 3060 / (18 * 512)


def test_a_report_belongs_to_the_frame_and_predicts_from_the_frames_before() -> None:
    pipeline = LidarPipeline(CONFIG, None, "cpu")
    cloud = street(seed=3)
    plain, first, second = (
        pipeline.process(cloud, with_sparsity=on).report for on in (False, True, True)
    )
    assert plain.sparsity is None
    found = first.sparsity
    assert found.voxels_per_level == first.voxels_per_level
    assert sum(found.degree_histogram) == first.num_voxels > 1000
    neighbours = sum(n * rows for n, rows in enumerate(found.degree_histogram))
    assert found.useful_pairs == neighbours + first.num_voxels
    assert 1.0 < found.tile_waste < 27.0 and 0.0 < found.leaf_filled < 1.0
    assert 1 < found.distinct_masks <= first.num_voxels
    assert found.layer_pairs > 5 * found.useful_pairs  # five layers walk level 1 alone
    assert found.measured_ms == pytest.approx(sum(first.stage_ms.values()))
    assert found.predicted_ms is None and found.per_pair_ns is None
    # The same frame again: as long as the one before is all that there is to expect.
    assert second.sparsity.predicted_ms == pytest.approx(found.measured_ms)
    assert second.sparsity.per_pair_ns == pytest.approx(found.measured_ms * 1e6 / found.layer_pairs)
    empty = pipeline.process(cloud[:0], with_sparsity=True).report.sparsity
    assert empty.voxels_per_level == (0,) * 6 and empty.tile_waste == 1.0 and empty.leaves == 0


def test_without_sparsity_nothing_of_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A diagnostic that nobody asked for must not cost anything."""
    pipeline = LidarPipeline(CONFIG, None, "cpu")

    def forbidden(*_: object) -> None:
        raise AssertionError("sparsity was computed")

    monkeypatch.setattr(SparsityMonitor, "look", forbidden)
    monkeypatch.setattr(SparsityMonitor, "count", forbidden)
    pipeline.process(street(seed=3), with_bev=True, with_fingerprint=True)
    with pytest.raises(AssertionError, match="was computed"):
        pipeline.process(street(seed=3), with_sparsity=True)


def test_the_time_model_finds_fixed_and_per_pair_cost() -> None:
    rng, model = np.random.default_rng(1), FrameTimeModel()
    assert model.predict(1000) is None and model.per_pair_ms is None
    for pairs in rng.integers(100_000, 900_000, 100).tolist():
        model.update(pairs, 20.0 + 3e-5 * pairs)
    assert model.per_pair_ms == pytest.approx(3e-5, rel=1e-6)
    assert model.predict(0) == pytest.approx(20.0, rel=1e-5)
    assert model.predict(2_000_000) == pytest.approx(80.0, rel=1e-5)


def test_the_time_model_forgets_a_machine_that_was_faster() -> None:
    rng, model = np.random.default_rng(2), FrameTimeModel(half_life_frames=10.0)
    frames = rng.integers(100_000, 900_000, 240).tolist()
    for k, pairs in enumerate(frames):
        model.update(pairs, (1e-5 if k < 120 else 4e-5) * pairs)
    assert model.per_pair_ms == pytest.approx(4e-5, rel=0.01)


def test_the_time_model_never_gives_a_part_below_zero() -> None:
    """Noise can make small frames slower than large ones; costs below zero would be nonsense."""
    falling, steep, alike = (FrameTimeModel() for _ in range(3))
    for pairs in range(1000, 2000, 10):
        falling.update(pairs, 50.0 - 0.01 * pairs)
        steep.update(pairs, 0.1 * (pairs - 900))
        alike.update(1000, 7.0)
    assert falling.per_pair_ms == 0.0 and falling.predict(10**6) > 0
    assert steep.predict(0) == pytest.approx(0.0, abs=1e-9)
    assert alike.per_pair_ms == pytest.approx(0.007) and alike.predict(2000) == pytest.approx(14.0)


def test_counting_thirty_thousand_voxels_takes_no_longer_than_detecting_in_them() -> None:
    points = street(seed=0, rings=18, azimuths=900, sweeps=5)
    monitor = SparsityMonitor(LidarConfig())
    pipeline = LidarPipeline(LidarConfig(), None, "cpu")
    voxels = pipeline.ops.voxelize(points, LidarConfig().voxelization).coords_bzyx
    start_s = time.process_time()
    assert monitor.count(voxels).voxels_per_level[0] > 30_000
    counted_s = time.process_time() - start_s
    pipeline.process(points)
    assert counted_s < time.process_time() - start_s - counted_s
