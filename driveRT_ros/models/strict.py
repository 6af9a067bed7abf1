"""Checks that every importer of weights shares: whole or not at all, and every fault by name."""

from __future__ import annotations

import hashlib
import pickle
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch

from driveRT_ros.core.errors import CheckpointError

_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_LISTED = 8  # keys named in a message before it says how many more there are


def read_pickle(path: Path, entry: str) -> tuple[Mapping[str, torch.Tensor], Mapping[str, Any]]:
    """Open a file written by ``torch.save`` without running code from it.

    Args:
        path: The file.
        entry: Name of the state dict inside.

    Returns:
        The state dict, and everything that lies beside it.

    Raises:
        CheckpointError: If the file cannot be opened safely or has no such entry of tensors.
    """
    _check_file(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        # torch's own advice is to open it all the same; of its text only the name is of use
        named = re.search(r"GLOBAL (\S+)", str(error))
        what = f"'{named[1]}', which is no tensor" if named else "more than tensors, if it is one"
        raise CheckpointError(
            f"Checkpoint '{path}' holds {what}, so opening it could run code from it. Load it "
            f"where it was made and save only its '{entry}'."
        ) from None
    except Exception as error:  # bytes that are no pickle make the unpickler raise any kind
        reason = str(error).partition(". ")[0] or type(error).__name__
        raise CheckpointError(
            f"'{path}' cannot be read as a checkpoint ({reason}); it may be cut off: copy it again."
        ) from None
    state = content.get(entry) if isinstance(content, Mapping) else None
    if not isinstance(state, Mapping):
        found = f"a {type(content).__name__}"
        if isinstance(content, Mapping):
            found = listed(map(str, content)) or "nothing"
        raise CheckpointError(f"'{path}' has no entry '{entry}' of tensors; it holds {found}.")
    for key, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise CheckpointError(f"'{key}' in '{path}' is {type(value).__name__}, not a tensor.")
    return state, {key: value for key, value in content.items() if key != entry}


def read_safetensors(
    path: Path, kind: str, version: str
) -> tuple[Mapping[str, str], dict[str, torch.Tensor]]:
    """Return the header and the tensors of a file of ours.

    Args:
        path: The file.
        kind: What the entry ``format`` of its header must be.
        version: What the entry ``version`` of its header must be.

    Raises:
        CheckpointError: If the file cannot be read or is of another format or version.
    """
    header = read_header(path, kind, version)
    with safetensors.safe_open(str(path), framework="pt") as file:
        return header, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def read_header(path: Path, kind: str, version: str) -> Mapping[str, str]:
    """Return the header of a file of ours; arguments and errors as :func:`read_safetensors`."""
    _check_file(path)
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(
            f"'{path}' cannot be read as safetensors ({error}); it may be cut off: copy it again."
        ) from None
    found = (header.get("format"), header.get("version"))
    if found != (kind, version):
        raise CheckpointError(
            f"'{path}' has format and version {found}, expected {(kind, version)}; write it with "
            "save_weights."
        )
    return header


def _check_file(path: Path) -> None:
    if not path.is_file():
        missing = "is a folder" if path.is_dir() else "does not exist"
        raise CheckpointError(f"Checkpoint '{path}' {missing}; name a file of weights.")


def compare_keys(path: Path, expected: set[str], found: set[str]) -> None:
    """Raise CheckpointError naming every key that is missing or that nothing expects."""
    missing, extra = sorted(expected - found), sorted(found - expected)
    if not missing and not extra:
        return
    parts = []
    if missing:
        parts.append(f"misses {len(missing)} of {len(expected)} keys: {listed(missing)}")
    if extra:
        parts.append(f"has {len(extra)} keys that nothing expects: {listed(extra)}")
    raise CheckpointError(
        f"'{path}' {', and '.join(parts)}. Check that parameter group 'model' describes it."
    )


def check_tensor(name: str, tensor: torch.Tensor, shape: tuple[int, ...], remark: str = "") -> None:
    """Raise CheckpointError where a tensor has another shape, is no float or is not finite."""
    if tuple(tensor.shape) != shape:
        raise CheckpointError(
            f"'{name}' has shape {tuple(tensor.shape)}, expected {shape}{remark}."
        )
    if tensor.dtype not in _DTYPES:
        raise CheckpointError(
            f"'{name}' is {tensor.dtype}, expected floating point of 16, 32 or 64 bits."
        )
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        raise CheckpointError(f"'{name}' holds {bad} values that are NaN or infinite.")


def listed(keys: Iterable[str]) -> str:
    """Return quoted names, the first few of many."""
    names = list(keys)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(f"'{name}'" for name in names[:_LISTED]) + more


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tensors_sha256(tensors: Mapping[str, torch.Tensor]) -> str:
    """Hash names, shapes and values rounded to float32: equal in every file format."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().float().contiguous()
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().astype("<f4", copy=False).tobytes())
    return digest.hexdigest()
