"""The state of a run on disk: a folder for the newest step, in files small enough to carry."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from driveRT_ros.core.errors import CheckpointError

FORMAT = "driveRT_ros.training"
VERSION = 1
_HEADER = "state.json"


def write_state(
    folder: Path, step: int, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any],
    max_file_mb: float,
) -> Path:  # fmt: skip
    """Write a state beside the older one, then remove the older one.

    Args:
        folder: Of the run.
        step: Steps done.
        tensors: Everything that learned, every bit.
        values: What else the run needs, as JSON has it.
        max_file_mb: Tensors are spread over files of at most this (a larger tensor has its own).

    Returns:
        The folder of this state.
    """
    mine = folder / f"state-{step:08d}"
    shutil.rmtree(mine, ignore_errors=True)
    mine.mkdir(parents=True)
    parts: list[dict[str, torch.Tensor]] = [{}]
    room = limit = max_file_mb * 1e6
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size() + len(name) + 80
        if size > room and parts[-1]:
            parts.append({})
            room = limit
        parts[-1][name] = tensor.detach().cpu().contiguous()
        room -= size
    names = [f"part-{k}.safetensors" for k in range(len(parts))]
    for name, part in zip(names, parts):
        safetensors.torch.save_file(part, str(mine / name))
    header = {"format": FORMAT, "version": VERSION, "step": step, "parts": names, "values": values}
    # Last: a state without header was never finished.
    (mine / _HEADER).write_text(json.dumps(header, indent=1), encoding="utf-8")
    for other in folder.glob("state-*"):
        if other != mine:
            shutil.rmtree(other, ignore_errors=True)
    return mine


def newest_state(folder: Path) -> Path | None:
    """Return the folder of the newest finished state of a run, or None."""
    finished = sorted(path.parent for path in folder.glob(f"state-*/{_HEADER}"))
    return finished[-1] if finished else None


def read_state(state: Path) -> tuple[int, dict[str, torch.Tensor], dict[str, Any]]:
    """Return steps done, tensors and values of a state.

    Raises:
        CheckpointError: If a file is missing, cannot be read, or is of another version.
    """
    try:
        header = json.loads((state / _HEADER).read_text(encoding="utf-8"))
        if (header["format"], header["version"]) != (FORMAT, VERSION):
            raise CheckpointError(f"'{state}' is not a state of training of version {VERSION}.")
        tensors: dict[str, torch.Tensor] = {}
        for name in header["parts"]:
            tensors |= safetensors.torch.load_file(str(state / name))
        return int(header["step"]), tensors, header["values"]
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"State of training '{state}' cannot be read: {error}.") from None
