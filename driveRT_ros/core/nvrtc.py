"""Compile kernels with NVRTC and keep the results on disk; needs no GPU and no driver."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

from driveRT_ros.core.errors import ConfigError, DeviceError
from driveRT_ros.core.paths import share_path

Compiled = tuple[bytes, str]
"""The cubin, and the log with the registers, shared memory and spills of each kernel."""

_OPTIONS = ("--std=c++17", "--ptxas-options=-v", "--generate-line-info")


def compile_cubin(stem: str, arch: str, defines: Mapping[str, object] | None = None) -> Compiled:
    """Compile ``kernels/<stem>.cu``, or take it from the cache.

    The cache key covers the source, every header, the architecture, the defines, the options and
    the version of NVRTC; it lies in ``$XDG_CACHE_HOME/driveRT_ros/cubins``. A damaged entry is
    compiled again, and a folder that cannot be written costs time only. Threads may compile at the
    same time.

    Args:
        stem: Source file without its suffix.
        arch: Architecture, as ``sm_90``.
        defines: Compile-time constants.

    Raises:
        ConfigError: If there is no such source.
        DeviceError: If NVRTC is missing, or refuses the source; the message holds its log.
    """
    sources = {f"{stem}.cu": read_source(f"{stem}.cu")}
    for header in sorted(share_path("kernels").glob("*.cuh")):
        sources[header.name] = header.read_bytes()
    options = [f"--gpu-architecture={arch}", *_OPTIONS]
    options += [f"-D{k}={v}" for k, v in sorted((defines or {}).items())]

    entry = _cache_entry(sources, options)
    stored = _read_entry(entry)
    if stored is None:
        stored = _compile(stem, arch, sources, options)
        _write_entry(entry, stored)
    return stored


def read_source(file: str) -> bytes:
    """Return the text of a file in ``kernels/``.

    Raises:
        ConfigError: If there is none.
    """
    try:
        return (share_path("kernels") / file).read_bytes()
    except OSError as error:
        raise ConfigError(f"Kernel source '{file}' cannot be read: {error}.") from error


def cache_folder(name: str) -> Path:
    """Return the folder ``name`` of this user's cache of driveRT_ros."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "driveRT_ros" / name


@functools.cache
def nvrtc_version() -> tuple[int, int]:
    """Return (major, minor) of the NVRTC in use."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


# ---- library ------------------------------------------------------------------------------------


def _major(path: Path) -> int:
    found = re.search(r"\.so\.(\d+)", path.name)
    return int(found[1]) if found else 0


def _candidates() -> list[Path]:
    """Return the NVRTC libraries of pip packages, best first.

    A cubin from a newer major version than the driver's may not load, so the version that torch
    was built with comes first.
    """
    found = []
    for root in map(Path, sys.path):
        found += list(root.glob("nvidia/*/lib/libnvrtc.so*"))
    wanted = int((torch.version.cuda or "0").split(".")[0])
    return sorted(
        (path for path in found if ".alt." not in path.name),
        key=lambda path: (_major(path) == wanted, _major(path)),
        reverse=True,
    )


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    failures = []
    for path in _candidates():
        try:
            # NVRTC opens its builtins by name; loaded before, they are found in a pip package too.
            for builtins in path.parent.glob("libnvrtc-builtins.so*"):
                ctypes.CDLL(str(builtins))
            return ctypes.CDLL(str(path))
        except OSError as error:
            failures.append(str(error))
    for name in filter(None, (ctypes.util.find_library("nvrtc"), "libnvrtc.so")):
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            failures.append(str(error))
    raise DeviceError(
        "NVRTC, the CUDA run-time compiler, was not found; install it with "
        f"'pip install nvidia-cuda-nvrtc' ({'; '.join(failures)})."
    )


def _compile(
    stem: str, arch: str, sources: Mapping[str, bytes], options: list[str]
) -> tuple[bytes, str]:
    lib = _nvrtc()
    program = ctypes.c_void_p()
    main = f"{stem}.cu"
    names = [name for name in sources if name != main]
    headers = (ctypes.c_char_p * len(names))(*[sources[name] for name in names])
    includes = (ctypes.c_char_p * len(names))(*[name.encode() for name in names])
    lib.nvrtcCreateProgram(
        ctypes.byref(program), sources[main], main.encode(), len(names), headers, includes
    )
    try:
        flags = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
        failed = lib.nvrtcCompileProgram(program, len(options), flags)
        log = _output(program, lib.nvrtcGetProgramLogSize, lib.nvrtcGetProgramLog)
        lines = log.rstrip(b"\0").decode(errors="replace").splitlines()
        # Times differ from run to run; the rest of the log is a function of the source.
        text = "\n".join(line for line in lines if "Compile time" not in line)
        if failed:
            chosen = " ".join(o for o in options if o.startswith("-D"))
            raise DeviceError(f"{main} does not compile for {arch} with '{chosen}':\n{text}")
        return _output(program, lib.nvrtcGetCUBINSize, lib.nvrtcGetCUBIN), text
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))


def _output(program: ctypes.c_void_p, get_size, get) -> bytes:  # type: ignore[no-untyped-def]
    size = ctypes.c_size_t()
    get_size(program, ctypes.byref(size))
    data = ctypes.create_string_buffer(max(size.value, 1))
    get(program, data)
    return data.raw[: size.value]


# ---- cache on disk ------------------------------------------------------------------------------


def _cache_entry(sources: Mapping[str, bytes], options: list[str]) -> Path:
    digest = hashlib.sha256(repr((nvrtc_version(), options)).encode())
    for name, text in sources.items():
        digest.update(b"\0%s\0%d\0" % (name.encode(), len(text)))
        digest.update(text)
    return cache_folder("cubins") / f"{digest.hexdigest()}.cubin"


def _read_entry(entry: Path) -> Compiled | None:
    """Return a stored result, or None where there is none or it is damaged."""
    try:
        data = entry.read_bytes()
    except OSError:
        return None
    digest, payload = data[:32], data[32:]
    if hashlib.sha256(payload).digest() != digest:
        return None
    length = int.from_bytes(payload[:8], "little")
    return payload[8 + length :], payload[8 : 8 + length].decode()


def _write_entry(entry: Path, compiled: Compiled) -> None:
    cubin, log = compiled[0], compiled[1].encode()
    payload = len(log).to_bytes(8, "little") + log + cubin
    part = None
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=entry.parent, delete=False) as file:
            part = Path(file.name)
            file.write(hashlib.sha256(payload).digest() + payload)
        os.replace(part, entry)  # readers see the whole entry or none
    except OSError:  # a read-only or full disk: the result is in memory all the same
        if part is not None:
            part.unlink(missing_ok=True)  # a full one would only become fuller
