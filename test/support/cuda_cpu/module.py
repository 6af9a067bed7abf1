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
RACES = ("-O1", "-g1", "-fno-omit-frame-pointer", "-c")
"""Flags of a module whose every load and store is looked at (races.cpp)."""
WATCH = ("-fsanitize=thread", "--param=tsan-distinguish-volatile=1")
WATCH += ("--param=tsan-instrument-func-entry-exit=0",)
_SHARED = re.compile(r"(?<!extern )__shared__\s+([\w:<>]+)\s+([^;]+);")
_CODE = re.compile(r"\{code (\w+)\}")
_KERNEL = re.compile(
    r'extern "C"\s+__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\s*\('
)


class ShimError(AssertionError):
    """A kernel did what no kernel may: the message says which thread and where."""


def sanitized() -> bool:
    """Tell whether this process runs under AddressSanitizer, so that modules are built with it."""
    return "libasan" in os.environ.get("LD_PRELOAD", "")


def watched() -> int:
    """Return how closely this process looks for data races: ``DRIVERT_RACES`` is 0, 1 or 2.

    With 1 any warp operation orders its lanes, with 2 ``__syncwarp`` alone.
    """
    return 0 if sanitized() else int(os.environ.get("DRIVERT_RACES") or 0)


def build(stem, defines=None, folder=None, races=None):
    """Compile ``<folder>/<stem>.cu`` to a shared library, once, and return its path.

    The key of the cache covers the source, the headers, the shim, the flags, the compiler and the
    processor. Processes that build the same at the same time end with one whole file.

    Args:
        stem: Source file without its suffix.
        defines: Compile-time constants.
        folder: Where the source and its headers lie; the kernels of the package by default.
        races: How closely to look for data races; by default as the environment says.
    """
    races = watched() if races is None else races
    kernels = share_path("kernels")
    folder = Path(folder or kernels)
    files = (*kernels.glob("*.cuh"), *folder.glob("*.cuh"), folder / f"{stem}.cu")
    sources = {file.name: file.read_text() for file in files}
    names = _KERNEL.findall(sources[f"{stem}.cu"])
    flags = [*FLAGS, *(_race_flags(races) if races else SANITIZE if sanitized() else ())]
    flags += [f"-D{k}={v}" for k, v in sorted((defines or {}).items())]
    shim = [file.read_text() for file in (Path(__file__), *sorted(HERE.glob("*.[hc]*")))]
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
        if races:
            _compile(stem, *flags, *WATCH, str(wrapper), "-o", str(made.with_suffix(".o")))
            parts = (made.with_suffix(".o"), _detector(races))
            _compile(stem, *FLAGS, *map(str, parts), "-o", str(made))
        else:
            _compile(stem, *flags, str(wrapper), "-o", str(made))
        os.replace(made, library)
    return library


def _compile(stem, *arguments):
    done = subprocess.run(["g++", f"-I{HERE}", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise ShimError(f"{stem}.cu does not compile for the CPU:\n{done.stderr[-6000:]}")


def _race_flags(races):
    return (*RACES, f"-DSHIM_RACES={int(races)}")


@functools.cache
def _detector(races):
    """Return the compiled race detector, which no hook of its own calls."""
    sources = [(HERE / name).read_text() for name in ("races.h", "races.cpp", "module.py")]
    key = (sources, int(races), _compiler(), _processor())
    digest = hashlib.sha256(repr(key).encode()).hexdigest()
    made = cache_folder("cuda_cpu") / f"races-{digest[:24]}.o"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as work:
            new = Path(work) / made.name
            flags = [flag for flag in FLAGS if flag != "-shared"]
            _compile(
                "races", *flags, *_race_flags(races), "-O2", str(HERE / "races.cpp"), "-o", str(new)
            )
            os.replace(new, made)
    return made


class CpuModule:
    """The kernels of one source, on the CPU; takes what ``core.cuda`` takes.

    Args:
        stem: Source file without its suffix.
        defines: Compile-time constants.
        folder: Where the source lies; the kernels of the package by default.
        races: How closely to look for data races; by default as the environment says.
    """

    def __init__(self, stem, defines=None, folder=None, races=None):
        self.stem = stem
        self._path = build(stem, defines, folder, races)
        self._library = _load(self._path)

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
        error = ctypes.create_string_buffer(4000)
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
            text = _CODE.sub(self._line, error.value.decode())
            raise ShimError(f"{self.stem}.cu '{name}' on {grid} x {block}: {text}")

    def _line(self, found):
        """Return the line of a kernel source in which an instruction was written."""
        command = ["addr2line", "-i", "-e", str(self._path), f"0x{found[1]}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        lines = [line.split(" ")[0].rsplit("/")[-1] for line in done.stdout.splitlines()]
        return next((line for line in lines if ".cu" in line), lines[-1])

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
