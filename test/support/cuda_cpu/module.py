"""Build kernel sources for the CPU and launch them as the GPU path does."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import subprocess
import tempfile
from pathlib import Path

import torch

from driveRT_ros.core.kernel_args import argument_array, check_size, pack_arguments
from driveRT_ros.core.nvrtc import cache_folder
from driveRT_ros.core.paths import share_path

HERE = Path(__file__).parent
FLAGS = (
    *("-std=gnu++17", "-O2", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing"),
    *("-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-fno-gnu-unique"),
    "-fno-threadsafe-statics",
    # Kernels are written for another compiler: only what is surely wrong stops the build.
    *("-Wall", "-Wno-unknown-pragmas", "-Wno-unused-function", "-Wno-sign-compare"),
    *("-Wno-parentheses", "-Wno-unused-variable", "-Wno-attributes"),
)
SANITIZE = (
    *("-O1", "-g1", "-fsanitize=address,alignment,bounds,shift", "-fno-sanitize-recover=all"),
    # A local that is read before it is written is not zero.
    *("-fno-omit-frame-pointer", "-ftrivial-auto-var-init=pattern"),
)
_SHARED = re.compile(r"(?<!extern )__shared__\s+([\w:<>]+)\s+([^;]+);")
_KERNEL = re.compile(
    r'extern "C"\s+__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\s*\('
)


class ShimError(AssertionError):
    """A kernel did what no kernel may: the message says which thread and where."""


def sanitized() -> bool:
    """Tell whether this process runs under AddressSanitizer, so that modules are built with it."""
    return "libasan" in os.environ.get("LD_PRELOAD", "")


def build(stem, defines=None, folder=None):
    """Compile ``<folder>/<stem>.cu`` to a shared library, once, and return its path.

    The key of the cache covers the source, the headers, the shim, the flags, the compiler and the
    processor. Processes that build the same at the same time end with one whole file.

    Args:
        stem: Source file without its suffix.
        defines: Compile-time constants.
        folder: Where the source and its headers lie; the kernels of the package by default.
    """
    kernels = share_path("kernels")
    folder = Path(folder or kernels)
    files = (*kernels.glob("*.cuh"), *folder.glob("*.cuh"), folder / f"{stem}.cu")
    sources = {file.name: file.read_text() for file in files}
    names = _KERNEL.findall(sources[f"{stem}.cu"])
    flags = [*FLAGS, *(SANITIZE if sanitized() else ())]
    flags += [f"-D{k}={v}" for k, v in sorted((defines or {}).items())]
    shim = [file.read_text() for file in (Path(__file__), *sorted(HERE.glob("*.h")))]
    key = (sorted(sources.items()), shim, flags, _compiler(), _processor())
    digest = hashlib.sha256(repr(key).encode())
    library = cache_folder("cuda_cpu") / f"{stem}-{digest.hexdigest()[:24]}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as work:
        for name, text in sources.items():
            (Path(work) / name).write_text(f'#line 1 "{name}"\n' + _translate(text))
        wrapper, made = Path(work) / "wrapper.cpp", Path(work) / "made.so"
        wrapper.write_text(_wrapper(stem, names))
        command = ["g++", *flags, f"-I{HERE}", str(wrapper), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ShimError(f"{stem}.cu does not compile for the CPU:\n{done.stderr[-6000:]}")
        os.replace(made, library)
    return library


class CpuModule:
    """The kernels of one source, on the CPU; takes what ``core.cuda`` takes.

    Args:
        stem: Source file without its suffix.
        defines: Compile-time constants.
        folder: Where the source lies; the kernels of the package by default.
    """

    def __init__(self, stem, defines=None, folder=None):
        self.stem = stem
        self._library = _load(build(stem, defines, folder))

    def launch(self, name, grid, block, *args, shared=0, seed=0, resident=1):
        """Run a kernel to its end.

        Args:
            name: The kernel.
            grid: Blocks along x, y, z.
            block: Threads along x, y, z.
            args: CPU tensors, None, integers, floats or ctypes values.
            shared: Bytes of dynamic shared memory.
            seed: Chooses the order in which threads run.
            resident: Blocks that run mixed; with 1 they run one after the other.

        Raises:
            ShimError: If the kernel breaks a rule that the shim can see.
        """
        grid = check_size("grid", name, grid, (2**31 - 1, 65535, 65535))
        block = check_size("block", name, block, (1024, 1024, 64))
        if not 0 < block[0] * block[1] * block[2] <= 1024:
            raise ShimError(f"'{name}' cannot run with a block of {block} threads")
        values = pack_arguments(name, args, torch.device("cpu"), self._parameter_sizes(name))
        error = ctypes.create_string_buffer(2000)
        failed = self._library.shim_launch(
            name.encode(),
            (ctypes.c_uint * 3)(*grid),
            (ctypes.c_uint * 3)(*block),
            ctypes.c_uint(shared),
            ctypes.c_ulonglong(seed),
            ctypes.c_uint(resident),
            argument_array(values),
            error,
            len(error),
        )
        if failed:
            raise ShimError(f"{self.stem}.cu '{name}' on {grid} x {block}: {error.value.decode()}")

    def _parameter_sizes(self, name):
        sizes = (ctypes.c_int * 64)()
        count = self._library.shim_parameter_sizes(name.encode(), sizes, len(sizes))
        if count < 0:
            raise ShimError(f"{self.stem}.cu has no kernel '{name}'")
        return list(sizes[:count])


def _translate(text):
    """Give shared variables a place in the memory of their block; the lines stay where they are.

    A section attribute would need no translation, but g++ ignores it inside templates.
    """

    def declare(found):
        parts = (part.strip() for part in found[2].split(","))
        names = (re.fullmatch(r"(\w+)\s*((?:\[.*\])?)", part) for part in parts)
        return " ".join(f"SHIM_SHARED({found[1]}, {n[1]}, {n[2]})" for n in names)

    return _SHARED.sub(declare, text)


def _wrapper(stem, names):
    """Return the file that is compiled: the shim, the kernels in a namespace, the table of them."""
    table = ", ".join(f'shim::kernel("{name}", {name})' for name in names)
    return f'#include "shim.h"\nnamespace {{\n#include "{stem}.cu"\n}}\nSHIM_KERNELS({table})\n'


@functools.cache
def _load(library):
    return ctypes.CDLL(str(library))


@functools.cache
def _compiler():
    return subprocess.run(["g++", "--version"], capture_output=True, text=True).stdout


@functools.cache
def _processor():
    """Return what decides the code that -march=native makes."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return line
    return ""
