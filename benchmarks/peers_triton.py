"""Time spconv-triton in a process of its own that can be stopped.

Triton tries dozens of variants of every layer and must compile each. So that this fits a benchmark
run, other processes compile the variants side by side first, and the tuner measures each for 25 ms
instead of 125 ms. Results are written as they come: what a time limit cuts off is absent.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from driveRT_ros.bench.contenders import Peer  # noqa: E402
from driveRT_ros.bench.frames import Frame, load_frames, network_tensors, voxels_of  # noqa: E402
from driveRT_ros.bench.networks import Rows, TorchNetwork  # noqa: E402
from driveRT_ros.bench.peers_spconv import SpconvNetwork, spconv_peers  # noqa: E402
from driveRT_ros.core.config import LidarConfig  # noqa: E402

PACKAGE, ALGORITHM = "spconv_triton", "MaskImplicitGemm"
PRECISIONS = ("fp16", "fp32", "tf32")
RUNS = 24


def time_triton(data: Path, frames: list[str], seconds: float) -> dict[str, dict[str, Any]]:
    """Return results by frame and candidate, within a time limit.

    Args:
        data: Folder of the real frames.
        frames: Names; the tuner sees the first.
        seconds: Everything still running after that is stopped.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "triton.json"
        command = [sys.executable, __file__, "--data", data, "--frames", ",".join(frames)]
        reason, log = "", Path(folder) / "log"
        with log.open("w") as file:
            child = subprocess.Popen(
                [*map(str, command), "--output", str(output)],
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                if child.wait(timeout=seconds):
                    reason = f"its process ended with code {child.returncode}"
            except subprocess.TimeoutExpired:
                reason = f"not tuned within {seconds:.0f} s"
            finally:
                _stop_group(child)
        found = json.loads(output.read_text()) if output.exists() else {}
        if reason and not output.exists():
            lines = log.read_text(errors="replace").strip().splitlines()
            reason += f" ({lines[-1][:200]})" if lines else ""
    for frame in frames:
        for precision in PRECISIONS:
            absent = {"precision": precision, "absent": reason or "not run"}
            found.setdefault(frame, {}).setdefault(_name(precision), absent)
    return found


def _stop_group(child: subprocess.Popen) -> None:
    """End the child and the compilers it started."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    child.wait()


def _name(precision: str) -> str:
    return f"{PACKAGE.replace('_', '-')} {precision} {ALGORITHM}"


# ---- in the process -----------------------------------------------------------------------------


def compile_share(share: int, of: int, network: SpconvNetwork, frame: Frame) -> None:
    """Compile every ``of``-th variant of every layer into Triton's cache, and run none."""
    from triton.runtime.autotuner import Autotuner

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        for config in self.configs[share::of]:
            try:
                self.fn.warmup(*args, grid=grid, **kwargs, **config.all_kwargs())
            except Exception as error:  # the tuner will meet the same error and skip the variant
                print(f"{config}: {error}"[:200], file=sys.stderr)

    Autotuner.run = compile_only
    network.load(voxels_of(frame.points, network.config, "cuda"))
    network.run()
    torch.cuda.synchronize()


def compile_all(options: argparse.Namespace, precision: str) -> None:
    """Compile the variants of one precision in as many processes as there are cores to spare."""
    count = max(1, min(12, (os.cpu_count() or 1) - 2))
    common = [sys.executable, __file__, "--data", str(options.data), "--frames", options.frames]
    workers = [
        subprocess.Popen([*common, "--compile", f"{share}/{count}/{precision}"])
        for share in range(count)
    ]
    for worker in workers:
        worker.wait()


def measure_shorter() -> None:
    """Let the tuner measure each variant for 25 ms."""
    import triton.testing

    gemm = importlib.import_module(f"{PACKAGE}.pytorch._impl.gemm")
    gemm._gather_gemm_kernel._do_bench = lambda call, quantiles: triton.testing.do_bench(
        call, warmup=5, rep=20, quantiles=quantiles
    )


def main() -> None:
    """Compile a share, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--frames", default="A")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--compile", default="", help="share/of/precision")
    options = parser.parse_args()
    config = LidarConfig()
    frames = load_frames(options.frames.split(","), options.data, config)
    tensors = network_tensors(config, "cuda")
    if options.compile:
        share, of, precision = options.compile.split("/")
        network = SpconvNetwork(PACKAGE, precision, ALGORITHM, config, tensors)
        compile_share(int(share), int(of), network, next(frames))
        return
    importlib.import_module(f"{PACKAGE}.pytorch")
    measure_shorter()
    oracle = TorchNetwork(config, {name: tensor.double() for name, tensor in tensors.items()})
    inputs = []
    for frame in frames:
        voxels = voxels_of(frame.points, config, "cuda")
        oracle.load(voxels)
        oracle.run()
        inputs.append((frame.name, voxels, oracle.outputs()))
    results: dict[str, dict[str, Any]] = {}
    for peer in spconv_peers(PACKAGE, PRECISIONS, (ALGORITHM,), config, tensors):
        measure(peer, inputs, results, options)


def measure(
    peer: Peer,
    inputs: list[tuple[str, Rows, dict[str, Rows]]],
    results: dict[str, dict[str, Any]],
    options: argparse.Namespace,
) -> None:
    """Compile and time one candidate on all frames, then write all results so far."""
    begin, ready = time.perf_counter(), 0.0
    compile_all(options, peer.precision)
    for name, voxels, want in inputs:
        if peer.prepare(voxels, want):
            ready = ready or time.perf_counter() - begin
            peer.sample(RUNS)
        result = {**peer.result(), "ready_s": round(ready, 1)}
        results.setdefault(name, {})[peer.name] = result
    for name, voxels, _ in inputs:
        if "absent" not in results[name][peer.name]:
            results[name][peer.name].update(peer.profile(voxels, 10))
    partial = options.output.with_suffix(".part")
    partial.write_text(json.dumps(results))
    partial.replace(options.output)


if __name__ == "__main__":
    with torch.no_grad():
        main()
