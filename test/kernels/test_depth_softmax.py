"""The softmax of depth logits inside of pooling, against float64 and against torch's."""

from __future__ import annotations

import pytest
import torch

from driveRT_ros.bench import pool_softmax
from driveRT_ros.core.bev_pool import StaticBevPool
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.pool_softmax import new_norms, norms_launch
from driveRT_ros.core.pool_tactics import PoolTactic
from driveRT_ros.core.reference.bev_pool import bev_pool, softmax_depths
from test.support.camera_engine import PoolingOnTheShim
from test.support.pool_cases import rig_map, tensors

F32, F16 = torch.float32, torch.float16
TILES, BALANCED = PoolTactic("tiles"), PoolTactic("balanced")


def start(backend, launch):
    args = (launch.stem, launch.name, launch.grid, launch.block, launch.parameters)
    backend.launch(*args, defines=dict(launch.defines))


def channels_last(logits, slack=5):
    """Return the same logits as a network leaves them: the bins of a pixel are neighbours."""
    wide = torch.zeros(*logits.shape[:2], *logits.shape[3:], logits.shape[2] + slack)
    wide = wide.to(logits)
    wide[..., : logits.shape[2]] = logits.movedim(2, -1)
    return wide[..., : logits.shape[2]].movedim(-1, 2)


def random_logits(shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * 4).to(dtype)


def norms_of(backend, logits, present=None):
    # A copy by Tensor.to() may close the gaps between the rows of a view.
    on_device = torch.empty_strided(
        logits.shape, logits.stride(), dtype=logits.dtype, device=backend.device
    ).copy_(logits)
    norms = new_norms(on_device)
    start(backend, norms_launch(on_device, norms, present))
    return norms


@pytest.mark.parametrize("dtype", [F32, F16])
@pytest.mark.parametrize("bins", [1, 7, 59])
def test_two_numbers_a_pixel_give_the_softmax(backend, dtype, bins):
    logits = random_logits((2, 3, bins, 5, 7), dtype, bins)
    exact = logits.double().softmax(dim=2)
    for each in (logits, channels_last(logits)):
        norms = norms_of(backend, each).cpu().double()
        largest, inverse = norms[..., 0].unsqueeze(2), norms[..., 1].unsqueeze(2)
        assert torch.equal(largest, logits.double().amax(dim=2, keepdim=True))
        weights = (logits.double() - largest).exp() * inverse
        assert (weights - exact).abs().max() <= 1e-6


def test_large_logits_do_not_overflow_and_odd_ones_do_what_torch_does(backend):
    logits = torch.zeros(1, 1, 8, 1, 5)
    logits[0, 0, 3, 0, 0] = 1e4
    logits[0, 0, 3, 0, 1] = -torch.inf
    logits[0, 0, 3, 0, 2] = torch.inf
    logits[0, 0, :, 0, 3] = -torch.inf
    logits[0, 0, 3, 0, 4] = torch.nan
    norms = norms_of(backend, logits).cpu()
    weights = (logits - norms[..., 0].unsqueeze(2)).exp() * norms[..., 1].unsqueeze(2)
    torch.testing.assert_close(weights, logits.softmax(dim=2), equal_nan=True, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("tactic", "dtype", "tolerance"),
    [
        (BALANCED, F32, 2e-6),
        (PoolTactic("v3"), F32, 2e-6),
        (PoolTactic("v2"), F32, 2e-6),
        (PoolTactic("v2_depth"), F32, 2e-2),  # sums in halves
        (TILES, F16, 2e-3),
    ],
)
def test_pooling_logits_is_pooling_their_softmax(backend, tactic, dtype, tolerance):
    made = rig_map().to(backend.device).trimmed()
    depth, context = tensors(rig_map(), 24, dtype, dtype, batch=2)
    logits = random_logits(depth.shape, dtype, 4)
    present = torch.tensor([1.0, 0.0, 0.5])
    depths = softmax_depths(logits.double(), present)
    want = bev_pool(depths, context.double(), rig_map(), scale=2.0)
    logits = (channels_last(logits) if tactic == TILES else logits).to(backend.device)
    context = context.to(backend.device)
    work, found = tactic.work(made), []
    on_device = present.to(backend.device)
    for _ in zip(range(2), backend.repeats()):
        norms = new_norms(logits)
        start(backend, norms_launch(logits, norms, on_device))
        out = torch.zeros(want.shape, dtype=dtype, device=backend.device)
        start(backend, tactic.launch(logits, context, out, made, work, 2.0, norms))
        found.append(out.cpu())
    assert torch.equal(*found)
    error = (found[0].double() - want).abs().max() / want.abs().max()
    assert error <= tolerance


def test_a_pixel_without_a_softmax_spoils_its_own_cells_only(backend):
    made = rig_map().to(backend.device).trimmed()
    depth, context = tensors(rig_map(), 24, F32, F32)
    logits = random_logits(depth.shape, F32)
    logits[0, 1, 2, 3, 4] = torch.nan
    want = bev_pool(softmax_depths(logits), context, rig_map())
    assert 0 < int(want.isnan().any(-1).sum()) <= depth.shape[2]
    logits, context = logits.to(backend.device), context.to(backend.device)
    norms = new_norms(logits)
    start(backend, norms_launch(logits, norms))
    out = torch.zeros(want.shape, device=backend.device)
    start(backend, BALANCED.launch(logits, context, out, made, BALANCED.work(made), 1.0, norms))
    torch.testing.assert_close(out.cpu(), want, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_a_static_pool_of_logits_follows_what_its_tensors_hold(monkeypatch):
    made = rig_map()
    depth, context = tensors(made, 24, F16, F16)
    logits, present = channels_last(random_logits(depth.shape, F16)), torch.ones(3)
    plain = StaticBevPool(made, logits, context, logits=True, present=present, out_dtype=F32)
    shim = PoolingOnTheShim(monkeypatch)
    how = {"logits": True, "present": present, "tactic": TILES}
    pool = StaticBevPool(made, logits, context, **how)
    for seed in (5, 6):
        logits.copy_(random_logits(depth.shape, F16, seed))
        present[seed - 5] = 0
        want = plain()
        assert (pool().float() - want).abs().max() <= 2e-3 * want.abs().max()
    assert shim.launches == {"softmax_norms": 2, "pool_tiles": 2}


def test_both_ways_that_the_benchmark_times_are_right(monkeypatch):
    shim, made = PoolingOnTheShim(monkeypatch), rig_map()
    rows = pool_softmax.network_rows(made, 24)
    ways = pool_softmax.ways(made, rows)
    errors = {name: pool_softmax.error_of(way, made, rows) for name, way in ways.items()}
    assert max(errors.values()) <= pool_softmax.TOLERANCE
    assert shim.launches == {"softmax_norms": 1, "pool_tiles": 2}
    rows.zero_()  # what the network leaves next: nothing may be kept of the last
    ways["inside"].run()
    assert not ways["inside"].out.any()


def test_what_cannot_be_a_softmax_is_refused():
    made = rig_map()
    depth, context = tensors(made, 24, F16, F16)
    with pytest.raises(ConfigError, match="needs logits"):
        StaticBevPool(made, depth, context, present=torch.ones(3))
    with pytest.raises(ConfigError, match=r"each of the 3 cameras, got \(2,\)"):
        StaticBevPool(made, depth, context, logits=True, present=torch.ones(2))
    with pytest.raises(ConfigError, match="must be float32 on 'cpu', got torch.bool"):
        norms_launch(depth, new_norms(depth), torch.ones(3, dtype=torch.bool))
    with pytest.raises(ConfigError, match="must be float32 or float16, got torch.float64"):
        norms_launch(depth.double(), new_norms(depth))
