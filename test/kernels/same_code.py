"""Which kernels compile to other machine code than those of a commit. For changes that mean none::

python -m test.kernels.same_code HEAD

Line numbers aside, cubins are compared byte by byte, for every configuration of the budgets whose
source is another. Each is compiled in a process of its own: what NVRTC compiled before may change
the order of instructions.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import multiprocessing
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from driveRT_ros.core import nvrtc
from driveRT_ros.core.paths import share_path
from test.kernels.budgets import configurations, label


def sources_of(folder: Path, file: str) -> dict[str, bytes]:
    """Return a source and all that it includes, by name."""
    found, ahead = {}, [file]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found[name] = (folder / name).read_bytes()
            ahead += re.findall(r'^#include "([^"]+)"', found[name].decode(), re.MULTILINE)
    return found


def machine_code(job) -> str:
    """Return the hash of a cubin without line numbers.

    Args:
        job: Sources by name, stem, architecture, constants.
    """
    sources, stem, arch, defines = job
    options = [f"--gpu-architecture={arch}", "--std=c++17"]
    options += [f"-D{k}={v}" for k, v in sorted(defines.items())]
    return hashlib.sha256(nvrtc._compile(stem, arch, sources, options)[0]).hexdigest()


def compared(before: Path, after: Path, each=map, chosen=None):
    """Yield label, architecture and whether the code is the same, of what has another source.

    Args:
        before: Folder of kernels.
        after: Folder of kernels.
        each: Applies a function to every job, in order.
        chosen: (source, constants, architectures) of each configuration; by default all.
    """
    names, jobs = [], []
    for stem, defines, architectures in configurations() if chosen is None else chosen:
        if not (before / f"{stem}.cu").exists():
            continue
        texts = [sources_of(folder, f"{stem}.cu") for folder in (before, after)]
        if texts[0] == texts[1]:
            continue
        for arch in architectures:
            names.append((label(stem, defines), arch))
            jobs += [(text, stem, arch, defines) for text in texts]
    codes = iter(each(machine_code, jobs))
    for name, old, new in zip(names, codes, codes):
        yield *name, old == new


def main() -> int:
    """Compare the kernels here with those of a commit; return 1 where some code changed."""
    parser = argparse.ArgumentParser(description=__doc__.split("::")[0])
    parser.add_argument("commit", help="as git names it")
    commit, after = parser.parse_args().commit, share_path("kernels")
    archive = subprocess.run(
        ["git", "archive", commit, "kernels"], cwd=after.parent, check=True, capture_output=True
    )
    count = changed = 0
    processes = multiprocessing.get_context("fork").Pool(os.cpu_count(), maxtasksperchild=1)
    with processes as pool, tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as kernels:
            kernels.extractall(folder)
        for name, arch, same in compared(Path(folder) / "kernels", after, pool.imap):
            count += 1
            if not same:
                changed += 1
                sys.stdout.write(f"{arch}: {name}\n")
    sys.stdout.write(f"{changed} of {count} configurations with another source have other code\n")
    return int(changed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
