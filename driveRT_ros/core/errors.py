"""The exceptions that driveRT_ros raises on purpose."""

from __future__ import annotations


class DriveRTError(Exception):
    """Base of every error below, so that a caller can catch them in one clause."""


class ConfigError(DriveRTError):
    """A parameter, file or option has an unknown name or a value that cannot be used."""


class InvalidFrame(DriveRTError):  # noqa: N818 - a frame is invalid; the name is public API
    """One input frame cannot be used; the frame is dropped and the node lives.

    Args:
        reason: Sentence that names the fault and what to do about it.
        field: Name of the message field at fault, such as ``row_step``.
        got: The offending value.
        expected: What would have been accepted.
        code: Short stable key used to count drops by reason; defaults to ``field``.
    """

    def __init__(
        self,
        reason: str,
        field: str = "",
        got: object = None,
        expected: object = None,
        *,
        code: str = "",
    ) -> None:
        self.reason = reason
        self.field = field
        self.got = got
        self.expected = expected
        self.code = code or field or "invalid"
        detail = f" (field {field}: got {got!r}, expected {expected!r})" if field else ""
        super().__init__(reason + detail)


class PlanMismatch(DriveRTError):  # noqa: N818 - public API
    """A recorded Plan does not belong to this GPU, network or set of weights."""


class CheckpointError(DriveRTError):
    """A checkpoint misses keys, has extra keys, or holds tensors of the wrong shape."""


class DeviceError(DriveRTError):
    """The GPU, its driver or its compiler is missing, or refuses a kernel.

    Args:
        sentence: What happened and what to do.
        cuda_code: Number of the CUDA error; None where CUDA reported none.
    """

    def __init__(self, sentence: str, cuda_code: int | None = None) -> None:
        super().__init__(sentence)
        self.cuda_code = cuda_code
