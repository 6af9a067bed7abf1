"""What each kernel may use: registers, shared memory, spills. Run to measure it anew::

python -m test.kernels.budgets
"""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor

from driveRT_ros.core.nvrtc import compile_cubin, nvrtc_version
from driveRT_ros.core.paths import share_path
from test.support.launch import SPARSE_CONV

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")
COLUMNS = ("registers", "shared bytes", "spilled bytes")

CONFIGURATIONS: list[tuple[str, dict[str, object]]] = [
    *((stem, {}) for stem in ("levels", "voxelize", "coordmap", "bev_merge", "epilogue")),
    ("input_conv", {"IN": 5, "OUT": 16}),
    *(("sparse_conv", config.defines) for config in SPARSE_CONV),
]
"""Every source with every set of compile-time constants that ships or is searched."""


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
    """Compile everything for every architecture; return {configuration: kernel: {arch: use}}."""
    jobs = [(stem, defines, arch) for stem, defines in CONFIGURATIONS for arch in ARCHITECTURES]
    with ThreadPoolExecutor(2) as threads:
        logs = threads.map(lambda job: compile_cubin(job[0], job[2], job[1])[1], jobs)
        used: dict[str, dict[str, list[int]]] = {}
        for (stem, defines, arch), log in zip(jobs, logs):
            for kernel, use in read_log(log).items():
                used.setdefault(f"{label(stem, defines)}: {kernel}", {})[arch] = use
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
    sys.stdout.write(f"{len(used)} kernels x {len(ARCHITECTURES)} architectures\n")


if __name__ == "__main__":
    write()
