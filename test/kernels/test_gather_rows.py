"""Gathered rows are those that indexing gives, bit for bit."""

from __future__ import annotations

import pytest
import torch

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.gpu.gather_rows import gather_rows


def launcher(backend):
    def run(defines, grid, block, *args):
        backend.launch("gather_rows", "gather_rows", grid, block, *args, defines=defines)

    return run


@pytest.mark.parametrize("numbers_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype, channels", [(torch.bfloat16, 8), (torch.float32, 20)])
@pytest.mark.parametrize("count", [0, 1, 255, 3000])
def test_gathered_rows_are_those_of_indexing(backend, numbers_dtype, dtype, channels, count):
    generator = torch.Generator().manual_seed(count)
    rows = torch.randn(700, channels, generator=generator).to(dtype)
    rows[3] = torch.nan
    numbers = torch.randint(0, 700, (count,), generator=generator, dtype=numbers_dtype)
    found = gather_rows(
        rows.to(backend.device), numbers.to(backend.device), launcher(backend)
    ).cpu()
    want = rows[numbers.long()]
    assert found.dtype == dtype
    assert torch.equal(found.view(torch.uint8), want.view(torch.uint8))


def test_rows_that_are_no_whole_words_and_numbers_of_another_type_are_refused():
    numbers = torch.zeros(2, dtype=torch.int32)
    with pytest.raises(ConfigError, match="Rows of 20 bytes"):
        gather_rows(torch.zeros(4, 5), numbers)
    with pytest.raises(ConfigError, match="strides"):
        gather_rows(torch.zeros(8, 4).T.reshape(4, 8)[:, ::2], numbers)
    with pytest.raises(ConfigError, match="int16"):
        gather_rows(torch.zeros(4, 4), numbers.short())


@pytest.mark.gpu
def test_more_words_than_32_bits_count_are_gathered():
    rows = torch.arange(1 << 14, device="cuda").view(-1, 128)  # 1024 bytes a row
    numbers = torch.arange((1 << 26) // 2 + 7, device="cuda", dtype=torch.int32) % len(rows)
    found = gather_rows(rows, numbers)
    assert found.shape[0] * 64 > 1 << 31
    assert torch.equal(found[-5000:], rows[numbers[-5000:].long()])
    assert torch.equal(found[:: 1 << 15], rows[numbers[:: 1 << 15].long()])
