"""Launches that share a struct, prepared once: between two calls addresses alone change."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from driveRT_ros.core.cuda import Kernel
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.kernel_args import struct_dtype, struct_value

Run = Callable[..., None]
"""Launches ``(stem, kernel, blocks, threads, *arguments, dependent=False)``."""


class Step(NamedTuple):
    """One launch.

    Args:
        kernel: Its name.
        blocks: Of the launch.
        threads: Of a block.
        dependent: Whether it may begin while the one before still runs.
    """

    kernel: str
    blocks: int
    threads: int
    dependent: bool


class Prepared:
    """Launches of one source, one after the other, each with the same struct.

    It keeps no tensor. Threads may share it.

    Args:
        stem: Source without its suffix; it declares the struct.
        struct: Name of the struct.
        fields: Of the struct, but for the addresses.
        addresses: Fields that hold the address of a tensor.
        steps: What is launched; those without blocks are left out.
        device: CUDA device.
    """

    def __init__(
        self,
        stem: str,
        struct: str,
        fields: Mapping[str, object],
        addresses: Sequence[str],
        steps: Sequence[Step],
        device: torch.device,
    ) -> None:
        file = f"{stem}.cu"
        value = struct_value(file, struct, {**fields, **dict.fromkeys(addresses)})
        layout = struct_dtype(file, struct).fields
        assert layout is not None
        raw = (ctypes.c_char * value.nbytes).from_buffer_copy(value.tobytes())
        self._addresses = [ctypes.c_uint64.from_buffer(raw, layout[name][1]) for name in addresses]
        self._launches = [
            Kernel(stem, step.kernel, device=device).bind(
                step.blocks, step.threads, raw, dependent=step.dependent
            )
            for step in steps
            if step.blocks
        ]
        self._lock = threading.Lock()

    def enqueue(self, stream: int, *tensors: torch.Tensor) -> None:
        """Enqueue all launches.

        Args:
            stream: Handle of a CUDA stream of the device.
            tensors: On the device, in the order of the addresses.

        Raises:
            ConfigError: If one is not contiguous.
        """
        for tensor in tensors:
            if not tensor.is_contiguous():
                raise ConfigError(
                    f"Kernels read contiguous tensors, got strides {tensor.stride()}; call "
                    ".contiguous()."
                )
        with self._lock:
            for address, tensor in zip(self._addresses, tensors):
                address.value = tensor.data_ptr()
            for launch in self._launches:
                launch(stream)


def launch_each(
    run: Run, stem: str, struct: str, fields: Mapping[str, object], steps: Sequence[Step]
) -> None:
    """Run what :class:`Prepared` would enqueue, once.

    Args:
        run: Launches a kernel.
        stem: Source without its suffix; it declares the struct.
        struct: Name of the struct.
        fields: Of the struct, tensors for addresses.
        steps: What is launched; those without blocks are left out.
    """
    value = struct_value(f"{stem}.cu", struct, fields)
    for step in steps:
        if step.blocks:
            run(stem, step.kernel, step.blocks, step.threads, value, dependent=step.dependent)
