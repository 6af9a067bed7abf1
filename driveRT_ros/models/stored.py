"""Weights of any of our networks as a value and as a file: safetensors with the model inside."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

import safetensors.torch
import torch

from driveRT_ros.core.errors import CheckpointError, ConfigError
from driveRT_ros.core.schema import Config
from driveRT_ros.models.strict import read_header, read_safetensors, tensors_sha256

C = TypeVar("C", bound=Config)


@dataclass(frozen=True, eq=False)
class Weights:
    """Every learned tensor of a network.

    Args:
        config: The model they belong to.
        tensors: By name, floating point, on the CPU.
        trained: False for seeded random weights.
        source: Where they came from: a path, or the seed.
        mapping: How checkpoint keys became layers, one line each; empty where nothing was mapped.
    """

    config: Config
    tensors: Mapping[str, torch.Tensor]
    trained: bool
    source: str
    mapping: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What to record of where they came from: the name of the file, or the seed."""
        return name_of(self.source)

    def require(self, model: Config) -> None:
        """Refuse another model than they belong to.

        Raises:
            ConfigError: It says both.
        """
        if self.config != model:
            raise ConfigError(
                f"The weights of '{self.source}' are for {self.config.to_dict()}, but parameter "
                f"group 'model' is {model.to_dict()}; make them agree."
            )

    @cached_property
    def sha256(self) -> str:
        """Hash of names, shapes and values rounded to float32: equal in every file format."""
        return tensors_sha256(self.tensors)


W = TypeVar("W", bound=Weights)


def name_of(source: str) -> str:
    """Return what to record of where weights came from: the name of the file, or the seed."""
    return Path(source).name


@dataclass(frozen=True)
class FileFormat(Generic[W]):
    """The files of ours that hold the weights of one kind of network.

    Args:
        name: Entry ``format`` of their header.
        version: Entry ``version`` of their header.
    """

    name: str
    version: str

    def write(self, path: str | Path, weights: W, *, dtype: torch.dtype | None = None) -> None:
        """Write weights as safetensors with the model config in the header.

        Args:
            path: Must end in ``.safetensors``.
            weights: What to write.
            dtype: Round to this dtype; None keeps every bit.

        Raises:
            CheckpointError: If the suffix is another one.
        """
        if Path(path).suffix.lower() != ".safetensors":
            raise CheckpointError(f"Weights are written as '.safetensors', got '{path}'.")
        tensors = {
            name: tensor.detach().cpu().to(dtype or tensor.dtype).contiguous()
            for name, tensor in sorted(weights.tensors.items())
        }
        header = {
            "format": self.name,
            "version": self.version,
            "model": json.dumps(weights.config.to_dict(), sort_keys=True),
            "trained": json.dumps(weights.trained),
            "source": weights.source,
        }
        safetensors.torch.save_file(tensors, str(path), metadata=header)

    def read(self, path: Path, model: Config) -> tuple[dict[str, torch.Tensor], bool]:
        """Return the tensors of a file for this model, unchecked, and whether they are trained.

        Args:
            path: The file.
            model: What its model config must be.

        Raises:
            CheckpointError: If the file cannot be read, is of another format or for another model.
        """
        header, tensors = read_safetensors(path, self.name, self.version)
        stored = stored_model(path, header, type(model))
        if header.get("trained") not in ("true", "false"):
            raise CheckpointError(
                f"'{path}' has an unusable header: its entry 'trained' is "
                f"{header.get('trained')!r}, expected 'true' or 'false'; write it anew."
            )
        wanted = dict(_flat(model.to_dict()))
        for name, value in _flat(stored.to_dict()):
            if value != wanted[name]:
                raise CheckpointError(
                    f"'{path}' is for model.{name} = {value}, but the configuration asks for "
                    f"{wanted[name]}; set that parameter, or name other weights."
                )
        return tensors, header["trained"] == "true"

    def model(self, path: Path, kind: type[C]) -> C:
        """Return the model that a file is for.

        Args:
            path: The file.
            kind: Class of its model config.

        Raises:
            CheckpointError: If the file cannot be read, or is of another format.
        """
        return stored_model(path, read_header(path, self.name, self.version), kind)


def stored_model(path: Path, header: Mapping[str, str], kind: type[C]) -> C:
    """Return the model that a file is for.

    Args:
        path: The file, for messages.
        header: Of the file.
        kind: Class of its model config.

    Raises:
        CheckpointError: If the header does not tell.
    """
    try:
        return kind.from_dict(json.loads(header["model"]))
    except (KeyError, ValueError, ConfigError) as error:
        reason = "it is missing" if isinstance(error, KeyError) else str(error).rstrip(".")
        raise CheckpointError(
            f"'{path}' has an unusable header, in its entry 'model': {reason}; write it anew."
        ) from None


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
