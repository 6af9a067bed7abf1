"""Every kernel compiles for every GPU, and uses no more of it than was measured before."""

from __future__ import annotations

import pytest

from driveRT_ros.core.nvrtc import nvrtc_version
from test.kernels.budgets import ARCHITECTURES, COLUMNS, measure, read_log, recorded

NOISE = {"registers": 8}
"""The compiler was seen to take 150 and 155 registers for the same source and options. Eight is
what a GPU allocates at a time; more, or memory instead of registers, is a regression."""
SPILL_NOISE = 16
"""Bytes by which a recorded spill may grow for the same reason; a new one may not appear."""


def slack(column, recorded):
    """Return how far a use may lie above its budget."""
    return NOISE.get(column, SPILL_NOISE if column.startswith("spill") and recorded else 0)


def regressions(used, allowed):
    """Return a sentence for each kernel that uses more than allowed, or is not recorded."""
    found = []
    for kernel, by_arch in used.items():
        for arch, use in by_arch.items():
            budget = allowed.get(kernel, {}).get(arch)
            if budget is None:
                found.append(f"{kernel} for {arch} has no budget")
                continue
            for column, new, old in zip(COLUMNS, use, budget):
                if new > old + slack(column, old):
                    found.append(f"{kernel} for {arch}: {column} {old} -> {new}")
    return found


def test_kernels_compile_for_every_architecture_within_their_budgets():
    used = measure()
    assert {arch for by_arch in used.values() for arch in by_arch} == set(ARCHITECTURES)
    budget = recorded()
    version = ".".join(map(str, nvrtc_version()))
    if budget["nvrtc"] != version:
        pytest.skip(f"the budgets are of NVRTC {budget['nvrtc']}, this is {version}")
    found = regressions(used, budget["kernels"])
    hint = "wanted? then measure anew: python -m test.kernels.budgets"
    assert not found, "\n".join([*found, hint])
    assert set(budget["kernels"]) == set(used), f"the budgets hold other kernels; {hint}"


def test_a_regression_names_kernel_architecture_old_and_new():
    used = {"a: f": {"sm_90": [73, 0, 0]}, "b: g": {"sm_90": [10, 0, 0]}}
    found = regressions(used, {"a: f": {"sm_90": [64, 0, 0]}})
    assert found == ["a: f for sm_90: registers 64 -> 73", "b: g for sm_90 has no budget"]


def test_a_new_spill_is_a_regression_and_the_noise_of_the_compiler_is_not():
    allowed = {"f": {"sm_90": [64, 0, 0]}, "g": {"sm_90": [64, 0, 8]}}
    assert regressions({"f": {"sm_90": [72, 0, 0]}, "g": {"sm_90": [64, 0, 24]}}, allowed) == []
    assert len(regressions({"f": {"sm_90": [64, 0, 4]}}, allowed)) == 1
    assert len(regressions({"g": {"sm_90": [64, 4, 8]}}, allowed)) == 1


def test_the_log_of_the_compiler_is_read():
    log = """ptxas info    : Compiling entry function 'f' for 'sm_75'
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 63 registers, used 1 barriers, 4096 bytes smem, 364 bytes cmem[0]
ptxas info    : Compiling entry function 'g' for 'sm_75'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers, 364 bytes cmem[0]
"""
    assert read_log(log) == {"f": [63, 4096, 16], "g": [12, 0, 0]}
