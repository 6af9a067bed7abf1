"""A folder of kernels of a test's own, and a cache of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from driveRT_ros.core.kernel_args import struct_dtype

SCALE = """
#include "factor.cuh"
struct Call { float* values; int n; float add; };
extern "C" __global__ void scale(float* values, int n, float add) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) values[i] = FACTOR * values[i] + add;
}
extern "C" __global__ void scale_call(const Call call) {
    const int i = threadIdx.x;
    if (i < call.n) call.values[i] = FACTOR * call.values[i] + call.add;
}
"""


def kernel_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: Mapping[str, str]
) -> Path:
    """Write kernels, and let everything that looks for kernels find these alone."""
    folder = tmp_path / "share" / "kernels"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    monkeypatch.setenv("DRIVERT_SHARE", str(tmp_path / "share"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def scale_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the folder of :data:`SCALE`, for a fixture."""
    files = {"scale.cu": SCALE, "factor.cuh": "#define FACTOR 2.f\n"}
    struct_dtype.cache_clear()
    yield kernel_folder(tmp_path, monkeypatch, files)
    struct_dtype.cache_clear()
