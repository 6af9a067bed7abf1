"""The race detector of the CPU shim finds what nothing orders, and nothing else."""

from __future__ import annotations

import pytest
import torch

from test.kernels.test_shim import SOURCES
from test.support.cuda_cpu import CpuModule, ShimError
from test.support.cuda_cpu.module import watched

SHARED = r"reads byte \d+ of static shared memory at races.cu:\d+, which thread .* wrote at"
CASES = [
    ("block_barrier", 1, SHARED),
    ("place_used_again", 1, r"writes byte \d+ of static .*, which thread .* read at races.cu"),
    ("warp_barrier", 1, SHARED),
    ("lanes_without_barrier", 1, r"byte \d+ of dynamic shared memory .*: nothing orders the two"),
    ("atomic_and_plain", 1, r"(updated|read) at races.cu:\d+: nothing orders"),
    ("blocks_share_a_word", 2, r"global memory .* of block [01] (wrote|read) at"),
    ("flag_is_volatile", 2, "global memory .* nothing orders"),
    ("last_block", 3, "reads global memory .* of block [012] wrote at"),
    ("fence_of_one_thread", 2, "global memory .* of block 0 (wrote|read) at"),
    ("constant_that_is_written", 1, "__ldg is for what no thread writes"),
]


def module():
    return CpuModule("races", folder=SOURCES, races=True)


def launch(kernel, blocks, *args, **options):
    module().launch(kernel, blocks, 64, *args, shared=64 * 16, **options)


@pytest.mark.parametrize(("kernel", "blocks", "message"), CASES, ids=[case[0] for case in CASES])
def test_a_race_is_found_in_every_schedule_and_none_where_the_line_is_there(
    kernel, blocks, message
):
    """Also where the values come out right, as with blocks that run one after the other."""
    for seed in range(4):
        for resident in {1, blocks}:
            how = {"seed": seed, "resident": resident}
            launch(kernel, blocks, torch.zeros(256, dtype=torch.int32), 1, **how)
            with pytest.raises(ShimError, match=f"race: .*{message}"):
                launch(kernel, blocks, torch.zeros(256, dtype=torch.int32), 0, **how)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("copy_without_barrier", r"reads byte \d+ of dynamic .*: nothing orders the two"),
        ("copy_on_its_way", "by an asynchronous copy that is still on its way"),
    ],
)
def test_an_asynchronous_copy_needs_its_wait_and_then_a_barrier(kernel, message):
    values, out = torch.arange(256).float(), torch.empty(64)
    for seed in range(4):
        launch(kernel, 1, values, out, 1, seed=seed)
        assert torch.equal(out, values[::4].flip(0))
        with pytest.raises(ShimError, match=message):
            launch(kernel, 1, values, out, 0, seed=seed)


def test_neighbouring_bytes_of_one_word_are_different_places():
    out = torch.zeros(129, dtype=torch.uint8)
    launch("bytes_of_a_word", 2, out, 1)
    assert int(out.sum()) == 128
    with pytest.raises(ShimError, match="writes global memory"):
        launch("bytes_of_a_word", 2, out, 0)


def test_the_message_names_kernel_both_lines_and_the_place():
    text = (SOURCES / "races.cu").read_text().splitlines()
    store = text.index("    values[threadIdx.x] = threadIdx.x;") + 1
    line = rf"races.cu:({store}|{store + 2})"
    with pytest.raises(ShimError, match=rf"'block_barrier' on .*{line}, which .* at {line}: "):
        launch("block_barrier", 1, torch.zeros(64, dtype=torch.int32), 0)


def test_the_environment_asks_for_the_detector(monkeypatch):
    monkeypatch.setenv("LD_PRELOAD", "")
    for value, wanted in (("1", 1), ("2", 2), ("0", 0), ("", 0)):
        monkeypatch.setenv("DRIVERT_RACES", value)
        assert watched() == wanted
    monkeypatch.delenv("DRIVERT_RACES")
    assert watched() == 0


def test_votes_order_their_lanes_unless_looked_at_strictly():
    """A GPU promises an order of memory of __syncwarp alone."""
    out = torch.zeros(64, dtype=torch.int32)
    launch("vote_between_lanes", 1, out, 0)
    strict = CpuModule("races", folder=SOURCES, races=2)
    strict.launch("vote_between_lanes", 1, 64, out, 1)
    with pytest.raises(ShimError, match="static shared memory .*: nothing orders the two"):
        strict.launch("vote_between_lanes", 1, 64, out, 0)
