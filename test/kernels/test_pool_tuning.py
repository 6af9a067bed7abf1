"""The fastest tactic is chosen by measurement, and the ways to pool agree on a GPU."""

from __future__ import annotations

import contextlib
import re
from types import SimpleNamespace

import pytest
import torch

from driveRT_ros.core import bev_pool as production
from driveRT_ros.core.cuda import waits_itself
from driveRT_ros.core.errors import ConfigError, DeviceError
from driveRT_ros.core.gpu import bev_pool as gpu_pool
from driveRT_ros.core.gpu import pool_tuning, replay
from driveRT_ros.core.gpu.pool_tuning import tune_pool
from driveRT_ros.core.paths import share_path
from driveRT_ros.core.pool_tactics import PoolTactic
from driveRT_ros.core.reference.bev_pool import bev_pool
from test.support.pool_cases import SMALL_GRID, rig_map, small_frustum, small_rig, tensors

F32, F16, F8 = torch.float32, torch.float16, torch.float8_e4m3fn
TILES, BALANCED = PoolTactic("tiles"), PoolTactic("balanced")


def timer_of(backend, microseconds):
    """Return how the tuner runs a launch on a backend, and the times that it is told."""

    def timer(launch):
        def run():
            args = (launch.stem, launch.name, launch.grid, launch.block, launch.parameters)
            backend.launch(*args, defines=dict(launch.defines))

        return run, lambda: microseconds[launch.name]

    return timer


def test_the_fastest_tactic_with_the_right_result_is_chosen(backend):
    made = rig_map().to(backend.device)
    depth, context = (t.to(backend.device) for t in tensors(made, 24, F16, F16))
    wrong = PoolTactic("balanced", half_sum=True)
    among = [PoolTactic("v3"), TILES, BALANCED, PoolTactic("tiles", groups=7), wrong]
    times = {"pool_v3": 5.0, "pool_tiles": 2.0, "pool_balanced": 3.0}
    tuned = tune_pool(made, depth, context, among=among, timer=timer_of(backend, times))
    assert tuned.tactic == TILES
    assert [entry.get("us") for entry in tuned.record[:3]] == [5.0, 2.0, 3.0]
    assert "divide" in tuned.record[3]["refused"]
    # Sums in halves miss what float32 results promise, however fast they are.
    fast = {"pool_balanced": 1.0}
    only = {"out_dtype": F32, "timer": timer_of(backend, fast)}
    with pytest.raises(ConfigError, match="exceeds 1e-05"):
        tune_pool(made, depth, context, among=[wrong], **only)


def test_a_search_on_a_lost_gpu_ends_with_its_error_and_blames_no_tactic():
    """Every later candidate would be refused for the same reason, which is not theirs."""
    made, tried = rig_map(), []

    def timer(launch):
        def run():
            tried.append(launch.name)
            raise DeviceError("CUDA error 700 (an illegal memory access) while launching.", 700)

        return run, lambda: 1.0

    with pytest.raises(DeviceError, match="CUDA error 700"):
        tune_pool(made, *tensors(made, 24, F16, F16), among=[TILES, BALANCED], timer=timer)
    assert len(tried) == 1


def test_a_tactic_is_timed_on_the_gpu_that_its_tensors_lie_on(monkeypatch):
    """A graph belongs to the current device: that of another one is empty, and takes no time."""
    current, captured_on = [0], []

    @contextlib.contextmanager
    def device(other):
        current.append(other.index)
        yield
        current.pop()

    def captured(work):
        captured_on.append(current[-1])

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(gpu_pool, "bind", lambda launch, device: lambda: None)
    monkeypatch.setattr(replay, "captured", captured)
    monkeypatch.setattr(
        replay, "replay_times", lambda graph, samples, replays: [20.0 * current[-1]]
    )
    launch = SimpleNamespace(keep=[SimpleNamespace(device=torch.device("cuda", 1))])
    _, microseconds = pool_tuning._graph_timer(launch)
    assert microseconds() == 1.0 and captured_on == [1] and current == [0]


@pytest.mark.parametrize(
    ("stem", "kernels"),
    [("scatter_map", 6), ("bev_pool", 4), ("bev_pool_tiles", 1), ("depth_softmax", 1)],
)
def test_every_kernel_of_pooling_waits_for_the_one_before(stem, kernels):
    source = (share_path("kernels") / f"{stem}.cu").read_text()
    names = re.findall(r"__global__ void [^\n]*?(\w+)\(const", source)
    assert len(names) == source.count("__global__") == kernels
    assert all(waits_itself(stem, name) for name in names)


@pytest.mark.gpu
def test_tuning_times_every_candidate_on_the_gpu():
    made = rig_map().to("cuda")
    depth, context = (t.cuda() for t in tensors(made, 80, F16, F16))
    among = [TILES, BALANCED, PoolTactic("v3")]
    tuned = tune_pool(made, depth, context, among=among)
    assert tuned.tactic in among
    assert all(0 < entry["us"] < 1000 for entry in tuned.record)


@pytest.mark.gpu
@pytest.mark.parametrize("features", [F32, F16, F8])
def test_the_operator_pools_on_the_gpu_as_on_the_cpu(features):
    made = rig_map()
    depth, context = tensors(made, 80, features, F32, batch=2)
    expected = pooled = bev_pool(depth.double(), context.float().double(), made)
    for way in ("function", "module", "static"):
        on_gpu = made.to("cuda"), depth.cuda(), context.cuda()
        if way == "function":
            pooled = production.bev_pool(on_gpu[1], on_gpu[2], on_gpu[0])
        elif way == "module":
            pooled = production.BevPool(on_gpu[0], tactic=BALANCED)(*on_gpu[1:])
        else:
            static = production.StaticBevPool(*on_gpu)
            static()
            pooled = static()
        error = (pooled.cpu().double() - expected).abs().max() / expected.abs().max()
        assert error <= (2e-6 if features == F32 else 2e-3), way


@pytest.mark.gpu
def test_the_map_of_a_gpu_pools_like_that_of_the_cpu():
    on_cpu = production.build_scatter_map(small_rig(3), small_frustum(), SMALL_GRID)
    on_gpu = production.build_scatter_map(small_rig(3), small_frustum(), SMALL_GRID, device="cuda")
    assert on_gpu.calibration_hash == on_cpu.calibration_hash
    depth, context = tensors(on_cpu, 16, F32, F32)
    pooled = production.bev_pool(depth.cuda(), context.cuda(), on_gpu).cpu()
    expected = production.bev_pool(depth, context, on_cpu)
    assert (pooled - expected).abs().max() <= 1e-5 * expected.abs().max()
