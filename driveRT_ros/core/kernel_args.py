"""Arguments and structs as kernels read them, laid out from the kernel sources themselves."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.nvrtc import read_source

KernelValue = ctypes._SimpleCData | ctypes.Array


def check_size(
    what: str, kernel: str, value: int | Sequence[int], limits: Sequence[int]
) -> tuple[int, int, int]:
    """Return a grid or block as three sizes after checking each against its limit.

    Raises:
        ConfigError: If there are not one to three integers between 0 and their limits.
    """
    given = (value,) if isinstance(value, int) else tuple(value)
    sizes = (given + (1, 1))[:3] if 1 <= len(given) <= 3 else ()
    if not sizes or not all(0 <= s <= limit for s, limit in zip(sizes, limits)):
        raise ConfigError(
            f"The {what} of the kernel '{kernel}' must be one to three integers from 0 to "
            f"{tuple(limits)}, got {value!r}."
        )
    return sizes[0], sizes[1], sizes[2]


def pack_arguments(
    kernel: str,
    args: Sequence[object],
    device: torch.device,
    sizes: Sequence[int] | None = None,
) -> list[KernelValue]:
    """Convert arguments to the values that the driver copies.

    Args:
        kernel: Name of the kernel, for errors.
        args: What :class:`Launch` takes.
        device: Where every tensor must lie.
        sizes: Bytes of each parameter of the kernel, where known.

    Raises:
        ConfigError: If an argument has another type, range, layout or device, or the sizes differ.
    """
    values = [_pack(kernel, i, arg, device) for i, arg in enumerate(args)]
    packed = [ctypes.sizeof(v) for v in values]
    if sizes is not None and packed != list(sizes):
        raise ConfigError(
            f"The kernel '{kernel}' takes {len(sizes)} arguments of {list(sizes)} bytes, "
            f"got {len(packed)} of {packed}."
        )
    return values


def _pack(kernel: str, i: int, arg: object, device: torch.device) -> KernelValue:
    where = f"Argument {i} of the kernel '{kernel}'"
    if arg is None:
        return ctypes.c_void_p(None)
    if isinstance(arg, torch.Tensor):
        if arg.device != device or not arg.is_contiguous():
            raise ConfigError(
                f"{where} must be a contiguous tensor on {device}, got strides {arg.stride()} on "
                f"{arg.device}; call .contiguous() or .to()."
            )
        return ctypes.c_void_p(arg.data_ptr())
    if isinstance(arg, (ctypes._SimpleCData, ctypes.Array)):  # read anew by every launch
        return arg
    if isinstance(arg, (np.void, np.ndarray)) and arg.dtype.names:  # structs, passed by value
        return (ctypes.c_char * arg.nbytes).from_buffer_copy(arg.tobytes())
    if isinstance(arg, (int, np.integer)) and not isinstance(arg, bool):
        if not -(2**31) <= arg < 2**31:
            raise ConfigError(f"{where} is {arg}, which does not fit 32 bits.")
        return ctypes.c_int(int(arg))
    if isinstance(arg, (float, np.floating)):
        return ctypes.c_float(float(arg))
    raise ConfigError(
        f"{where} is a {type(arg).__name__}; pass a tensor, None, an integer, a float, a "
        "struct or a ctypes value."
    )


def argument_array(values: Sequence[KernelValue]) -> ctypes.Array:
    """Return the array of addresses that a launch reads its arguments through."""
    return (ctypes.c_void_p * len(values))(*[ctypes.addressof(v) for v in values])


# ---- structs ------------------------------------------------------------------------------------

_SCALARS = {"int": "i4", "u32": "u4", "float": "f4", "double": "f8", "u64": "u8"}


@functools.cache
def struct_dtype(file: str, name: str) -> np.dtype:
    """Read the layout of a struct from the kernel source that declares it.

    Args:
        file: File name in ``kernels/``, as ``levels.cuh``.
        name: The struct; its fields are integers, floats, pointers and arrays of them.

    Raises:
        ConfigError: If it is not there or holds something else.
    """
    text = re.sub(r"//[^\n]*", "", read_source(file).decode())
    found = re.search(rf"\bstruct\s+{re.escape(name)}\s*\{{(.*?)\}}\s*;", text, re.DOTALL)
    if not found:
        raise ConfigError(f"kernels/{file} declares no struct '{name}'.")
    fields: list[tuple] = []
    for declaration in filter(None, (d.strip() for d in found[1].split(";"))):
        parts = re.fullmatch(r"(?:const\s+)?(?!const\b)(\w+)\s*(.+)", declaration, re.DOTALL)
        kind, names = (parts[1], parts[2]) if parts else ("", "")
        for part in names.split(","):
            field = re.fullmatch(r"\s*(\*?)\s*(\w+)\s*(?:\[(\d+)\])?\s*", part)
            if not field or not (field[1] or kind in _SCALARS):
                raise ConfigError(f"Field '{declaration}' of kernels/{file} {name} is not plain.")
            code = "u8" if field[1] else _SCALARS[kind]
            fields.append((field[2], code, (int(field[3]),)) if field[3] else (field[2], code))
    return np.dtype(fields, align=True)


def struct_value(file: str, name: str, fields: Mapping[str, object]) -> np.void:
    """Lay one struct out as kernels read it, to be passed by value.

    Args:
        file: File name in ``kernels/`` that declares the struct.
        name: The struct.
        fields: Every field, by name; a contiguous tensor stands for its address, a list of tensors
            for an array of addresses, and the caller keeps them alive.

    Raises:
        ConfigError: If a field is missing, unknown, out of range or not contiguous.
    """
    dtype = struct_dtype(file, name)
    if set(fields) != set(dtype.names or ()):
        odd = sorted(set(fields) ^ set(dtype.names or ()))
        raise ConfigError(f"Fields {odd} of struct '{name}' are missing or unknown.")
    packed = np.zeros(1, dtype)
    for key, value in fields.items():
        try:
            packed[key][0] = (
                [_plain(v) for v in value] if isinstance(value, list) else _plain(value)
            )
        except (OverflowError, TypeError, ValueError) as error:
            what = repr(value)
            if isinstance(value, torch.Tensor):
                what = f"a tensor of strides {value.stride()}; call .contiguous()"
            raise ConfigError(f"Field '{key}' of struct '{name}' cannot be {what}.") from error
    return packed[0]


def _plain(value: object) -> object:
    if isinstance(value, torch.Tensor):
        if not value.is_contiguous():
            raise ValueError("a tensor that is not contiguous")
        return value.data_ptr()
    return 0 if value is None else value


def struct_values(
    file: str, name: str, rows: Sequence[Mapping[str, object]], length: int = 0
) -> np.ndarray:
    """Lay several structs out as kernels read an array of them; see :func:`struct_value`.

    Args:
        file: File name in ``kernels/`` that declares the struct.
        name: The struct.
        rows: The fields of each.
        length: Of the array, where it is longer; the rest is zero.
    """
    packed = np.zeros(max(len(rows), length), struct_dtype(file, name))
    for i, row in enumerate(rows):
        packed[i] = struct_value(file, name, row)
    return packed


def pack_structs(
    file: str, name: str, rows: Sequence[Mapping[str, object]], device: torch.device | str
) -> torch.Tensor:
    """Lay an array of structs out in device memory; see :func:`struct_values`.

    Returns:
        (bytes,) uint8.
    """
    packed = struct_values(file, name, rows).view(np.uint8)
    return torch.from_numpy(packed.copy()).to(device)
