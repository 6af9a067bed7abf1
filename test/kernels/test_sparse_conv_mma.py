"""The tensor-core convolution, run on the CPU with the register layouts of the hardware.

The oracle is float64 on operands that were rounded as the precision says, so each tolerance only
covers what the kernel adds: fp32 sums, the rounding of the output, the dropped low * low.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.sparse_conv_mma import pack_weight
from test.support.mma_layers import NAN, Layer, tactic
from test.support.tile_tables import convolve_groups, tile_tables

WIDTHS = [(16, 16), (16, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 128)]


@pytest.mark.parametrize(
    "precision, c_in, c_out",
    [(p, *w) for p in ("F16", "F64") for w in WIDTHS]
    + [(p, *w) for p in ("TF32", "F16X3") for w in WIDTHS[::3]],
)
def test_every_width_agrees_with_float64(precision, c_in, c_out):
    slab = 16 if c_in == 16 else 32
    warps = (2, 2) if c_out >= 64 else (2, 1)
    Layer(tactic(precision, slab=slab, warps=warps), c_in, c_out, 45, density=0.15).check()


@pytest.mark.parametrize(
    "precision, c_in, c_out",
    [("F16", 16, 16), ("TF32", 16, 32), ("F16X3", 32, 64), ("F64", 32, 32)],
)
def test_resident_weights_agree_with_float64(precision, c_in, c_out):
    choice = tactic(precision, "resident", slab=c_in, warps=(2, 1), tile_rows=16)
    Layer(choice, c_in, c_out, 45, density=0.15).check()


@pytest.mark.parametrize(
    "precision, c_in, c_out",
    [("F16", 16, 32), ("F16", 128, 128), ("TF32", 64, 64), ("F16X3", 64, 128), ("F64", 64, 128)],
)
def test_rows_straight_from_memory_agree_with_float64(precision, c_in, c_out):
    choice = tactic(precision, "direct", slab=min(c_in, 64), warps=(2, c_out // 32))
    Layer(choice, c_in, c_out, 45, density=0.15).check()


@pytest.mark.parametrize("flow", ["staged", "direct"])
@pytest.mark.parametrize("stages", [2, 6])
def test_every_depth_of_the_ring_agrees(flow, stages):
    Layer(tactic("F16", flow, stages=stages), 32, 32, 100, seed=stages).check()


@pytest.mark.parametrize("flow", ["staged", "direct"])
def test_tiles_of_one_step_or_none_follow_each_other_through_a_deep_ring(flow):
    """The ring is then several tiles ahead, and each load claims another tile."""
    for seed in range(4):
        layer = Layer(tactic("F16", flow, stages=6, warps=(4, 1)), 32, 32, 400, taps=1, seed=seed)
        layer.check(grid=2, seed=seed)


@pytest.mark.parametrize(
    "precision, c_in, groups, parts, taps, stages",
    [
        ("F16", 64, 1, 1, 27, 3), ("F16", 32, 3, 1, 9, 4), ("F64", 32, 3, 2, 9, 2),
        ("F16", 32, 1, 1, 1, 6),
    ],
)  # fmt: skip
def test_tiles_in_a_fixed_order_give_the_same_bits(precision, c_in, groups, parts, taps, stages):
    """Back and forth through all of them, for any number of blocks; some tiles have no tap."""
    choice = tactic(precision, groups=groups, stages=stages, warps=(2, 1))
    choice = dataclasses.replace(choice, parts=parts)
    folded = dataclasses.replace(choice, folded=True)
    for seed, rows in enumerate((0, 300)):
        layer = Layer(folded, c_in, 64, rows, taps=taps, density=0.06, seed=seed)
        ticket = Layer(choice, c_in, 64, rows, taps=taps, density=0.06, seed=seed).run()
        for grid in (1, 3, 50):
            layer.check(grid=grid, seed=seed)
            assert layer.run(grid=grid, seed=grid).tobytes() == ticket.tobytes()
        layer.check(rank=False)


@pytest.mark.parametrize(
    "precision, slab", [("F16", 32), ("F16", 128), ("TF32", 16), ("F16X3", 64), ("F64", 64)]
)
def test_every_slab_of_wide_rows_agrees(precision, slab):
    Layer(tactic(precision, slab=slab, warps=(2, 1), tile_rows=64), 128, 32, 70, taps=9).check()


@pytest.mark.parametrize("rows, slab, warps", [(16, 64, (1, 4)), (32, 32, (2, 4))])
def test_tiles_for_layers_of_few_rows_agree(rows, slab, warps):
    """Of float64, the widest: two rows of results a warp, and eight warps a tile."""
    choice = tactic("F64", tile_rows=rows, slab=slab, warps=warps, stages=2)
    Layer(choice, 128, 128, 40, taps=9).check()


@pytest.mark.parametrize(
    "precision, groups, parts, warps", [("F64", 3, 2, (2, 2)), ("F16", 1, 4, (2, 1))]
)
def test_blocks_share_the_channels_of_a_tile(precision, groups, parts, warps):
    """Each copies its part of weights that are packed for whole rows, and writes its channels."""
    choice = tactic(precision, groups=groups, slab=32, warps=warps, stages=2)
    layer = Layer(dataclasses.replace(choice, parts=parts), 64, 128, 70, taps=9, density=0.15)
    whole = Layer(choice, 64, 128, 70, taps=9, density=0.15)
    layer.check(grid=5)
    assert layer.run(grid=2).tobytes() == whole.run().tobytes()


@pytest.mark.parametrize("flow", ["staged", "direct"])
@pytest.mark.parametrize("warps", [(8, 1), (1, 4)])
def test_warps_share_a_tile_in_any_rectangle(flow, warps):
    Layer(tactic("F16", flow, tile_rows=64, slab=64, warps=warps), 64, 128, 130, taps=9).check()


@pytest.mark.parametrize(
    "flow, precision, groups",
    [
        ("staged", "F16", 3), ("direct", "F16X3", 3), ("resident", "F16", 9), ("staged", "TF32", 9),
        ("staged", "F64", 3), ("staged", "F64", 9), ("direct", "F64", 3),
    ],
)  # fmt: skip
def test_groups_of_taps_write_their_own_sums(flow, precision, groups):
    """Few rows per tap: groups skip rows, and the middle one has tiles without any tap."""
    choice = tactic(precision, flow, groups=groups, warps=(2, 1))
    Layer(choice, 32, 32, 90, density=0.08).check()


@pytest.mark.parametrize(
    "precision, flow",
    [(p, "staged") for p in ("F16", "F64")] + [("F16", f) for f in ("direct", "resident")],
)
@pytest.mark.parametrize("rows", [0, 1, 31, 32, 33, 64])
def test_any_number_of_rows_fills_tiles_in_part_or_in_full(precision, flow, rows):
    Layer(tactic(precision, flow), 32, 32, rows).check()


@pytest.mark.parametrize("options", [
    {"bias": False}, {"residual": False}, {"relu": False}, {"rank": False},
    {"bias": False, "residual": False, "relu": False}, {"grid": 1}, {"grid": 50},
])  # fmt: skip
def test_every_part_of_the_epilogue_and_any_grid_agrees(options):
    for precision in ("F16", "F16X3", "F64"):
        Layer(tactic(precision), 32, 32, 70).check(**options)


@pytest.mark.parametrize("flow", ["staged", "direct", "resident"])
def test_rows_without_any_tap_get_bias_and_residual(flow):
    Layer(tactic("F16", flow), 32, 32, 40, density=0).check()


def test_thirty_two_taps_fit_the_mask():
    Layer(tactic("F16"), 32, 16, 40, taps=32).check()


@pytest.mark.parametrize("flow", ["staged", "direct", "resident"])
@pytest.mark.parametrize("precision", ["F16", "F16X3", "F64"])
def test_results_do_not_depend_on_the_schedule(flow, precision):
    layer = Layer(tactic(precision, flow), 32, 32, 100)
    first = layer.run(grid=1)
    for seed in range(1, 5):
        assert layer.run(grid=seed, seed=seed).tobytes() == first.tobytes()


@pytest.mark.parametrize("precision", ["F16X3", "F64"])
def test_a_row_has_the_same_bits_in_any_tile_and_flow(precision):
    """Absent taps add exact zeros, so neither the company of a row nor its way matters."""
    layer = Layer(tactic(precision), 32, 32, 64)
    first = layer.run()
    chosen = layer.tables.sources[:, 20:45]
    alone = Layer(tactic(precision, "resident"), 32, 32, 25)
    alone.x, alone.weight, alone.bias = layer.x, layer.weight, layer.bias
    alone.residual = layer.residual[20:45].contiguous()
    alone.tables = tile_tables(chosen, 32, 1, np.random.default_rng(1))
    assert alone.run()[:25].tobytes() == first[20:45].tobytes()


@pytest.mark.parametrize("precision", ["F16", "TF32", "F16X3", "F64"])
def test_nan_reaches_exactly_the_rows_that_use_it(precision):
    """ReLU must not turn NaN into zero: that hides faults."""
    layer = Layer(tactic(precision), 32, 32, 60)
    layer.x[7, 3] = NAN
    got = np.isnan(layer.run()[:60])
    assert (got == (layer.tables.sources == 7).any(0)[:, None]).all()


def test_split_halves_reach_fp32_accuracy_where_halves_do_not():
    """Measured against float64 of the unrounded operands."""
    errors = {}
    for precision in ("F16", "TF32", "F16X3"):
        layer = Layer(tactic(precision), 32, 32, 60, seed=5)
        exact = convolve_groups(layer.x, layer.weight, layer.tables.sources, 1)[0]
        got = layer.run(bias=False, residual=False, relu=False)[:60]
        errors[precision] = np.abs(got - exact).max() / np.abs(exact).max()
    assert errors["F16X3"] < 5e-7
    assert errors["F16"] > 5e-5 and errors["TF32"] > 5e-5


@pytest.mark.parametrize("c_in, c_out", [(32, 32), (128, 64)])
def test_float64_sums_are_rounded_once_and_beat_sums_in_float32(c_in, c_out):
    """Nothing in float32 can be nearer; a chain of float32 additions is several times farther."""
    layer = Layer(tactic("F64"), c_in, c_out, 60, seed=7)
    plain = {"bias": False, "residual": False, "relu": False}
    exact = layer.expected(**plain)
    got = layer.run(**plain)[:60]
    nearest = exact.astype(np.float32)
    single = layer.chain_in_float32()
    assert (got == nearest).all()
    assert np.abs(single - exact).max() > 5 * np.abs(got - exact).max()
    assert np.sqrt(((single - exact) ** 2).mean()) > 5 * np.sqrt(((got - exact) ** 2).mean())


def test_bias_and_residual_are_added_before_the_rounding():
    layer = Layer(tactic("F64"), 32, 32, 60, seed=8)
    layer.residual *= 1e4
    assert (layer.run()[:60] == layer.expected().astype(np.float32)).all()


def test_tiny_and_large_features_keep_their_accuracy_when_scaled():
    for size in (1e-6, 1e6):
        layer = Layer(tactic("F16X3"), 32, 32, 60, seed=6)
        layer.x *= size
        exact = convolve_groups(layer.x, layer.weight, layer.tables.sources, 1)[0]
        plain = {"bias": False, "residual": False, "relu": False}
        got = layer.run(**plain, x_scale=2.0 ** -round(np.log2(size)))[:60]
        assert np.abs(got - exact).max() < 5e-7 * np.abs(exact).max()


def test_a_feature_beyond_the_range_of_halves_gives_nan_not_a_wrong_number():
    layer = Layer(tactic("F16X3"), 32, 32, 60)
    layer.x[7] = 1e6
    got = np.isnan(layer.run()[:60])
    assert (got == (layer.tables.sources == 7).any(0)[:, None]).all()


def test_weights_that_no_half_can_hold_are_refused():
    with pytest.raises(ConfigError, match="does not fit a half"):
        pack_weight(torch.full((1, 16, 16), 1e5), "F16")


@pytest.mark.parametrize("precision, shape", [("F8", (1, 16, 16)), ("F16", (1, 5, 16))])
def test_unknown_precisions_and_widths_are_refused(precision, shape):
    with pytest.raises(ConfigError, match="No tensor-core convolution"):
        pack_weight(torch.zeros(shape), precision)


@pytest.mark.parametrize("name, change", [
    ("slab", {"slab": 48}), ("warps_m", {"warps": (3, 1)}), ("warps_n", {"warps": (1, 8)}),
    ("stages", {"stages": 7}), ("threads", {"warps": (4, 4), "slab": 32}),
    ("groups", {"groups": 2}), ("flow", {"flow": "hashed"}), ("slab", {"flow": "resident"}),
    ("folded", {"flow": "direct", "folded": True}),
])  # fmt: skip
def test_a_tactic_says_what_does_not_fit(name, change):
    folded = {"folded": change.pop("folded")} if "folded" in change else {}
    choice = dataclasses.replace(tactic("F16", **{"slab": 32, **change}), **folded)
    assert name in choice.supports(128, 128, 27, (9, 0))
    assert tactic("F16").supports(128, 128, 27, (9, 0)) == ""
    assert "TF32" in tactic("TF32").supports(128, 128, 27, (7, 5))


@pytest.mark.parametrize("capability", [(7, 5), (8, 6), (8, 9), (10, 3), (12, 0)])
def test_float64_is_refused_where_the_matrix_unit_is_a_token_one(capability):
    assert "F64 is for 8.0, 9.0, 10.0" in tactic("F64").supports(128, 128, 27, capability)


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 0)])
def test_float64_is_offered_where_the_matrix_unit_has_full_rate(capability):
    assert tactic("F64").supports(128, 128, 27, capability) == ""
