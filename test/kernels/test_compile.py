"""Every kernel compiles for every GPU, and uses no more of it than was measured before."""

from __future__ import annotations

import pytest

from driveRT_ros.core.nvrtc import nvrtc_version
from test.kernels.budgets import ARCHITECTURES, COLUMNS, measure, read_log, recorded


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
                if new > old:
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
    used = {"a: f": {"sm_90": [65, 0, 0]}, "b: g": {"sm_90": [10, 0, 0]}}
    found = regressions(used, {"a: f": {"sm_90": [64, 0, 0]}})
    assert found == ["a: f for sm_90: registers 64 -> 65", "b: g for sm_90 has no budget"]


def test_the_log_of_the_compiler_is_read():
    log = """ptxas info    : Compiling entry function 'f' for 'sm_75'
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 63 registers, used 1 barriers, 4096 bytes smem, 364 bytes cmem[0]
ptxas info    : Compiling entry function 'g' for 'sm_75'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 0 barriers, 364 bytes cmem[0]
"""
    assert read_log(log) == {"f": [63, 4096, 16], "g": [12, 0, 0]}
