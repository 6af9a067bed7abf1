"""The GPU as the tuner sees it: on the CPU shim with a made-up clock, and on a GPU as it is."""

from __future__ import annotations

import dataclasses
import gc
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch

from driveRT_ros.bench.frames import Frame
from driveRT_ros.core import device_faults
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError, DeviceError, InvalidFrame
from driveRT_ros.core.gpu import backbone, tuning
from driveRT_ros.core.gpu.tuning import GpuTuningDevice
from driveRT_ros.core.kernel_builds import KernelBuild
from driveRT_ros.core.plan import default_plan
from driveRT_ros.core.sparse_conv_mma import MmaTactic
from driveRT_ros.core.tactics import Tactic
from driveRT_ros.core.tuner import Tuner
from driveRT_ros.core.tuner_device import Settings
from driveRT_ros.core.tuner_state import StateFile
from test.support import engine
from test.support.engine import SMALL, street, tensors_of

CONFIG = LidarConfig.from_dict(SMALL)
CPU, CAPABILITY = torch.device("cpu"), (9, 0)
DEFAULT = default_plan(CONFIG.model.channels, CAPABILITY)
CUDA_CORES = Tactic(3, 32, 16, 4, 4, 2, 1)
LINES = Tactic(9, 64, 16, 4, 4, 2, 1)


def frame(count: int, seed: int = 0) -> Frame:
    points = street(count, seed, edge_m=(4.8, 3.6))
    return Frame(f"{count} points, seed {seed}", "made up", points)


@dataclasses.dataclass(frozen=True)
class WrongPacking(Tactic):
    """Packs the weights of another tap: the fault that no timing shows."""

    def pack(self, weight):
        return super().pack(weight.roll(1, dims=0))


@dataclasses.dataclass(frozen=True)
class LostWeights(Tactic):
    """Computes with what is no number."""

    def pack(self, weight):
        return super().pack(torch.full_like(weight, torch.nan))


@dataclasses.dataclass(frozen=True)
class Deadly(Tactic):
    """Loses the GPU for the whole process, and says nothing at once."""

    def pack(self, weight):
        weight.flatten()[torch.full((8,), 1 << 40, device=weight.device)]
        return super().pack(weight)


@pytest.fixture
def device(monkeypatch) -> GpuTuningDevice:
    engine.put_on_the_shim(monkeypatch, CAPABILITY)
    monkeypatch.setattr(engine.BACKEND, "seed", 0)
    monkeypatch.setattr(engine.BACKEND, "resident", 1)
    return GpuTuningDevice(CONFIG, tensors_of(CONFIG), CPU, DEFAULT)


# ---- right or wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize("domain", ["subm1", "spconv3", "spconv_out", "subm_out"])
def test_tactics_that_are_right_have_the_error_of_their_arithmetic(device, domain):
    tactics = [DEFAULT.tactics[domain], CUDA_CORES]
    for tactic in tactics:
        assert 0 < device.check(domain, tactic, frame(120)) < 1e-6


def test_wrong_packing_and_lost_weights_are_seen(device):
    for kind in (WrongPacking, LostWeights):
        wrong = kind(**vars(CUDA_CORES))
        assert device.check("subm2", wrong, frame(120)) > 0.01
    assert device.check("subm2", CUDA_CORES, frame(120)) < 1e-6  # nothing of it is left behind


def test_rows_that_a_kernel_never_writes_are_seen(device, monkeypatch):
    launches = engine.ShimKernel.bind

    def bind(self, grid, block, *args, **how):
        launch = launches(self, grid, block, *args, **how)
        lazy = self.stem == "sparse_conv" and self.defines.get("TM") == "32"
        return (lambda stream=None: None) if lazy else launch

    monkeypatch.setattr(engine.ShimKernel, "bind", bind)
    try:
        seen = device.check("subm3", CUDA_CORES, frame(80)) > 0.01
    except DeviceError:  # the sums of groups hold what lay there before, which may change
        seen = True
    assert seen


def test_bytes_that_change_from_run_to_run_are_a_fault(device, monkeypatch):
    launches, runs = engine.ShimKernel.bind, []

    def bind(self, grid, block, *args, **how):
        launch = launches(self, grid, block, *args, **how)

        def restless(stream=None):
            launch(stream)
            if self.stem == "epilogue":
                runs.append(1)
                made = engine_of(device).backbone.output("conv_out")
                made[0, 0] += 1e-7 * len(runs)

        return restless

    def engine_of(device):
        return next(reversed(device._engines.values()))

    device.check("spconv_out", DEFAULT.tactics["spconv_out"], frame(80))
    monkeypatch.setattr(engine.ShimKernel, "bind", bind)
    with pytest.raises(DeviceError, match="different bytes in domain 'spconv_out'"):
        device.check("spconv_out", CUDA_CORES, frame(80))


def test_a_tactic_that_cannot_run_its_layer_is_refused(device):
    with pytest.raises(ConfigError, match="subm2"):
        device.check("subm2", Tactic(3, 64, 48, 4, 4, 2, 1), frame(80))
    with pytest.raises(ConfigError, match="F16"):
        device.check("subm2", MmaTactic(3, 64, 16, 2, 1, 4, 1, "F16"), frame(80))


def test_weights_of_other_channels_are_refused(monkeypatch):
    engine.put_on_the_shim(monkeypatch, CAPABILITY)
    tensors = tensors_of(CONFIG)
    tensors["conv2.0.weight"] = tensors["conv2.0.weight"][:, :8].contiguous()
    device = GpuTuningDevice(CONFIG, tensors, CPU, DEFAULT)
    with pytest.raises(ConfigError, match="conv2.0.weight"):
        device.check("spconv2", CUDA_CORES, frame(80))


def test_half_precision_is_compared_with_float64_too(monkeypatch):
    engine.put_on_the_shim(monkeypatch, CAPABILITY)
    half = default_plan(CONFIG.model.channels, CAPABILITY, "fp16")
    device = GpuTuningDevice(CONFIG, tensors_of(CONFIG), CPU, half)
    for domain in ("subm1", "subm_out"):
        assert 1e-6 < device.check(domain, half.tactics[domain], frame(80)) < 1e-2


# ---- frames -------------------------------------------------------------------------------------


def test_plans_with_the_same_tactics_agree_to_the_bit_and_others_within_rounding(device):
    other = dataclasses.replace(DEFAULT, tactics={**DEFAULT.tactics, "subm3": LINES})
    assert device.difference(DEFAULT, DEFAULT, frame(120)) == 0.0
    assert device.difference(DEFAULT, other, frame(120)) < 1e-5
    wrong = WrongPacking(**vars(CUDA_CORES))
    worse = dataclasses.replace(DEFAULT, tactics={**DEFAULT.tactics, "subm3": wrong})
    assert device.difference(DEFAULT, worse, frame(120)) > 1e-5


def test_a_frame_that_does_not_fit_is_told_and_never_timed(monkeypatch):
    engine.put_on_the_shim(monkeypatch, CAPABILITY)
    tight = LidarConfig.from_dict(SMALL | {"voxelization.max_voxels": 400})
    device = GpuTuningDevice(tight, tensors_of(tight), CPU, DEFAULT)
    assert device.overflow(frame(50)) == {}
    assert "rows of level 1" in device.overflow(frame(1500))
    with pytest.raises(InvalidFrame, match="exceeds the capacities"):
        device.check("subm2", CUDA_CORES, frame(1500))


def test_nothing_that_lies_on_a_lost_device_is_freed(device, monkeypatch):
    """Freeing it would call CUDA, which would abort the process before it could say anything."""
    monkeypatch.setattr(device_faults, "_wrecks", [])
    lost = RuntimeError("CUDA error: device-side assert triggered")

    def synchronize(_):
        raise lost

    device.overflow(frame(50))
    device._want = {("subm2", "a frame"): {"a layer": torch.zeros(3)}}
    backbones = [weakref.ref(each.backbone) for each in device._engines.values()]
    wanted = [weakref.ref(rows) for each in device._want.values() for rows in each.values()]
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert device.lost_after(DeviceError("Two runs differ.")) is lost
    del device
    gc.collect()
    assert backbones and wanted and all(found() is not None for found in (*backbones, *wanted))


def test_after_a_fault_that_the_device_survives_every_engine_is_built_anew(device, monkeypatch):
    monkeypatch.setattr(device_faults, "_wrecks", [])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    device.overflow(frame(50))
    backbones = [weakref.ref(each.backbone) for each in device._engines.values()]
    assert device.lost_after(DeviceError("Two runs differ.")) is None
    gc.collect()
    assert [found() for found in backbones] == [None] * len(backbones)
    assert backbones and device_faults.wrecks() == 0
    assert device.overflow(frame(50)) == {}


# ---- time ---------------------------------------------------------------------------------------


class Clock:
    """Stands in for graphs and events: a replay runs the work and takes what it is told to."""

    def __init__(self, monkeypatch, costs):
        self.costs, self.order = costs, []
        monkeypatch.setattr(tuning.Engine, "_graph", lambda of, name, work: (of, name, work))
        monkeypatch.setattr(tuning, "replay_times", self.replay)

    def replay(self, graph, samples, replays):
        engine, name, work = graph
        if engine not in [engine for engine, _ in self.order]:
            work()  # it can be run again on the frame at hand
        self.order.append((engine, name))
        return [self.costs(engine, name)] * samples


def test_a_pair_is_timed_there_and_back_with_the_price_of_its_tiles(device, monkeypatch):
    def costs(engine, name):
        lines = engine.backbone.plan.tactics["subm2"] == LINES
        return {"subm2": 80.0 if lines else 100.0, "maps": 130.0 if lines else 120.0}[name]

    clock = Clock(monkeypatch, costs)
    default = DEFAULT.tactics["subm2"]
    assert default.groups != LINES.groups
    first, second = device.time_pair("subm2", default, LINES, frame(80))
    assert (first, second) == (100.0, 90.0)
    for name in ("subm2", "maps"):
        a, b, *rounds = [engine for engine, what in clock.order if what == name]
        assert rounds == [a, b, b, a] * tuning.ROUNDS


def test_the_same_tiles_cost_the_maps_nothing(device, monkeypatch):
    clock = Clock(monkeypatch, lambda engine, name: 100.0)
    same = dataclasses.replace(CUDA_CORES, stages=3)
    assert device.time_pair("subm2", CUDA_CORES, same, frame(80)) == (100.0, 100.0)
    assert {name for _, name in clock.order} == {"subm2"}


def test_a_whole_frame_is_timed_as_one_graph(device, monkeypatch):
    clock = Clock(monkeypatch, lambda engine, name: 1234.0)
    assert device.time_frame(DEFAULT, frame(80)) == 1234.0
    assert {name for _, name in clock.order} == {"frame"}


def test_no_more_than_two_engines_are_kept(device):
    for stages in (2, 3, 4):
        device.check("subm_out", Tactic(3, 32, 16, 4, 4, stages, 1), frame(100))
    assert len(device._engines) == 2


def test_a_frame_that_did_not_fit_is_not_timed_in_place_of_the_one_before(device):
    """Graphs replay what is in the buffers: after such a frame, that is neither of the two."""
    small, large = frame(80), frame(4000)
    made = device._engine(DEFAULT)

    def voxels():
        return int(made.backbone.maps.levels[0].counts[1])

    made.load(small)
    count = voxels()
    with pytest.raises(InvalidFrame):
        made.load(large)
    made.load(small)
    assert voxels() == count
    assert device.overflow(frame(150)) == {} and voxels() != count
    made.load(small)
    assert voxels() == count


def test_compiling_ahead_keeps_quiet_about_what_does_not_compile(device, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    device.prepare("subm2", [CUDA_CORES, dataclasses.replace(CUDA_CORES, thread_rows=3)])
    assert len(list(tmp_path.rglob("*.cubin"))) >= 1


@pytest.mark.parametrize("groups", [1, 3])
def test_what_a_search_compiles_ahead_is_what_the_engine_then_asks_for(groups, monkeypatch):
    """Rows of the last layer are floats in half precision, too: its kernel has a constant more."""
    engine.put_on_the_shim(monkeypatch, CAPABILITY)
    ahead, asked = set(), set()
    compiled = lambda stem, _, defines: ahead.add(KernelBuild.of(stem, defines))  # noqa: E731
    monkeypatch.setattr(tuning, "compile_cubin", compiled)

    class Kernel(engine.ShimKernel):
        def __init__(self, stem, name, defines=None, **how):
            asked.add(KernelBuild.of(stem, defines or {}))
            super().__init__(stem, name, defines, **how)

    monkeypatch.setattr(backbone, "Kernel", Kernel)
    default = default_plan(CONFIG.model.channels, CAPABILITY, "fp16")
    device = GpuTuningDevice(CONFIG, tensors_of(CONFIG), CPU, default)
    tactic = MmaTactic(groups, 32, 16, 2, 1, 3, 2, "F16")
    for domain in ("subm3", "subm_out"):
        device.prepare(domain, [tactic])
        device._with(domain, tactic)
    # Two convolutions, or the one that both share and two that add its sums up.
    assert len(ahead) == (2 if groups == 1 else 3) and ahead <= asked


# ---- on a GPU -----------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_search_on_this_gpu_gives_a_plan_that_runs(precision, tmp_path):
    from driveRT_ros.core.candidates import candidates
    from driveRT_ros.core.plan import Plan, domain_layers

    gpu = torch.device("cuda", 0)
    capability, channels = torch.cuda.get_device_capability(gpu), CONFIG.model.channels
    default = dataclasses.replace(
        default_plan(channels, capability, precision), gpu=torch.cuda.get_device_name(gpu)
    )
    device = GpuTuningDevice(CONFIG, tensors_of(CONFIG, gpu), gpu, default)
    layers = domain_layers(channels)
    choices = {d: candidates(*layers[d], precision, capability)[:4] for d in ("subm3", "spconv2")}
    frames = [frame(n, seed=n) for n in (400, 800, 1200)]
    file = StateFile(tmp_path / "state.json", {})
    plan = Tuner(device, default, choices, frames, frames, file, Settings()).run()
    assert plan.measured["faults"] == []
    assert all(found["default_us"] > 0 for found in plan.measured["domains"].values())
    plan.save(tmp_path / "plan.json")
    found, note = Plan.for_device(
        tmp_path / "plan.json", channels, precision, default.gpu, capability
    )
    assert note == "" and found.tactics == plan.tactics


@pytest.mark.gpu
def test_on_a_gpu_wrong_packing_is_seen_and_the_device_lives():
    gpu = torch.device("cuda", 0)
    capability = torch.cuda.get_device_capability(gpu)
    default = default_plan(CONFIG.model.channels, capability)
    device = GpuTuningDevice(CONFIG, tensors_of(CONFIG, gpu), gpu, default)
    wrong = WrongPacking(**vars(CUDA_CORES))
    assert device.check("subm2", wrong, frame(1000)) > 0.01
    assert device.check("subm2", CUDA_CORES, frame(1000)) < 1e-6
    with pytest.raises(ConfigError) as raised:
        device.check("subm2", dataclasses.replace(CUDA_CORES, slab=12), frame(1000))
    assert device.lost_after(raised.value) is None


def search_with_a_deadly_candidate(path: str) -> None:
    """Print what became of it; runs in a process of its own, which it ends."""
    gpu = torch.device("cuda", 0)
    default = default_plan(CONFIG.model.channels, torch.cuda.get_device_capability(gpu))
    device = GpuTuningDevice(CONFIG, tensors_of(CONFIG, gpu), gpu, default)
    choices = {"subm2": (LINES, Deadly(**vars(CUDA_CORES)), CUDA_CORES)}
    frames, file = [frame(n, seed=n) for n in (400, 800)], StateFile(Path(path), {})
    try:
        plan = Tuner(device, default, choices, frames, frames, file, Settings()).run()
        found = plan.measured["domains"]["subm2"]
        told = f"tried {found['tried']}, faults {found['faults']}"
    except DeviceError as error:
        assert device_faults.context_lost(error)
        device_faults.keep(error)  # freeing what was in work would abort the process
        told = str(error)
    sys.stdout.write(told.replace("\n", " ") + "\n")
    sys.stdout.flush()
    os._exit(0)  # the exit of a process without its GPU may fail


@pytest.mark.gpu
def test_on_a_gpu_a_deadly_candidate_is_named_and_the_next_start_goes_on_without_it(tmp_path):
    code = (
        "import sys; from test.kernels.test_gpu_tuning import search_with_a_deadly_candidate\n"
        "search_with_a_deadly_candidate(sys.argv[1])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "state.json")]
    told = []
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        told.append(done.stdout.splitlines()[-1])
    assert "stopped working" in told[0] and "tile_rows=32" in told[0], told
    assert told[1] == "tried 3, faults 1"
