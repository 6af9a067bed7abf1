"""Tell faults of a GPU from all other errors, and those that it survives from those it does not."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from driveRT_ros.core.errors import DeviceError

OUT_OF_MEMORY, DEVICE_ERROR = "out_of_memory", "device_error"
"""Why a frame got no result, as drops are counted."""

_NO_MEMORY = 2
_CONTEXT_LOST = {
    214: "uncorrectable ECC error encountered",
    220: "uncorrectable NVLink error detected during the execution",
    226: "Invalid access of peer GPU memory over nvlink or a hardware error",
    700: "an illegal memory access was encountered",
    702: "the launch timed out and was terminated",
    709: "context is destroyed",
    710: "device-side assert triggered",
    714: "hardware stack error",
    715: "an illegal instruction was encountered",
    716: "misaligned address",
    717: "operation not supported on global/shared address space",
    718: "invalid program counter",
    719: "unspecified launch failure",
    721: "tensor memory not completely freed",
    810: "the MPS client has been terminated by the server",
}
"""Code and text of the errors after which, in the words of driver_types.h, "any further CUDA work
will return the same error": driver and runtime number them alike."""

_FROM_CUDA = re.compile(
    r"\bCUDA (driver )?error\b|\b(CUDNN|CUBLAS|CUSPARSE|CUSOLVER|CUFFT)_STATUS_"
)
_OUT_OF_MEMORY = re.compile(r"\bout of memory\b|_STATUS_ALLOC_FAILED\b")

_wrecks: list[tuple[object, ...]] = []


@dataclass(frozen=True)
class DeviceFault:
    """What a GPU did to a frame.

    Args:
        reason: :data:`OUT_OF_MEMORY` or :data:`DEVICE_ERROR`.
        context_lost: Whether CUDA is lost to this process, so that only a new one gets it back.
    """

    reason: str
    context_lost: bool = False


def device_fault(error: BaseException) -> DeviceFault | None:
    """Return what kind of GPU fault an error is, or None where it is none.

    Known are the errors of this package, of torch, and of the CUDA libraries that torch calls.
    """
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return DeviceFault(OUT_OF_MEMORY)
    if isinstance(error, DeviceError):
        return _by_code(error.cuda_code)
    if not isinstance(error, RuntimeError):
        return None
    code = getattr(error, "error_code", None)  # of torch.AcceleratorError, since torch 2.8
    if code is not None:
        return _by_code(int(code))
    text = str(error)
    if not _FROM_CUDA.search(text):
        return None
    if _OUT_OF_MEMORY.search(text):
        return DeviceFault(OUT_OF_MEMORY)
    return DeviceFault(DEVICE_ERROR, any(known in text for known in _CONTEXT_LOST.values()))


def context_lost(error: BaseException | None) -> bool:
    """Return whether an error, or one that led to it, says that CUDA is lost to this process."""
    known: list[BaseException] = []
    ahead = [error]
    while ahead:
        error = ahead.pop()
        if error is None or error in known:
            continue
        fault = device_fault(error)
        if fault is not None and fault.context_lost:
            return True
        known.append(error)
        ahead += [error.__cause__, error.__context__]
    return False


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that a GPU, or its pinned memory, is full."""
    fault = device_fault(error)
    return fault is not None and fault.reason == OUT_OF_MEMORY


def keep(*wreck: object) -> None:
    """Keep what lies in a lost context as long as the process lives.

    Freeing it would call CUDA, which may abort; so may freeing pinned memory that was given to it.
    """
    _wrecks.append(wreck)


def wrecks() -> int:
    """Return how often something was kept: a process with wrecks must not end by cleaning up."""
    return len(_wrecks)


def first_line(error: BaseException) -> str:
    """Return the type of an error and what it says, without the advice that torch appends."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}".rstrip(": .")


def _by_code(code: int | None) -> DeviceFault:
    return DeviceFault(OUT_OF_MEMORY if code == _NO_MEMORY else DEVICE_ERROR, code in _CONTEXT_LOST)
