"""From the folder of a training run to weights that ship, and the model card beside them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import CheckpointError, ConfigError
from driveRT_ros.core.schema import Config
from driveRT_ros.models.checkpoint import load_weights, model_of
from driveRT_ros.models.lss_weights import load_camera_weights
from driveRT_ros.models.shipped import LIDAR, Shipped
from driveRT_ros.models.stored import Weights, stored_model
from driveRT_ros.models.strict import file_sha256, read_header
from driveRT_ros.train.camera_config import CameraTrainConfig
from driveRT_ros.train.config import TrainConfig
from driveRT_ros.train.evaluate import Evaluation
from driveRT_ros.train.log import read_log
from driveRT_ros.train.loop import THEN, WEIGHTS
from driveRT_ros.train.regression import small_evaluation
from driveRT_ros.train.state import newest_state, read_state

SIMULATOR = "simulator"
"""What the name of the data of a run starts with, if it may ship."""


@dataclasses.dataclass(frozen=True, eq=False)
class Origin:
    """All that a model card is written from.

    Args:
        shipped: Which weights.
        weights: Themselves.
        file_bytes: Size of their file.
        file_sha256: Hash of their file.
        config: Of the training.
        data: What was trained on.
        steps: Done.
        world: Processes that trained.
        log: Lines of the log.
        reports: Of evaluations of these very weights.
        commit: Of the code.
        small: How well they detect in the small scenes; None for cameras.
    """

    shipped: Shipped
    weights: Weights
    file_bytes: int
    file_sha256: str
    config: TrainConfig | CameraTrainConfig
    data: str
    steps: int
    world: int
    log: Sequence[Mapping[str, float]]
    reports: Sequence[Mapping[str, Any]]
    commit: str
    small: Mapping[str, Any] | None


def read_origin(run: Path, shipped: Shipped, reports: Sequence[Path], commit: str) -> Origin:
    """Return what a run and its evaluations tell; the small scenes are evaluated here.

    Args:
        run: Folder of a training run.
        shipped: Which weights it is to become.
        reports: Files that ``drivert eval`` wrote about them.
        commit: Of the code.

    Raises:
        ConfigError: If the weights may not ship, or a report is about others.
        CheckpointError: If a file of the run cannot be read.
    """
    path, state = run / WEIGHTS, newest_state(run)
    if state is None or not path.is_file():
        raise ConfigError(f"'{run}' is no folder of a training run: it lacks a state or {WEIGHTS}.")
    steps, _, values = read_state(state)
    header = read_header(path, shipped.format.name, shipped.format.version)
    kind = TrainConfig if shipped is LIDAR else CameraTrainConfig
    try:
        config, data = kind.from_dict(values["config"]), str(values["data"])
        world = int(values["world"])
    except (KeyError, ConfigError) as error:
        raise CheckpointError(f"State '{state}' is of another version: {error}") from None
    _check_may_ship(path, shipped, config, data)
    weights = _load(path, shipped, header)
    digest = file_sha256(path)
    return Origin(
        shipped=shipped,
        weights=weights,
        file_bytes=path.stat().st_size,
        file_sha256=digest,
        config=config,
        data=data,
        steps=steps,
        world=world,
        log=read_log(run),
        reports=[_report(report, digest) for report in reports],
        commit=commit,
        small=small_numbers(small_evaluation(path)) if shipped is LIDAR else None,
    )


def small_numbers(evaluation: Evaluation) -> dict[str, Any]:
    """Return the numbers of the small scenes that a card keeps and a test compares."""
    ap = {c.name: round(c.overall.mean_ap, 4) for c in evaluation.classes if c.overall.num_truth}
    mean_ap = round(evaluation.mean_ap_present, 4)
    return {"scenes": evaluation.num_frames, "mean_ap": mean_ap, "ap": ap}


def write_pair(origin: Origin, run: Path, folder: Path, text: str) -> tuple[Path, Path]:
    """Write weights and card.

    Args:
        origin: Of the weights.
        run: Folder of the training run.
        folder: Where they go.
        text: Of the card, without its head.

    Returns:
        The two files.

    Raises:
        ConfigError: If they cannot be written.
    """
    head = {
        "name": origin.shipped.name,
        "commit": origin.commit,
        "file_sha256": origin.file_sha256,
        "weights_sha256": origin.weights.sha256,
        "small_scenes": origin.small,
    }
    if isinstance(origin.config, TrainConfig):
        head["forward_yaw_deg"] = origin.config.model.forward_yaw_deg
    card, weights = origin.shipped.card(folder), origin.shipped.path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        weights.write_bytes((run / WEIGHTS).read_bytes())
        card.write_text(f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n{text}", "utf-8")
    except OSError as error:
        raise ConfigError(f"Weights cannot be written to '{folder}': {error}.") from None
    return weights, card


def card_head(card: Path) -> dict[str, Any]:
    """Return what the head of a card says for programs.

    Raises:
        ConfigError: If it has none.
    """
    parts = card.read_text(encoding="utf-8").split("---\n", 2)
    head = yaml.safe_load(parts[1]) if len(parts) == 3 and not parts[0] else None
    if not isinstance(head, dict):
        raise ConfigError(f"Model card '{card}' has no head between two lines '---'.")
    return head


def _check_may_ship(path: Path, shipped: Shipped, config: Config, data: str) -> None:
    size = path.stat().st_size
    if size > shipped.max_bytes:
        raise ConfigError(
            f"'{path}' has {size:,} bytes, and {shipped.name} may have {shipped.max_bytes:,} at "
            "most; train a smaller model."
        )
    if not all(name.startswith(SIMULATOR) for name in data.split(THEN)):
        raise ConfigError(
            f"'{path}' was trained on {data}: only weights trained on the simulator may ship, for "
            "recordings have licences of their own."
        )
    if isinstance(config, TrainConfig):
        for name in ("voxelization", "densification_params"):
            mine, usual = getattr(config, name), getattr(LidarConfig(), name)
            if mine != usual:
                raise ConfigError(
                    f"'{path}' was trained with another '{name}' than the default of the detector, "
                    "which is what runs shipped weights."
                )


def _load(path: Path, shipped: Shipped, header: Mapping[str, str]) -> Weights:
    """Return the weights, checked as a detector checks them."""
    if shipped is LIDAR:
        return load_weights(path, model_of(path))
    from driveRT_ros.core.camera_config import CameraModelConfig

    return load_camera_weights(path, stored_model(path, header, CameraModelConfig))


def _report(path: Path, digest: str) -> dict[str, Any]:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        about = report["about"]
        found, _ = about.get("weights_sha256"), about["source"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"'{path}' is no report of 'drivert eval': {error!r}; name its report.json."
        ) from None
    if found != digest:
        raise ConfigError(
            f"Report '{path}' is about other weights, of SHA-256 {found}; evaluate those of the "
            "run once more."
        )
    return dict(report)
