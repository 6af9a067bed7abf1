"""Kernels on the CPU: the same sources, compiled by g++ over a small CUDA in fibers."""

from test.support.cuda_cpu.module import CpuModule, ShimError, build

__all__ = ["CpuModule", "ShimError", "build"]
