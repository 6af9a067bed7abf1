"""The reference of pooling: real maps, maps made by hand, and what must not matter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from driveRT_ros.core.bev_pool import (
    BevPool,
    CameraGeometry,
    FrustumShape,
    PoolGrid,
    ScatterMap,
    StaticBevPool,
    bev_pool,
    build_scatter_map,
    supports,
)
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.pool_tactics import PoolShape, PoolTactic, default_tactic, tensors_of
from driveRT_ros.core.pool_types import MAP_ARRAYS
from driveRT_ros.core.reference.bev_pool import ego_points, map_of_cells, point_cells
from test.support.pool_cases import (
    REAL_FRUSTUM,
    REAL_GRID,
    RIGS,
    SMALL_GRID,
    looking,
    random_map,
    real_rig,
    small_frustum,
    small_rig,
    tensors,
)


def pooled_by_hand(depth, context, scatter_map):
    """Pool in float64, one point after the other."""
    made = scatter_map.trimmed()
    out = torch.zeros(len(depth), made.cells, context.shape[-1], dtype=torch.float64)
    for item in range(len(depth)):
        weights, features = depth[item].reshape(-1), context[item].reshape(-1, context.shape[-1])
        for point, pixel, cell in zip(*(ranks.tolist() for ranks in made.arrays()[:3])):
            out[item, cell] += weights[point].double() * features[pixel].double()
    return out.view(len(depth), *made.grid_shape_zyx, -1)


def map_from(cells, grid_zyx):
    return map_of_cells(torch.tensor(cells, dtype=torch.int32), grid_zyx)


# ---- geometry -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rig", RIGS)
def test_the_map_of_a_real_rig_equals_the_one_made_elsewhere(data_dir, rig):
    geometry, ranks = real_rig(data_dir, rig)
    made = build_scatter_map(geometry, REAL_FRUSTUM, REAL_GRID, rounding="floor")
    for name in MAP_ARRAYS:
        np.testing.assert_array_equal(getattr(made, name).numpy(), ranks[name], err_msg=name)


def test_real_depths_and_features_pool_to_the_recorded_view(data_dir):
    geometry, _ = real_rig(data_dir, RIGS[0])
    folder = data_dir / "bevpool"
    depth = torch.from_numpy(np.load(folder / "bevdet_r50_one_frame" / "dep.npy"))
    context = torch.from_numpy(np.load(folder / "bevdet_r50_one_frame" / "fea.npy"))
    expected = np.load(folder / "bevpool_reference_scene0103_kf1.npz")["bev"]
    scatter_map = build_scatter_map(geometry, REAL_FRUSTUM, REAL_GRID, rounding="floor")
    for dtype in (torch.float32, torch.float64):
        pooled = bev_pool(depth.to(dtype), context.to(dtype), scatter_map)
        assert np.abs(pooled[0, 0].numpy() - expected).max() <= 1e-4


def test_a_point_lands_where_the_pinhole_camera_puts_it():
    # Looking along +y from (1, 2, 3): 10 m ahead, one pixel right of the centre of f = 10 is 1 m.
    geometry = CameraGeometry(
        K=np.array([[[10.0, 0.0, 1.0], [0.0, 10.0, 1.0], [0.0, 0.0, 1.0]]]),
        T_ego_cam=looking(90, position=(1.0, 2.0, 3.0))[None],
    )
    points = ego_points(geometry, FrustumShape((3, 3), (3, 3), 10.0, 11.0, 1.0))
    np.testing.assert_allclose(points[0, 0, 1, 1], [1.0, 12.0, 3.0], atol=1e-12)
    np.testing.assert_allclose(points[0, 0, 1, 2], [2.0, 12.0, 3.0], atol=1e-12)
    np.testing.assert_allclose(points[0, 0, 2, 1], [1.0, 12.0, 2.0], atol=1e-12)


def test_image_and_ego_augmentations_are_undone_and_applied():
    plain = small_rig(2)
    frustum = small_frustum()
    expected = ego_points(plain, frustum)
    flip = np.diag([1.0, -1.0, 1.0])
    turned = CameraGeometry(plain.K, plain.T_ego_cam, bda=flip)
    np.testing.assert_allclose(ego_points(turned, frustum), expected.numpy() @ flip, atol=1e-12)
    # Half the size and 5 pixels cut off: the pixels that were augmented see what they saw before.
    wide = FrustumShape((64, 96), (8, 12), 1.0, 13.0, 1.0)
    K = plain.K.copy()
    K[:, :2] *= 2  # a camera of twice the pixels
    K[:, 0, 2] += 10
    scaled = CameraGeometry(
        K, plain.T_ego_cam, np.stack([np.diag([0.5, 0.5, 1.0])] * 2), np.array([[-5.0, 0, 0]] * 2)
    )
    np.testing.assert_allclose(ego_points(scaled, wide), expected, atol=1e-9)


def test_trunc_also_takes_points_up_to_a_cell_below_the_range_and_floor_does_not():
    grid = PoolGrid(0.0, 4.0, 1.0, 0.0, 4.0, 1.0, 0.0, 1.0, 1.0)
    x = torch.tensor([-1.0, -0.999, -1e-9, 0.0, 0.5, 3.999, 4.0, float("nan"), float("inf")])
    points = torch.stack([x, torch.full_like(x, 1.5), torch.full_like(x, 0.5)], 1).double()
    points[1, 0] = -0.999
    assert point_cells(points, grid, "floor").tolist() == [-1, -1, -1, 4, 4, 7, -1, -1, -1]
    assert point_cells(points, grid, "trunc").tolist() == [-1, 4, 4, 4, 4, 7, -1, -1, -1]
    below = points.clone()
    below[:, 2] = 1.0
    assert (point_cells(below, grid, "trunc") == -1).all()


def test_points_outside_are_in_no_interval_and_never_count_as_cell_zero():
    # Fault class: points outside the grid get rank 0 and add to a valid cell.
    away = CameraGeometry(small_rig(1).K, looking(0, position=(1e6, 0.0, 0.0))[None])
    made = build_scatter_map(away, small_frustum(), SMALL_GRID)
    assert made.counts.tolist() == [0, 0]
    depth, context = tensors(made, 2, torch.float32, torch.float32)
    assert not bev_pool(depth, context, made).any()


def test_cameras_that_look_up_or_see_nothing_give_no_negative_interval():
    # Fault class: a rig with most points outside gives negative intervals and offsets.
    geometry = small_rig(4)
    poses = geometry.T_ego_cam.copy()
    poses[1] = looking(90, pitch_deg=80)
    poses[2] = looking(180, position=(-500.0, 0.0, 0.0))
    made = build_scatter_map(CameraGeometry(geometry.K, poses), small_frustum(), SMALL_GRID)
    trimmed = made.trimmed()
    assert trimmed.interval_lengths.min() > 0 and trimmed.interval_starts.min() == 0
    assert trimmed.interval_lengths.sum() == len(trimmed.ranks_bev)
    cameras = trimmed.ranks_depth // (12 * 8 * 12)
    assert 2 not in cameras.tolist() and 0 in cameras.tolist()


def test_the_hash_changes_with_every_part_of_the_calibration():
    geometry, frustum = small_rig(2), small_frustum()
    base = build_scatter_map(geometry, frustum, SMALL_GRID).calibration_hash
    assert build_scatter_map(small_rig(2), frustum, SMALL_GRID).calibration_hash == base
    K, T = geometry.K.copy(), geometry.T_ego_cam.copy()
    K[0, 0, 0] += 1e-9
    T[1, 0, 3] += 1e-9
    other_grid = PoolGrid(-9.0, 9.0, 1.5, -9.0, 9.0, 1.0, -3.0, 3.5, 6.5)
    others = [
        build_scatter_map(CameraGeometry(K, geometry.T_ego_cam), frustum, SMALL_GRID),
        build_scatter_map(CameraGeometry(geometry.K, T), frustum, SMALL_GRID),
        build_scatter_map(geometry, small_frustum((8, 11)), SMALL_GRID),
        build_scatter_map(geometry, frustum, other_grid),
        build_scatter_map(geometry, frustum, SMALL_GRID, rounding="floor"),
    ]
    hashes = {base, *(other.calibration_hash for other in others)}
    assert len(hashes) == 6


# ---- maps made by hand --------------------------------------------------------------------------


def test_the_smallest_map_pools_its_one_point():
    # Fault class: one point in one cell is lost because the last interval ends too early.
    made = map_from([[[[0]]]], (1, 1, 1))
    assert made.interval_lengths.tolist() == [1]
    pooled = bev_pool(torch.ones(1, 1, 1, 1, 1), torch.full((1, 1, 1, 1, 1), 5.0), made)
    assert pooled.tolist() == [[[[[5.0]]]]]


def test_the_last_point_belongs_to_the_last_interval():
    made = map_from([[[[2, 0, 2]], [[0, -1, 2]]]], (1, 1, 3))
    assert made.ranks_depth.tolist() == [0 + 1, 3, 0, 2, 5]
    assert made.ranks_feat.tolist() == [1, 0, 0, 2, 2]
    assert made.interval_starts.tolist() == [0, 2]
    assert made.interval_lengths.tolist() == [2, 3]


def test_a_map_filters_and_sorts_its_points_once():
    # Fault class: the keep mask or the order is applied twice to some of the arrays.
    cells = [7, 3, -1, 3, 9, 0, 7, -1, 3, 1]
    made = map_from(np.array(cells).reshape(1, 10, 1, 1), (1, 1, 10))
    assert made.ranks_depth.tolist() == [5, 9, 1, 3, 8, 0, 6, 4]
    assert made.ranks_bev.tolist() == [0, 1, 3, 3, 3, 7, 7, 9]
    assert made.ranks_feat.tolist() == [0] * 8


def test_hand_made_weights_sum_as_on_paper():
    # Two depths of two pixels over four cells: cell 0 gets both depths of pixel 0.
    made = map_from([[[[0, 1]], [[0, 3]]]], (1, 2, 2))
    depth = torch.tensor([[[[[0.25, 0.5]], [[0.75, 0.5]]]]])
    context = torch.tensor([[[[[4.0, 8.0], [2.0, -2.0]]]]])
    expected = [[[[[4.0, 8.0], [1.0, -1.0]], [[0.0, 0.0], [1.0, -1.0]]]]]
    assert bev_pool(depth, context, made).tolist() == expected
    assert bev_pool(depth, context, made, scale=0.5)[0, 0, 0, 0].tolist() == [2.0, 4.0]


@pytest.mark.parametrize("channels", [1, 3, 59])
def test_batch_items_use_their_own_pixels(channels):
    # Fault class: features of the first item are used for all of them.
    made = random_map((2, 3, 4, 5), (2, 3, 4), seed=1)
    depth, context = tensors(made, channels, torch.float64, torch.float64, batch=3)
    pooled = bev_pool(depth, context, made)
    np.testing.assert_allclose(pooled, pooled_by_hand(depth, context, made), atol=1e-12)
    for item in range(3):
        alone = bev_pool(depth[item : item + 1], context[item : item + 1], made)
        assert torch.equal(alone[0], pooled[item])


def test_the_order_of_points_in_an_interval_does_not_matter_for_whole_numbers():
    made = random_map((2, 4, 6, 7), (1, 4, 5), seed=2)
    generator = torch.Generator().manual_seed(3)
    depth = torch.randint(0, 8, (1, 2, 4, 6, 7), generator=generator).float()
    context = torch.randint(-8, 8, (1, 2, 6, 7, 5), generator=generator).float()
    expected = bev_pool(depth, context, made)
    arrays = [array.clone() for array in made.arrays()]
    for start, length in zip(made.interval_starts.tolist(), made.interval_lengths.tolist()):
        order = start + torch.randperm(length, generator=generator)
        for array in arrays[:2]:
            array[start : start + length] = array[order]
    mixed = ScatterMap.from_arrays(tuple(arrays), made.grid_shape_zyx, made.frustum_shape)
    assert torch.equal(bev_pool(depth, context, mixed), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a[0].__setitem__(0, 10_000), "ranks_depth"),
        (lambda a: a[1].__setitem__(0, -1), "ranks_feat"),
        (lambda a: a[2].__setitem__(0, 20), "ranks_bev"),
        (lambda a: a[3].__setitem__(0, 1), "intervals"),
        (lambda a: a[4].__setitem__(-1, a[4][-1] - 1), "intervals"),
    ],
)
def test_arrays_made_elsewhere_are_checked(change, message):
    made = random_map((2, 4, 6, 7), (1, 4, 5), seed=2)
    arrays = tuple(array.clone() for array in made.arrays())
    ScatterMap.from_arrays(arrays, made.grid_shape_zyx, made.frustum_shape)
    change(arrays)
    with pytest.raises(ConfigError, match=message):
        ScatterMap.from_arrays(arrays, made.grid_shape_zyx, made.frustum_shape)


def test_features_of_eight_bits_are_scaled_after_the_sum():
    made = random_map((1, 4, 6, 7), (1, 4, 5), seed=4)
    depth, context = tensors(made, 6, torch.float32, torch.float32)
    scale = float(context.abs().max() / 448)
    coded = (context / scale).to(torch.float8_e4m3fn)
    pooled = bev_pool(depth, coded, made, scale=scale)
    assert pooled.dtype == torch.float16
    exact = bev_pool(depth, coded.float() * scale, made)
    assert (pooled.float() - exact).abs().max() <= 2e-3 * exact.abs().max()


# ---- interface ----------------------------------------------------------------------------------


def test_shapes_that_do_not_belong_to_the_map_are_refused():
    made = random_map((2, 3, 4, 5), (1, 3, 4))
    depth, context = tensors(made, 4, torch.float32, torch.float32)
    for bad in ((depth[:, :1], context), (depth, context[:, :, :3]), (depth[0], context)):
        with pytest.raises(ConfigError, match="This map is for depth"):
            bev_pool(*bad, made)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("K", np.zeros((2, 3, 3)), "'K' of camera 0 has no inverse"),
        ("K", np.full((2, 3, 3), np.nan), "finite"),
        ("T_ego_cam", np.zeros((2, 3, 4)), "shape"),
        ("post_rot", np.zeros((2, 3, 3)), "'post_rot' of camera 0"),
        ("bda", np.eye(4), "shape"),
    ],
)
def test_a_geometry_that_cannot_be_is_refused_by_name(field, value, message):
    rig = small_rig(2)
    parts = {"K": rig.K, "T_ego_cam": rig.T_ego_cam, field: value}
    with pytest.raises(ConfigError, match=message):
        build_scatter_map(CameraGeometry(**parts), small_frustum(), SMALL_GRID)


def test_impossible_frusta_grids_and_roundings_are_refused():
    with pytest.raises(ConfigError, match="0 < min < max"):
        FrustumShape((8, 8), (1, 1), 5.0, 5.0, 1.0)
    with pytest.raises(ConfigError, match="Axis y"):
        PoolGrid(0, 1, 1, 2, 1, 1, 0, 1, 1)
    with pytest.raises(ConfigError, match="31 bits"):
        PoolGrid(-1e4, 1e4, 0.1, -1e4, 1e4, 0.1, 0, 1, 1)
    with pytest.raises(ConfigError, match="'round'"):
        build_scatter_map(small_rig(1), small_frustum(), SMALL_GRID, rounding="round")
    assert FrustumShape((8, 8), (1, 1), 1.0, 60.0, 0.1).depth_bins == 590


def test_gradients_are_those_of_the_sum():
    made = random_map((1, 3, 2, 3), (1, 2, 3), seed=5)
    depth, context = (t.requires_grad_() for t in tensors(made, 2, torch.float64, torch.float64, 2))
    assert torch.autograd.gradcheck(lambda d, c: bev_pool(d, c, made, scale=0.5), (depth, context))


def test_torch_sees_the_operator():
    made = random_map((1, 3, 2, 3), (1, 2, 3), seed=5)
    depth, context = tensors(made, 4, torch.float32, torch.float32)
    tactic = PoolTactic("balanced")
    tables = tensors_of(tactic.work(made))
    arguments = (list(made.arrays()), tables, [1, 2, 3], tactic.to_json(), 1.0, torch.float32)
    inputs = (depth.requires_grad_(), context.requires_grad_(), *arguments)
    torch.library.opcheck(torch.ops.drivert.bev_pool.default, inputs)


def test_an_exported_module_pools_like_the_function():
    made = random_map((1, 3, 2, 3), (1, 2, 3), seed=5)
    depth, context = tensors(made, 4, torch.float32, torch.float32)
    exported = torch.export.export(BevPool(made, scale=2.0), (depth, context))
    targets = [str(node.target) for node in exported.graph.nodes]
    assert "drivert.bev_pool.default" in targets
    expected = bev_pool(depth, context, made, scale=2.0)
    assert torch.equal(exported.module()(depth, context), expected)


def test_a_static_result_stays_where_it_is():
    made = random_map((1, 3, 2, 3), (1, 2, 3), seed=5)
    depth, context = tensors(made, 4, torch.float32, torch.float32)
    pool = StaticBevPool(made, depth, context)
    first = pool()
    assert torch.equal(first, bev_pool(depth, context, made))
    context.mul_(2.0)
    assert pool().data_ptr() == first.data_ptr()
    assert torch.equal(first, bev_pool(depth, context, made))


def test_a_result_may_take_the_place_of_another_maps():
    maps = [random_map((1, 3, 2, 3), (1, 2, 3), seed=seed, share=0.3) for seed in (5, 6)]
    depth, context = tensors(maps[0], 4, torch.float32, torch.float32)
    out = torch.full((1, 1, 2, 3, 4), torch.nan)
    for made in maps:
        pool = StaticBevPool(made, depth, context, out=out)
        assert not out.any()
        assert pool() is out and torch.equal(out, bev_pool(depth, context, made))
    assert not torch.equal(bev_pool(depth, context, maps[0]), out)
    with pytest.raises(ConfigError, match="'out' must be contiguous, of shape"):
        StaticBevPool(made, depth, context, out=out[..., :2])


def test_a_tactic_says_what_it_cannot_do_and_survives_json():
    made = random_map((1, 3, 2, 3), (1, 2, 3), seed=5)
    depth, context = tensors(made, 60, torch.float32, torch.float32)
    tiles, balanced = PoolTactic("tiles"), PoolTactic("balanced", half_sum=True)
    assert "not float32" in supports(depth, context, tiles)
    assert "half_sum" in supports(depth, context, balanced)
    assert supports(depth, context.half(), tiles) == ""
    assert "divide" in supports(depth, context.half(), PoolTactic("tiles", groups=7))
    assert PoolTactic.from_json(tiles.to_json()) == tiles
    with pytest.raises(ConfigError, match="no tactic"):
        PoolTactic.from_json('{"kind": "tiles", "colour": 3}')


@pytest.mark.parametrize("features", [torch.float32, torch.float16, torch.float8_e4m3fn])
@pytest.mark.parametrize("channels", [1, 3, 59, 64, 80, 100, 101, 128, 131, 160, 256, 300, 1024])
def test_there_is_a_tactic_for_every_number_of_channels(features, channels):
    for align in (1, 2, 4, 8):
        shape = PoolShape(channels, features, torch.float32, torch.float16, align)
        tactic = default_tactic(shape, (6, 59, 16, 44))
        assert tactic.supports(shape, (6, 59, 16, 44)) == ""
        # 131 is a prime above what a warp has: a block a channel would read depths as often.
        assert (tactic.kind == "tiles") == (features != torch.float32 and channels != 131)
