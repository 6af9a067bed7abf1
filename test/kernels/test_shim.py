"""The CPU shim sees faults: a test on it can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.kernel_args import struct_value
from driveRT_ros.core.paths import share_path
from test.support.conv_case import Case
from test.support.cuda_cpu import CpuModule, ShimError
from test.support.cuda_cpu.module import sanitized
from test.support.launch import SPARSE_CONV, SUBMANIFOLD, Backend
from test.support.tile_tables import tile_tables

SOURCES = Path(__file__).parent / "sources"
REPO = Path(__file__).resolve().parents[2]


def faults(defines=None):
    """Return kernels with faults that other checks than the race detector must find."""
    return CpuModule("faults", defines, folder=SOURCES, races=False)


@pytest.mark.parametrize(
    ("kernel", "threads", "message"),
    [
        ("barrier_in_half_a_block", 64, "barrier divergence"),
        ("two_barriers", 64, r"barrier divergence.* at faults.cu:1[0-9] while"),
        ("shuffle_with_returned_lane", 32, "lane 5 .*has returned"),
        ("shuffle_with_returned_lane", 16, "lane 16 does not exist"),
        ("shuffle_from_unnamed_lane", 32, "reads lane 20"),
        ("masks_disagree", 32, "lanes of a warp disagree"),
        ("warp_waits_for_block", 32, "deadlock: no thread can run"),
    ],
)
def test_misused_synchronization_is_named(kernel, threads, message):
    with pytest.raises(ShimError, match=message):
        faults().launch(kernel, 1, threads, torch.zeros(64, dtype=torch.int32))


def test_waiting_for_a_block_that_has_not_started_is_a_deadlock():
    """With both blocks running it is none: the mix of blocks is real."""
    flags = torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ShimError, match="deadlock.*block \\(0, 0, 0\\) waits"):
        faults().launch("wait_for_a_later_block", 2, 1, flags)
    faults().launch("wait_for_a_later_block", 2, 1, flags.zero_(), resident=2)
    assert flags.tolist() == [1, 1]


def test_the_portable_switch_of_fibers_does_the_same():
    """What other processors than x86-64 use."""
    values = torch.arange(64, dtype=torch.int32)
    module = faults({"SHIM_UCONTEXT": 1})
    with pytest.raises(ShimError, match="barrier divergence"):
        module.launch("two_barriers", 1, 64, values.clone())
    both = []
    for chosen in (faults(), module):
        chosen.launch("reverse_without_barrier", 1, 64, values, out := torch.empty_like(values))
        both.append(out)
    assert torch.equal(*both)


@pytest.mark.slow
def test_an_endless_loop_ends_the_launch_and_not_the_tests():
    with pytest.raises(ShimError, match="without a barrier or yield"):
        faults().launch("endless_loop", 1, 1, torch.zeros(1, dtype=torch.int32))


@pytest.mark.skipif(sanitized(), reason="AddressSanitizer ends the process instead")
def test_a_wild_address_ends_the_launch_and_not_the_tests():
    with pytest.raises(ShimError, match=r"thread \(0, 0, 0\).* touched the address"):
        faults().launch("touch_far_away", 1, 1, torch.zeros(1, dtype=torch.int32))


def test_a_copy_is_late_where_nobody_waits_for_it():
    values, out = torch.arange(32 * 4).float(), torch.empty(32)
    with pytest.raises(ShimError, match="copies in flight"):
        faults().launch("copy_without_wait", 1, 32, values, out, shared=32 * 16)
    with pytest.raises(ShimError, match="not 16 aligned bytes of shared memory"):
        faults().launch("copy_beyond_shared", 1, 32, values, shared=32 * 16)


def test_a_missing_barrier_gives_results_that_change_with_the_seed():
    values, results = torch.arange(256, dtype=torch.int32), set()
    for seed in range(4):
        out = torch.empty_like(values)
        faults().launch("reverse_without_barrier", 1, 256, values, out, seed=seed)
        assert not torch.equal(out, values.flip(0))
        results.add(tuple(out.tolist()))
    assert len(results) == 4


def test_shared_memory_holds_no_useful_value_at_first():
    out = torch.zeros(2)
    faults().launch("read_fresh_shared", 1, 1, out, shared=16)
    assert bool(out[0].isnan()) and out[1] == 0


def test_arguments_are_checked_against_the_kernel():
    with pytest.raises(ConfigError, match="takes 1 arguments of"):
        faults().launch("two_barriers", 1, 32, torch.zeros(4), 3)
    with pytest.raises(ConfigError, match="contiguous"):
        faults().launch("two_barriers", 1, 32, torch.zeros(4, 4).t())


def test_a_launch_leaves_no_mapped_memory_behind():
    """A process may hold 65530 mappings, and a run of all tests loads some hundred modules."""

    def mappings():
        return len(Path("/proc/self/maps").read_text().splitlines())

    values, module = torch.arange(256, dtype=torch.int32), faults()
    before = mappings()
    module.launch("reverse_without_barrier", 4, 256, values, torch.empty_like(values), resident=4)
    with pytest.raises(ShimError, match="barrier divergence"):
        module.launch("two_barriers", 1, 64, values)
    assert mappings() - before < 64


# ---- real kernels with one line taken out --------------------------------------------------------


def mutant(tmp_path, file, old, new, count=1):
    """Return a folder with the kernels in which one piece of text was replaced."""
    for source in share_path("kernels").iterdir():
        if source.suffix in (".cu", ".cuh"):
            text = source.read_text()
            if source.name == file:
                assert text.count(old) >= 1, f"{file} changed: this test must follow"
                text = text.replace(old, new, count)
            (tmp_path / source.name).write_text(text)
    return str(tmp_path)


def caught(folder, run, good):
    """Tell whether every schedule is stopped by the shim or gives a wrong result."""
    for seed in range(3):
        try:
            if torch.equal(run(Backend("cpu-shim", seed=seed, folder=folder)), good):
                return False
        except ShimError:
            continue
    return True


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("copy_wait<STAGES - 2>();\n            __syncthreads();", "copy_wait<STAGES - 2>();"),
        ("copy_wait<STAGES - 2>();", ""),
    ],
    ids=["barrier", "copy_wait"],
)
def test_a_convolution_without_its_barrier_or_wait_is_caught(tmp_path, old, new):
    folder = mutant(tmp_path, "sparse_conv.cu", old, new)
    case = Case(Backend("cpu-shim"), SPARSE_CONV[4], SUBMANIFOLD[2])

    def run(backend):
        case.backend = backend
        return case.run()

    good = run(Backend("cpu-shim"))
    assert caught(folder, run, good)
    assert not caught(None, run, good)


def test_a_tile_number_that_is_overwritten_while_it_is_read_is_caught(tmp_path):
    """Tiles without taps pass one barrier only; one shared place for the next tile is too few."""
    folder = mutant(tmp_path, "sparse_conv.cu", "side ^= 1", "side ^= 0")
    config, rows = SPARSE_CONV[4], 1200
    tables = tile_tables(np.full((27, rows), -1), config.tile_rows, 1, np.random.default_rng(0))
    x, weight, bias = torch.ones(1, 16), torch.ones(27, 16, 16), torch.arange(16.0)

    def run(backend):
        out = torch.full((tables.row_capacity, 16), torch.nan)
        ticket = torch.zeros(1, dtype=torch.int32)
        fields = {
            "x": x, "weight": weight, "bias": bias, "residual": 0, "out": out,
            "order": tables.order, "table": tables.table, "tile_mask": tables.tile_mask,
            "tile_rank": tables.tile_rank, "n_tiles": tables.n_tiles, "ticket": ticket,
            "group_taps": tables.group_taps, "relu": 0,
        }  # fmt: skip
        convolution = struct_value("sparse_conv.cu", "Convolution", fields)
        how = {"defines": config.defines, "shared": config.shared}
        backend.launch("sparse_conv", "sparse_conv", 2, config.threads, convolution, **how)
        return out[:rows]

    good = run(Backend("cpu-shim"))
    assert torch.equal(good, bias.expand(rows, 16))
    assert caught(folder, run, good)


# ---- AddressSanitizer ---------------------------------------------------------------------------


def under_sanitizer(*command):
    """Run Python with AddressSanitizer loaded first; modules are then built with it."""
    library = subprocess.run(
        ["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    env = {**os.environ, "LD_PRELOAD": library, "OMP_NUM_THREADS": "1"}
    env["ASAN_OPTIONS"] = "detect_leaks=0:abort_on_error=0:exitcode=99"
    return subprocess.run(
        [sys.executable, *command], cwd=REPO, env=env, capture_output=True, text=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["overrun_static", "overrun_dynamic", "overrun_global"])
def test_the_sanitizer_sees_one_element_too_many(kernel):
    code = (
        "import torch; from test.support.cuda_cpu import CpuModule\n"
        f"module = CpuModule('faults', folder={str(SOURCES)!r})\n"
        "out = torch.zeros(THREADS, dtype=torch.int32)\n"
        f"module.launch({kernel!r}, 1, THREADS, out, shared=4 * THREADS)\n"
        "print('finished')\n"
    )
    threads = 33 if kernel == "overrun_static" else 64
    done = under_sanitizer("-c", code.replace("THREADS", str(threads)))
    assert done.returncode == 99 and "finished" not in done.stdout, done.stderr[-2000:]
    assert "AddressSanitizer" in done.stderr and f"{kernel}" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(sanitized(), reason="this is what runs under the sanitizer")
def test_the_kernels_run_clean_under_the_sanitizer():
    """The kernels again, with every bound, alignment and shift checked."""
    files = ("levels", "voxelize", "coordmap", "sparse_conv", "sparse_conv_mma", "layers")
    paths = [f"test/kernels/test_{name}.py" for name in files]
    # Of the convolutions, which take long to build, the narrow ones and one of each other flow.
    chosen = (
        "not cuda and not 128-128 and not 64- and not 16-32 and (not mma or any_number_of_rows)"
    )
    options = ("-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", "-k", chosen)
    done = under_sanitizer("-m", "pytest", *options, *paths)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
