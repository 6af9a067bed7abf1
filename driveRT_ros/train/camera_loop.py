"""Training of the camera model: the loop of :mod:`.loop` with another network and loss."""

from __future__ import annotations

from pathlib import Path

import torch
import yaml

from driveRT_ros.models.lss_weights import (
    CameraWeights,
    save_camera_weights,
    untrained_camera_weights,
    with_imagenet_backbone,
)
from driveRT_ros.train.camera_config import CameraTrainConfig
from driveRT_ros.train.camera_data import CameraBatch
from driveRT_ros.train.camera_module import (
    LssModule,
    depth_loss,
    depth_truth,
    export_camera_weights,
    normalized,
    segmentation_loss,
)
from driveRT_ros.train.camera_pool import BatchMap
from driveRT_ros.train.data import Place
from driveRT_ros.train.loop import WEIGHTS, Trainer, plain

CAMERA = "camera.yaml"
"""Parameter file of the camera node that runs these weights."""


class CameraTrainer(Trainer):
    """Trains one camera model on one device; see :class:`.loop.Trainer`.

    Args:
        config: Everything.
        folder: Of the run.
        device: Where to train.
        place: Of this process.
        data_name: What is trained on, for the record.
        goes_on: A state is read next, so that no weights to start with are needed.
    """

    identity = ("seed", "model", "optimizer")

    def __init__(
        self,
        config: CameraTrainConfig,
        folder: Path,
        device: torch.device,
        place: Place = Place(),  # noqa: B008 - frozen
        data_name: str = "",
        *,
        goes_on: bool = False,
    ) -> None:
        self._goes_on = goes_on
        super().__init__(config, folder, device, place, data_name)

    def _make_module(self) -> LssModule:
        config: CameraTrainConfig = self.config
        weights = untrained_camera_weights(config.model, config.seed)
        if config.imagenet and not self._goes_on:
            weights = with_imagenet_backbone(weights, config.backbone_path)
        module = LssModule(weights, config.optimizer.batch_norm_momentum)
        return module.to(memory_format=torch.channels_last)

    def train_step(self, batch: CameraBatch) -> dict[str, torch.Tensor]:
        """See :meth:`.loop.Trainer.train_step`; products repeat to the last bit."""
        exact = self._dtype is None
        with torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=not exact
        ):
            return super().train_step(batch)

    def prepare(self, batch: CameraBatch) -> CameraBatch:
        """Return the batch on the device."""
        return batch.to(self.device)

    def loss_of(self, batch: CameraBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the loss of a batch and its parts by name."""
        config: CameraTrainConfig = self.config
        model, rules = config.model, config.loss
        batch = batch.to(self.device)
        found = BatchMap.build(batch.coefficients, model)
        images = normalized(batch, model)
        with self._autocast():
            said = self._model(images, found)
        names = model.network.segmentation
        loss, parts = segmentation_loss(said.segmentation, batch, names, rules)
        if rules.depth_weight:
            truth = depth_truth(batch.depth, model.depth, model.image.feature_size_hw)
            depth = depth_loss(said.depth.float(), truth)
            loss, parts = loss + rules.depth_weight * depth, {**parts, "depth": depth.detach()}
        return loss, parts

    def weights(self) -> CameraWeights:
        """Return what the camera node would run now: the running average where there is one."""
        source = f"trained {self.step} steps on {self._data_name}"
        with self._averaged():
            return export_camera_weights(self.module.state_dict(), self.config.model, source)

    def _write_weights(self) -> None:
        save_camera_weights(self.folder / WEIGHTS, self.weights())
        parameters = {
            "model": plain(self.config.model.to_dict()),
            "checkpoint_path": str((self.folder / WEIGHTS).resolve()),
        }
        text = yaml.safe_dump(parameters, sort_keys=False)
        (self.folder / CAMERA).write_text(text, encoding="utf-8")
