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
_PARTIAL = "partial-state"
_REPLACED = ".replaced"
"""After the name of a state that another of the same step is taking the place of."""


def write_state(
    folder: Path, step: int, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any],
    max_file_mb: float,
) -> Path:  # fmt: skip
    """Write a state beside the older one, then remove the older one.

    Whenever the process is killed, :func:`newest_state` finds a state that is whole.

    Args:
        folder: Of the run.
        step: Steps done.
        tensors: Everything that learned, every bit.
        values: What else the run needs, as JSON has it.
        max_file_mb: Tensors are spread over files of at most this (a larger tensor has its own).

    Returns:
        The folder of this state.
    """
    mine, partial = folder / f"state-{step:08d}", folder / _PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
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
        safetensors.torch.save_file(part, str(partial / name))
    header = {"format": FORMAT, "version": VERSION, "step": step, "parts": names, "values": values}
    (partial / _HEADER).write_text(json.dumps(header, indent=1), encoding="utf-8")
    if mine.exists():  # a folder takes the place of none that holds files
        replaced = mine.with_name(mine.name + _REPLACED)
        _remove(replaced)
        mine.rename(replaced)
    partial.rename(mine)
    for other in folder.glob("state-*"):
        if other != mine:
            _remove(other)
    return mine


def _remove(state: Path) -> None:
    # Without its header first: half of a state must not look like a whole one.
    (state / _HEADER).unlink(missing_ok=True)
    shutil.rmtree(state, ignore_errors=True)


def newest_state(folder: Path) -> Path | None:
    """Return the folder of the newest finished state of a run, or None."""
    finished = [path.parent for path in folder.glob(f"state-*/{_HEADER}")]
    return max(finished, key=_age, default=None)


def _age(state: Path) -> tuple[str, bool]:
    return state.name.removesuffix(_REPLACED), not state.name.endswith(_REPLACED)


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
