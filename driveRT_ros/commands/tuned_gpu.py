"""What tuning and qualifying are about: the GPU at hand, and the file of its Plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from driveRT_ros.commands.common import console
from driveRT_ros.core.errors import ConfigError, DeviceError, PlanMismatch
from driveRT_ros.core.plan import Plan

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Gpu:
    """The GPU that is tuned or qualified."""

    device: torch.device
    name: str
    driver: str
    capability: tuple[int, int]


def find_gpu(
    wanted: str, task: str = "tune", without: str = "Without a Plan the default one runs."
) -> Gpu:
    """Return the GPU to tune or qualify.

    Args:
        wanted: Parameter ``device``.
        task: What it is needed for.
        without: What happens where there is none.

    Raises:
        DeviceError: If there is none.
        ConfigError: If the parameter names another kind of device.
    """
    import torch

    from driveRT_ros.bench.timing import gpu_query

    if not torch.cuda.is_available():
        raise DeviceError(
            f"torch {torch.__version__} finds no CUDA device to {task} on; run this on the machine "
            f"whose GPU shall be used. {without}"
        )
    if wanted != "auto" and not wanted.startswith("cuda"):
        raise ConfigError(
            f"Parameter 'device' is '{wanted}'; only on a CUDA device there is anything to {task}."
        )
    device = torch.device("cuda", torch.device("cuda" if wanted == "auto" else wanted).index or 0)
    return Gpu(
        device,
        torch.cuda.get_device_name(device),
        gpu_query(["driver_version"])[0],
        torch.cuda.get_device_capability(device),
    )


def plan_file(name: str) -> Path:
    """Return where the Plan goes.

    Raises:
        ConfigError: If it cannot be written there.
    """
    output = Path(name)
    if output.is_dir() or not output.resolve().parent.is_dir():
        raise ConfigError(f"'{output}' cannot be written: name a file in a folder that exists.")
    return output


def earlier_plan(output: Path, gpu: Gpu) -> Plan | None:
    """Return the Plan that lies where the new one goes, None where none is of this GPU.

    What it says of the other network can be kept.
    """
    if not output.exists():
        return None
    try:
        plan = Plan.load(output)
        plan.check_device(gpu.name)
    except (ConfigError, PlanMismatch) as error:
        console.print(f"What '{output}' holds is replaced: {error}")
        return None
    return plan
