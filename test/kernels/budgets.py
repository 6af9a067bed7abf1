"""What each kernel may use: registers, shared memory, spills. Run to measure it anew::

python -m test.kernels.budgets
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import torch

from driveRT_ros.core.config import ModelConfig
from driveRT_ros.core.gpu.head_tactics import EXACT, MATRIX
from driveRT_ros.core.nvrtc import compile_cubin, nvrtc_version
from driveRT_ros.core.paths import share_path
from driveRT_ros.core.plan import PRECISIONS, default_plan, domain_layers
from driveRT_ros.core.pool_tactics import PoolShape, PoolTactic, default_tactic
from driveRT_ros.core.sparse_conv_mma import PRECISIONS as ARITHMETICS
from driveRT_ros.core.sparse_conv_mma import MmaTactic
from test.support.launch import SPARSE_CONV

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")
COLUMNS = ("registers", "shared bytes", "spilled bytes")


OLD, NEW = ARCHITECTURES[:1], ARCHITECTURES[1:]


def planned():
    """Return constants and architectures of every convolution of the default Plans.

    Those of the tensor cores are measured on one old and one new architecture, and one of each flow
    and precision on all (``tensor_core``): compiling each for each would take minutes.
    """
    channels = ModelConfig().channels
    layers = domain_layers(channels)
    for precision in PRECISIONS:
        for capability, architectures in (((7, 5), OLD), ((8, 0), NEW), ((9, 0), ("sm_90",))):
            for domain, tactic in default_plan(channels, capability, precision).tactics.items():
                measured = architectures
                if tactic.kind == "tensor_cores":
                    measured = OLD if architectures is OLD else ("sm_90",)
                yield tactic.kernel, tactic.defines(*layers[domain]), measured


def tensor_core():
    """Return one convolution of each flow and precision of the tensor cores."""
    for precision in ARITHMETICS:
        slab = 32 if precision == "F16" else 16
        for width, *shape in (
            (128, 64, slab, 2, 2, 3, 2, precision, "staged"),
            (128, 64, slab, 2, 2, 3, 2, precision, "direct"),
            (32, 16, 32, 4, 1, 3, 2, precision, "resident"),
        ):
            tactic = MmaTactic(3, *shape)
            yield tactic.kernel, tactic.defines(width, width, 27), ARCHITECTURES


def fixed_order():
    """Return half layers that only a search finds, whose tiles come in a fixed order."""
    for width, warps, blocks in ((64, (2, 2), 4), (128, (2, 2), 3), (64, (4, 2), 4)):
        tactic = MmaTactic(3, 64, 64, *warps, 3, blocks, "F16", folded=True)
        yield tactic.kernel, tactic.defines(width, width, 27), ("sm_90",)


def few_rows():
    """Return convolutions that only a search finds, for layers of few rows: extremes."""
    for shape, parts in (
        ((16, 32, 1, 4, 2, 5), 1), ((32, 64, 1, 4, 2, 2), 1),
        ((64, 16, 2, 2, 4, 4), 2), ((32, 32, 1, 2, 3, 6), 2),
    ):  # fmt: skip
        tactic = MmaTactic(9, *shape, "F64", "staged", parts)
        yield tactic.kernel, tactic.defines(128, 128, 27), ("sm_90",)


def pooling():
    """Return the kernels that pool camera features, for the widths that networks have."""
    f32, f16, f8 = torch.float32, torch.float16, torch.float8_e4m3fn
    for kind, features, channels in (
        *(("balanced", f32, 80), ("balanced", f16, 80), ("balanced", f8, 80)),
        *(("tiles", f16, 80), ("tiles", f8, 80), ("tiles", f16, 128), ("tiles", f8, 128)),
        *(("tiles", f16, 256), ("tiles", f8, 256)),
    ):
        other = f32 if features == f32 else f16
        shape = PoolShape(channels, features, other, other, 16 // features.itemsize)
        default = default_tactic(shape, (6, 59, 16, 44))
        tactic = default if kind == default.kind else PoolTactic(kind)
        stem = "bev_pool_tiles" if kind == "tiles" else "bev_pool"
        yield stem, tactic.defines(shape), ARCHITECTURES
        if features == f16 or channels > 80:  # with the softmax of logits inside
            yield stem, tactic.defines(dataclasses.replace(shape, logits=True)), ("sm_75", "sm_90")
    for features, changes in (  # only a search finds them
        (f8, {"warps": 4, "groups": 1, "min_blocks": 2}),
        (f8, {"warps": 4, "groups": 1, "passes": 2, "min_blocks": 2, "whole_sectors": True}),
        (f16, {"warps": 4, "groups": 2, "passes": 2, "min_blocks": 4, "whole_sectors": True}),
    ):
        shape = PoolShape(256, features, f16, f16, 16 // features.itemsize)
        yield "bev_pool_tiles", PoolTactic("tiles", **changes).defines(shape), ("sm_75", "sm_90")
    for depths in (0, 1):
        yield "depth_softmax", {"DEPTHS": depths}, ARCHITECTURES


def heads():
    """Return the kernels of the detection heads: the published width for all architectures."""
    for width, exact in EXACT.items():
        measured = ARCHITECTURES if width == 128 else (*OLD, "sm_90")
        yield exact.kernel, exact.defines(width, width, 1), measured
    for (width, _), matrix in MATRIX.items():
        yield matrix.kernel, matrix.defines(width, width, 1), NEW if width == 128 else ("sm_90",)
    for stem in ("select", "nms"):
        yield stem, {}, ARCHITECTURES


def configurations():
    """Return (source, constants, architectures) of everything that ships."""
    for stem in ("sweeps", "unpack_points", "levels", "voxelize", "coordmap"):
        yield stem, {}, ARCHITECTURES
    for number in ("int", "long long"):
        yield "gather_rows", {"NUMBER": number}, ARCHITECTURES
    for half in (0, 1):
        yield "bev_merge", {"HALF": half}, ARCHITECTURES
        yield "input_conv", {"IN": 5, "OUT": 16, "HALF": half}, ARCHITECTURES
        for groups in (1, 3, 9):
            yield "epilogue", {"GROUPS": groups, "COUT": 128, "HALF": half}, ARCHITECTURES
    for config in SPARSE_CONV:
        yield "sparse_conv", config.defines, ARCHITECTURES
    for stem in (
        "fit_images",
        "scatter_map",
        "grid_ops_checksum",
        "grid_ops_diagonals",
        "grid_ops_stats",
        "grid_ops_index",
    ):
        yield stem, {}, ARCHITECTURES
    yield from heads()
    yield from pooling()
    yield from planned()
    yield from tensor_core()
    yield from few_rows()
    yield from fixed_order()


def label(stem, defines):
    """Name a configuration, as ``sparse_conv(CIN=16 ...)``."""
    chosen = " ".join(f"{k}={v}" for k, v in defines.items())
    return f"{stem}({chosen})" if chosen else stem


def read_log(log):
    """Return {kernel: [registers, shared bytes, spilled bytes]} from the log of ptxas."""
    found = {}
    for part in log.split("Compiling entry function '")[1:]:
        name = part.split("'")[0]
        spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = re.search(r"Used (\d+) registers", part)
        shared = re.search(r"(\d+) bytes smem", part)
        found[name] = [
            int(registers[1]),
            int(shared[1]) if shared else 0,
            int(spills[1]) + int(spills[2]),
        ]
    return found


def measure():
    """Compile everything; return {configuration and kernel: {architecture: use}}."""
    jobs = {}
    for stem, defines, architectures in configurations():
        for arch in architectures:
            jobs[label(stem, defines), arch] = (stem, arch, defines)
    with ThreadPoolExecutor(2) as threads:
        logs = threads.map(lambda job: compile_cubin(*job)[1], jobs.values())
        used: dict[str, dict[str, list[int]]] = {}
        for (name, arch), log in zip(jobs, logs):
            for kernel, use in read_log(log).items():
                used.setdefault(f"{name}: {kernel}", {})[arch] = use
    return used


def recorded():
    """Return what ``kernels/budgets.json`` allows."""
    return json.loads((share_path("kernels") / "budgets.json").read_text())


def write():
    """Measure and write ``kernels/budgets.json``."""
    used = measure()
    kernels = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(used.items()))
    version = ".".join(map(str, nvrtc_version()))
    text = f'{{\n "nvrtc": "{version}",\n "columns": {json.dumps(COLUMNS)},\n'
    text += f' "kernels": {{\n{kernels}\n }}\n}}\n'
    (share_path("kernels") / "budgets.json").write_text(text)
    sys.stdout.write(f"{len(used)} kernels, {sum(map(len, used.values()))} budgets\n")


if __name__ == "__main__":
    write()
