"""Which kernels the LiDAR pipeline compiles, and compiling them side by side before it asks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.gpu.head_tactics import head_tactic
from driveRT_ros.core.gpu.heads import unsupported
from driveRT_ros.core.nvrtc import compile_cubin
from driveRT_ros.core.plan import Plan, domain_layers
from driveRT_ros.core.sparse_types import NUM_FEATURES
from driveRT_ros.core.tactics import ConvTactic

LAST_DOMAIN = "subm_out"
"""Domain of the layer whose rows the heads read."""

Progress = Callable[[int], object]
"""Told how many are done."""


@dataclass(frozen=True, order=True)
class KernelBuild:
    """One source with its compile-time constants.

    Args:
        stem: Source file in ``kernels/``, without its suffix.
        defines: Name and value of every constant, by name.
    """

    stem: str
    defines: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def of(stem: str, defines: Mapping[str, object]) -> KernelBuild:
        """Return the build whatever the order of the constants."""
        return KernelBuild(stem, tuple(sorted((k, str(v)) for k, v in defines.items())))


def writes_half(precision: str, domain: str) -> bool:
    """Tell whether the layers of a domain write rows of float16."""
    return precision == "fp16" and domain != LAST_DOMAIN


def layer_builds(
    precision: str, domain: str, tactic: ConvTactic, layer: tuple[int, int, int]
) -> tuple[KernelBuild, ...]:
    """Return what a layer launches: its convolution, and ``epilogue`` where groups have sums.

    Args:
        precision: Of the Plan.
        domain: Coordinate map of the layer.
        tactic: How it computes.
        layer: Input channels, output channels, taps.
    """
    half, defines = writes_half(precision, domain), tactic.defines(*layer)
    if tactic.groups > 1:  # the convolution writes sums, which are float32 in every precision
        sums = {"GROUPS": tactic.groups, "COUT": layer[1], "HALF": int(half)}
        return KernelBuild.of(tactic.kernel, defines), KernelBuild.of("epilogue", sums)
    if precision == "fp16" and not half:
        defines["FLOAT_ROWS"] = 1
    return (KernelBuild.of(tactic.kernel, defines),)


def input_build(precision: str, channels: int) -> KernelBuild:
    """Return what the first layer launches, given its output channels."""
    constants = {"IN": NUM_FEATURES, "OUT": channels, "HALF": int(precision == "fp16")}
    return KernelBuild.of("input_conv", constants)


def merge_build(precision: str) -> KernelBuild:
    """Return what merges the last three levels in the bird's-eye view."""
    return KernelBuild.of("bev_merge", {"HALF": int(precision == "fp16")})


def engine_builds(
    config: LidarConfig, plan: Plan, capability: tuple[int, int]
) -> tuple[KernelBuild, ...]:
    """Return everything that the engine compiles; what is compiled slowest comes first.

    Args:
        config: Channels, heads and grid of the model.
        plan: How each layer computes.
        capability: CUDA compute capability; no such GPU need be there.
    """
    channels, precision = config.model.channels, plan.precision
    layers = domain_layers(channels)
    convolutions, others = [], []
    for domain, tactic in plan.tactics.items():
        convolution, *finish = layer_builds(precision, domain, tactic, layers[domain])
        convolutions.append(convolution)
        others += finish
    width, arithmetic = channels[-1], plan.tactics[LAST_DOMAIN].arithmetic
    heads = head_tactic(width, arithmetic, capability)
    if heads is not None and not unsupported(config, arithmetic, capability):
        convolutions.append(KernelBuild.of(heads.kernel, heads.defines(width, width, 1)))
        others += [KernelBuild("select"), KernelBuild("nms")]
    others += [input_build(precision, channels[0]), merge_build(precision)]
    others += [KernelBuild(stem) for stem in ("levels", "coordmap", "voxelize")]
    return tuple(dict.fromkeys(convolutions + others))


def pipeline_builds(
    config: LidarConfig, plan: Plan, capability: tuple[int, int]
) -> tuple[KernelBuild, ...]:
    """Return what the engine compiles, and what messages, sweeps and fingerprints need.

    The arguments are those of :func:`engine_builds`.
    """
    beside = [KernelBuild(stem) for stem in ("sweeps", "unpack_points", "grid_ops_checksum")]
    return (*engine_builds(config, plan, capability), *beside)


def builds_for(
    config: LidarConfig, weights_sha256: str, device: torch.device
) -> tuple[KernelBuild, ...]:
    """Return what the pipeline compiles on a device: nothing where that is a CPU.

    Args:
        config: Model, precision and Plan.
        weights_sha256: A Plan belongs to weights; empty where they are not known.
        device: Where the pipeline is to run.

    Raises:
        ConfigError: If no Plan runs this model in this precision on this GPU.
    """
    if device.type != "cuda":
        return ()
    capability = torch.cuda.get_device_capability(device)
    plan, _ = Plan.for_device(
        config.plan_path,
        config.model.channels,
        config.precision,
        torch.cuda.get_device_name(device),
        capability,
        weights_sha256 if config.plan_path else "",
    )
    return pipeline_builds(config, plan, capability)


def compile_builds(builds: Sequence[KernelBuild], arch: str, progress: Progress) -> None:
    """Put the builds into the cache on disk, as many at a time as there are cores.

    Args:
        builds: What to compile; what is there already costs a look.
        arch: Architecture, as ``sm_90``.
        progress: Told after each.

    Raises:
        DeviceError: If NVRTC is missing, or refuses a source.
    """
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as threads:
        jobs = [threads.submit(compile_cubin, b.stem, arch, dict(b.defines)) for b in builds]
        try:
            for done, job in enumerate(as_completed(jobs), start=1):
                job.result()
                progress(done)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
