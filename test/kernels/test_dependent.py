"""Launches that overlap the one before, and work beside a stream: the results of plain ones."""

from __future__ import annotations

import pytest
import torch

from driveRT_ros.core import cuda
from driveRT_ros.core.paths import share_path
from test.support.kernel_folder import kernel_folder

COMMON = (share_path("kernels") / "common.cuh").read_text()
CHAIN = """
#include "common.cuh"
// Takes its time, so that a successor that did not wait would read too early.
extern "C" __global__ void step(const int* from, int* to, int n) {
    begin_dependent();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        int value = from[(i * 7 + 1) % n];
        for (int k = 0; k < 500; ++k) value = value * 3 ^ k;
        to[i] = value + 1;
    }
}
"""


@pytest.fixture
def sources(tmp_path, monkeypatch):
    return kernel_folder(tmp_path, monkeypatch, {"common.cuh": COMMON})


ENGINE = {
    "levels": ["mark_points", "mark_levels", "number_levels"],
    "voxelize": ["list_points", "mean_features"],
    "coordmap": ["mask_rows", "order_rows", "sort_rows", "fill_tiles", "rank_tiles"],
    **{stem: [stem] for stem in ("input_conv", "bev_merge", "sparse_conv")},
    **{stem: [stem] for stem in ("sparse_conv_mma", "sparse_conv_direct")},
    "epilogue": ["finish_groups"],
    **{stem: ["run_branches"] for stem in ("heads", "heads_mma")},
    "select": ["mark_cells", "collect_candidates", "choose_candidates"],
    "nms": ["suppress_boxes"],
}


@pytest.mark.parametrize("stem", ENGINE)
def test_every_kernel_of_the_sparse_engine_waits_for_the_one_before(stem):
    source = (share_path("kernels") / f"{stem}.cu").read_text()
    assert source.count('extern "C" __global__') == len(ENGINE[stem])
    assert all(cuda.waits_itself(stem, name) for name in ENGINE[stem])


def test_a_kernel_that_does_not_wait_is_told_apart(sources):
    waits = 'extern "C" __global__ void a(int* p) {\n    begin_dependent();\n    *p = 1;\n}\n'
    late = 'extern "C" __global__ void b(int* p) {\n    *p = 1;\n    begin_dependent();\n}\n'
    (sources / "two.cu").write_text('#include "common.cuh"\n' + late + waits)
    assert cuda.waits_itself("two", "a") and not cuda.waits_itself("two", "b")


@pytest.fixture
def steps(sources):
    """Three buffers and launches from each to the next, plain or dependent."""
    (sources / "chain.cu").write_text(CHAIN)
    n = 100_003
    buffers = [torch.zeros(n, dtype=torch.int32, device="cuda") for _ in range(3)]
    kernel = cuda.Kernel("chain", "step")

    def launches(dependent):
        pairs = zip(buffers, buffers[1:] + buffers[:1])
        return [kernel.bind(300, 256, a, b, n, dependent=dependent) for a, b in pairs]

    return buffers, launches(False), launches(True)


def run_steps(buffers, first, rest, repeats):
    buffers[0].copy_(torch.arange(len(buffers[0]), dtype=torch.int32))
    buffers[1].zero_()
    for i in range(repeats):
        (rest if i else first)[i % 3]()


@pytest.mark.gpu
@pytest.mark.parametrize("first", ["plain", "dependent"])
def test_dependent_launches_give_what_plain_ones_give(steps, first):
    buffers, plain, dependent = steps
    run_steps(buffers, plain, plain, 60)
    expected = [buffer.clone() for buffer in buffers]
    run_steps(buffers, plain if first == "plain" else dependent, dependent, 60)
    assert all(torch.equal(*pair) for pair in zip(buffers, expected))


@pytest.mark.gpu
@pytest.mark.parametrize("first", ["plain", "dependent"])
def test_dependent_launches_work_in_a_graph(steps, first):
    buffers, plain, dependent = steps
    run_steps(buffers, plain, plain, 60)
    expected = [buffer.clone() for buffer in buffers]
    graph, begin = torch.cuda.CUDAGraph(), torch.arange(len(buffers[0]), device="cuda").int()
    with torch.cuda.graph(graph):
        buffers[0].copy_(begin)
        buffers[1].zero_()
        for i in range(60):
            (dependent if i or first == "dependent" else plain)[i % 3]()
    for _ in range(20):
        graph.replay()
    assert all(torch.equal(*pair) for pair in zip(buffers, expected))


@pytest.mark.gpu
@pytest.mark.parametrize("in_graph", [False, True])
def test_a_branch_runs_after_its_fork_and_before_its_join(steps, in_graph):
    (a, b, c), (to_b, to_c, _), (_, late_c, late_a) = steps
    branch, begin = cuda.Branch(a.device), torch.arange(len(a), device="cuda").int()

    def work():
        a.copy_(begin)
        to_b()
        to_c(branch.fork())  # reads what to_b wrote
        to_b()  # the same again, beside it
        branch.join()
        b.add_(1)

    work()
    late_c()
    late_a()
    expected = [buffer.clone() for buffer in (a, b, c)]
    graph = torch.cuda.CUDAGraph()
    if in_graph:
        with torch.cuda.graph(graph):
            work()
            late_c()
            late_a()
    for _ in range(20):
        if in_graph:
            graph.replay()
        else:
            work()
            late_c()
            late_a()
        assert all(torch.equal(*pair) for pair in zip((a, b, c), expected))
