"""Device memory of one frame: allocated once, cleared by one memset."""

from __future__ import annotations

import math

import torch

from driveRT_ros.core.errors import ConfigError

_ALIGN = 256  # bytes; what a cudaMalloc would give


class Arena:
    """Buffers with fixed addresses; some start every frame at zero, some as the last one left them.

    Args:
        device: Where the buffers lie.
        zeroed_bytes: Room for all buffers that start at zero.
    """

    def __init__(self, device: torch.device, zeroed_bytes: int) -> None:
        self.device = device
        self._zeroed = torch.zeros(zeroed_bytes, dtype=torch.uint8, device=device)
        self._used = 0
        self._buffers: list[torch.Tensor] = []
        self._filled: list[tuple[torch.Tensor, int]] = []

    def zeroed(self, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Return a buffer that :meth:`clear` sets to zero."""
        size = math.prod(shape) * dtype.itemsize
        if self._used + size > len(self._zeroed):
            raise ConfigError(
                f"The arena has {len(self._zeroed)} bytes for buffers that start at zero; "
                f"{self._used + size} are needed."
            )
        buffer = self._zeroed[self._used : self._used + size].view(dtype).view(shape)
        self._used += -(-size // _ALIGN) * _ALIGN
        return buffer

    def empty(self, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Return a buffer that keeps what the last frame left in it."""
        buffer = torch.empty(shape, dtype=dtype, device=self.device)
        self._buffers.append(buffer)
        return buffer

    def filled(self, *shape: int, value: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """Return a buffer full of a value that a whole frame of kernels puts back."""
        buffer = self.empty(*shape, dtype=dtype).fill_(value)
        self._filled.append((buffer, value))
        return buffer

    def restore(self) -> None:
        """Fill what :meth:`filled` returned again, after a frame that was cut short."""
        for buffer, value in self._filled:
            buffer.fill_(value)

    def clear(self) -> None:
        """Zero what starts at zero, on the current stream."""
        self._zeroed[: self._used].zero_()

    @property
    def num_bytes(self) -> int:
        """Bytes held."""
        return len(self._zeroed) + sum(b.numel() * b.itemsize for b in self._buffers)
