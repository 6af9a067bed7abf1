"""NanoVDB's own CUDA operators, from its public headers, as a peer of the operators on grids.

The headers are no part of this project: ``--openvdb NAME=FOLDER`` names a folder that holds
``nanovdb/NanoVDB.h``, such as ``nanovdb`` of an OpenVDB checkout, and ``nvcc`` compiles
``peers/openvdb_nanovdb.cu`` against it; FOLDER may also be the library (``.so``) that came of it.
The peer works on the very bytes that ours work on, in the same process; its times are those of a
C++ caller.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import torch

from driveRT_ros.bench.grid import CHECKSUM, EXTREMES, INDEX, STATS, GridBench
from driveRT_ros.core.errors import ConfigError

SOURCE = Path(__file__).with_name("peers") / "openvdb_nanovdb.cu"
ALLOCATING = "index to grid, allocating"
FLAGS = (
    "-shared",
    "-std=c++17",
    "-O3",
    "--extended-lambda",
    "-lineinfo",
    "-diag-suppress=20050,20054",
)
# What a compiler shares between libraries, headers of two versions must not.
HOST_FLAGS = ("-fPIC", "-fno-gnu-unique", "-fvisibility=hidden")
_TOLERANCE = 1e-5  # of means and deviations, which are floats in nodes and sums of another order


class OpenVdb:
    """The operators of one version.

    Args:
        name: What the table calls it.
        library: Compiled from ``SOURCE``.
    """

    def __init__(self, name: str, library: Path) -> None:
        self.name = name
        self._library = ctypes.CDLL(str(library), mode=os.RTLD_LOCAL | os.RTLD_NOW)
        self._library.peer_error.restype = ctypes.c_char_p

    def operators(self, bench: GridBench) -> dict[str, tuple[Callable[[int], list[float]], str]]:
        """Return each operator, or what is wrong with its result on a grid.

        Returns:
            Name to a function of a number of rounds that returns the microseconds of each, and "",
            or else a sentence.
        """
        index, values, out = bench.index, bench.values, torch.zeros_like(bench.grid)
        written = bench.grid.clone()
        pair = (ctypes.c_uint32 * 2)()
        size = ctypes.c_uint64(len(out))
        calls: dict[str, Callable[[int], list[float]]] = {
            CHECKSUM: lambda n: self._call("peer_checksum", n, bench.grid, pair),
            STATS: lambda n: self._call("peer_statistics", n, written, ctypes.c_int(1)),
            EXTREMES: lambda n: self._call("peer_statistics", n, written, ctypes.c_int(0)),
            INDEX: lambda n: self._call("peer_index_to_grid", n, index, values, out, size),
            ALLOCATING: lambda n: self._call("peer_index_to_grid_allocating", n, index, values),
        }
        checks: dict[str, Callable[[], str]] = {
            CHECKSUM: lambda: self._wrong_checksum(bench, pair),
            STATS: lambda: wrong_statistics(bench, written, moments=True),
            EXTREMES: lambda: wrong_statistics(bench, written, moments=False),
            INDEX: lambda: wrong_nodes(bench, out),
            ALLOCATING: lambda: "",  # freed by the call; INDEX compares the same operator
        }
        return {name: (call, self._verdict(call, checks[name])) for name, call in calls.items()}

    def keep_memory(self, keep: bool) -> None:
        """Keep memory that calls free for the next, or give it back to the device."""
        if self._library.peer_keep_memory(ctypes.c_int(keep)):
            raise ConfigError(f"peer_keep_memory failed: {self._library.peer_error().decode()}.")

    def _verdict(self, call: Callable[[int], list[float]], check: Callable[[], str]) -> str:
        try:
            self.keep_memory(True)
            call(1)
        except ConfigError as error:
            return str(error)
        return check()

    def _call(self, name: str, rounds: int, *args: object) -> list[float]:
        times = (ctypes.c_double * rounds)()
        given = [ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor) else a for a in args]
        torch.cuda.synchronize()
        if getattr(self._library, name)(*given, ctypes.c_int(rounds), times):
            raise ConfigError(f"{name} failed: {self._library.peer_error().decode()}.")
        return list(times)

    @staticmethod
    def _wrong_checksum(bench: GridBench, pair: ctypes.Array[ctypes.c_uint32]) -> str:
        ours = bench.checksum()
        return "" if tuple(pair) == ours else f"checksum {tuple(pair)}, ours {ours}"


def wrong_nodes(bench: GridBench, out: torch.Tensor) -> str:
    """Compare every byte of every node; the head differs, where sizes and flags are kept."""
    begin = bench.header.node_offsets[2]
    different = int((out[begin:] != bench.grid[begin:]).sum())
    return f"{different} bytes of nodes differ from ours" if different else ""


def wrong_statistics(bench: GridBench, written: torch.Tensor, *, moments: bool) -> str:
    """Compare the extremes of all nodes bit by bit, means and deviations within a tolerance."""
    ours = bench.with_statistics(moments=moments)
    header = bench.header
    for level, (begin, count, node) in enumerate(
        zip(header.node_offsets, header.node_counts, header.layout.nodes)
    ):
        at = node.fields["minimum"][1]
        rows = slice(begin, begin + count * node.itemsize)
        a, b = (
            grid[rows].view(count, node.itemsize)[:, at : at + 16].contiguous().view(torch.float32)
            for grid in (written, ours)
        )
        if not torch.equal(a[:, :2], b[:, :2]):
            return f"extremes of nodes of level {level} differ from ours"
        if moments and not torch.allclose(a[:, 2:], b[:, 2:], rtol=_TOLERANCE, atol=_TOLERANCE):
            off = float((a[:, 2:] - b[:, 2:]).abs().max())
            return f"means or deviations of nodes of level {level} differ from ours by {off:.1e}"
    return ""


def build(name: str, headers: Path, folder: Path) -> OpenVdb:
    """Compile the peer against the headers in a folder, or take the library compiled before.

    Raises:
        ConfigError: If there are no headers, no nvcc, or nvcc fails.
    """
    if headers.suffix == ".so":
        return OpenVdb(name, headers.resolve())
    if not (headers / "nanovdb" / "NanoVDB.h").is_file():
        raise ConfigError(f"'{headers}' holds no nanovdb/NanoVDB.h; name the folder above it.")
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        raise ConfigError("nvcc is not on the PATH; --openvdb needs it.")
    major, minor = torch.cuda.get_device_capability()
    library = folder / f"{name}.so"
    host = [f"-Xcompiler={flag}" for flag in HOST_FLAGS]
    command = [nvcc, *FLAGS, *host, "-Xlinker=-Bsymbolic", f"-arch=sm_{major}{minor}"]
    command += ["-I", str(headers), str(SOURCE), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"nvcc fails on the headers of '{name}':\n{done.stderr[-3000:]}")
    return OpenVdb(name, library)


def parse(text: str) -> tuple[str, Path]:
    """Return name and folder of ``NAME=FOLDER``.

    Raises:
        ValueError: If it is something else.
    """
    name, _, folder = text.partition("=")
    if not folder or not name.replace("-", "_").isidentifier():
        raise ValueError(f"'{text}' is not NAME=FOLDER")
    return name, Path(folder)
