"""What a GPU does to a frame is told from other errors, whoever reports it."""

from __future__ import annotations

import pytest
import torch

from driveRT_ros.core import cuda
from driveRT_ros.core.device_faults import (
    DEVICE_ERROR,
    OUT_OF_MEMORY,
    DeviceFault,
    context_lost,
    device_fault,
    first_line,
    out_of_memory,
)
from driveRT_ros.core.errors import ConfigError, DeviceError, InvalidFrame

ADVICE = "\nCUDA kernel errors might be asynchronously reported at some other API call."
LOST = DeviceFault(DEVICE_ERROR, context_lost=True)
FAILED, FULL = DeviceFault(DEVICE_ERROR), DeviceFault(OUT_OF_MEMORY)


def accelerator_error(code: int, text: str) -> Exception:
    """Return what torch raises since 2.8; only its C++ sets the code."""
    error = getattr(torch, "AcceleratorError", RuntimeError)(f"CUDA error: {text}{ADVICE}")
    error.error_code = code
    return error


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), FULL),
        (accelerator_error(2, "out of memory"), FULL),
        (accelerator_error(700, "an illegal memory access was encountered"), LOST),
        (accelerator_error(719, "unspecified launch failure"), LOST),
        (accelerator_error(1, "invalid argument"), FAILED),
        (RuntimeError("CUDA error: an illegal memory access was encountered" + ADVICE), LOST),
        (RuntimeError("CUDA error: device-side assert triggered" + ADVICE), LOST),
        (RuntimeError("CUDA error: out of memory" + ADVICE), FULL),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), FULL),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), FAILED),
        (RuntimeError("CUDA driver error: invalid argument"), FAILED),
        (DeviceError("CUDA error 2 (out of memory) while loading levels.cu.", 2), FULL),
        (DeviceError("CUDA error 715 (an illegal instruction) while launching 'x'.", 715), LOST),
        (DeviceError("CUDA error 701 (too many resources) while launching 'x'.", 701), FAILED),
        (DeviceError("NVRTC, the CUDA run-time compiler, was not found."), FAILED),
    ],
)
def test_faults_of_a_gpu_are_known_by_code_or_by_text(error: Exception, fault: object) -> None:
    assert device_fault(error) == fault
    assert out_of_memory(error) == (fault == FULL)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("illegal address"),
        MemoryError("out of memory"),
        ValueError("CUDA error: not by torch"),
        ConfigError("Parameter 'device' 'cuda' cannot be used: CUDA error."),
        InvalidFrame("CUDA error", "points"),
    ],
)
def test_other_errors_are_no_faults_of_a_gpu(error: Exception) -> None:
    assert device_fault(error) is None


def test_a_lost_context_is_found_behind_the_errors_that_it_led_to() -> None:
    """A sentence for people is raised from what torch said, and must not hide it."""

    def raised(*errors: Exception) -> Exception:
        try:
            try:
                raise errors[0]
            except Exception as cause:
                raise errors[1] from (errors[2] if errors[2:] else cause)
        except Exception as error:
            return error

    lost = accelerator_error(710, "device-side assert triggered")
    assert context_lost(lost) and context_lost(raised(lost, DeviceError("The search ended.")))
    assert context_lost(raised(ValueError("odd"), ConfigError("No."), lost))
    assert context_lost(raised(lost, ConfigError("No."), ValueError("odd")))
    assert not context_lost(raised(RuntimeError("CUDA error: invalid argument"), ConfigError("No")))
    assert not context_lost(None)
    circle = ConfigError("No.")
    circle.__cause__ = circle.__context__ = circle
    assert not context_lost(circle)


def test_advice_of_torch_and_the_last_point_are_left_out_of_the_sentence() -> None:
    error = RuntimeError("CUDA error: misaligned address" + ADVICE)
    assert first_line(error) == "RuntimeError: CUDA error: misaligned address"
    assert first_line(DeviceError("No room.")) == "DeviceError: No room"
    assert first_line(RuntimeError()) == "RuntimeError"


def test_a_failed_launch_carries_the_number_of_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        def cuGetErrorString(self, code: int, text: object) -> int:  # noqa: N802 - of the driver
            return 0

    monkeypatch.setattr(cuda, "_driver", Driver)
    with pytest.raises(DeviceError, match="CUDA error 716") as raised:
        cuda._check(716, "launching 'x'")
    assert device_fault(raised.value) == LOST
