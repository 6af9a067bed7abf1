"""What ``drivert train`` does differently for the LiDAR detector and for the cameras."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from driveRT_ros.commands.common import config_from, console
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.yaml_text import read_yaml

if TYPE_CHECKING:
    import torch

    from driveRT_ros.train.data import Place
    from driveRT_ros.train.loop import Trainer

Batches = AbstractContextManager[Iterator[Any]]

LINE_EVERY_S = 20.0
"""Where there is no terminal for a progress bar, a line says so often how far things are."""


class Kind(Protocol):
    """One kind of training.

    Attributes:
        config: Its parameters.
        parameters: Name of the parameter file that a run writes beside its weights.
    """

    config: Any
    parameters: str

    def drives(self, where: str) -> Any:
        """Return what shards are made of: with ``name`` and ``count``, None for any number."""
        ...

    def write(
        self, drives: Any, folder: Path, count: int, workers: int, on_done: Callable[[int], bool]
    ) -> int:
        """Write shards and return the number of drives there are."""
        ...

    def frames(self, folder: Path) -> int:
        """Return the number of frames in a folder of shards."""
        ...

    def open(self, where: str) -> Any:
        """Return what is trained on."""
        ...

    def trainer(self, folder: Path, device: torch.device, place: Place, name: str) -> Trainer:
        """Return the trainer of a run, which goes on where the folder holds a state."""
        ...

    def batches(self, data: Any, trainer: Trainer, workers: int) -> Batches:
        """Return the batches from the step of the trainer on, as long as they are needed."""
        ...

    def introduce(self) -> str:
        """Return what the network is called."""
        ...


def kind_of(file: str, single: list[str]) -> Kind:
    """Return the kind that a parameter file is for, with its parameters.

    Args:
        file: Training parameters.
        single: ``NAME=VALUE`` each.

    Raises:
        ConfigError: On an unknown name or a value that cannot be used.
    """
    from driveRT_ros.train.camera_config import KIND, CameraTrainConfig
    from driveRT_ros.train.config import TrainConfig

    tree = read_yaml(file)
    if isinstance(tree, dict) and tree.get("kind") == KIND:
        return Cameras(config_from(CameraTrainConfig, file, None, single))
    return Lidar(config_from(TrainConfig, file, None, single))


class Lidar:
    """The LiDAR detector.

    Args:
        config: Everything.
    """

    parameters = "detector.yaml"

    def __init__(self, config: Any) -> None:
        self.config = config

    def drives(self, where: str) -> Any:
        """See :class:`Kind`."""
        from driveRT_ros.train.shards import Shards

        data = self.open(where)
        if isinstance(data, Shards):
            raise ConfigError(f"'{where}' holds frames already; name 'sim' or a nuScenes folder.")
        return data

    def write(
        self, drives: Any, folder: Path, count: int, workers: int, on_done: Callable[[int], bool]
    ) -> int:
        """See :class:`Kind`."""
        from driveRT_ros.train.drives import make_shards

        return make_shards(drives, self.config, folder, count, workers, on_done)

    def frames(self, folder: Path) -> int:
        """See :class:`Kind`."""
        from driveRT_ros.train.shards import Shards

        return len(Shards(folder, self.config.model.class_names))

    def open(self, where: str) -> Any:
        """See :class:`Kind`."""
        from driveRT_ros.train.data import open_data

        return open_data(where, self.config)

    def trainer(self, folder: Path, device: torch.device, place: Place, name: str) -> Trainer:
        """See :class:`Kind`."""
        from driveRT_ros.train.loop import Trainer
        from driveRT_ros.train.state import newest_state

        trainer = Trainer(self.config, folder, device, place, name)
        if newest_state(folder) is not None:
            trainer.resume()
        return trainer

    def batches(self, data: Any, trainer: Trainer, workers: int) -> Batches:
        """See :class:`Kind`."""
        from driveRT_ros.train.data import build_database, make_loader

        pin, place = trainer.device.type == "cuda", trainer.place
        database = build_database(data, self.config, workers, _Cutting(place))
        loader = make_loader(data, database, self.config, place, trainer.step, pin)
        return nullcontext(iter(loader))

    def introduce(self) -> str:
        """See :class:`Kind`."""
        return f"VoxelNeXt {list(self.config.model.channels)}"


class Cameras:
    """The camera model.

    Args:
        config: Everything.
    """

    parameters = "camera.yaml"

    def __init__(self, config: Any) -> None:
        self.config = config

    def drives(self, where: str) -> Any:
        """See :class:`Kind`."""
        from driveRT_ros.train.camera_frames import CameraDrives

        if where != "sim":
            raise ConfigError(f"Frames of cameras are rendered: leave out --data, got '{where}'.")
        return CameraDrives(self.config)

    def write(
        self, drives: Any, folder: Path, count: int, workers: int, on_done: Callable[[int], bool]
    ) -> int:
        """See :class:`Kind`."""
        from driveRT_ros.train.camera_frames import make_camera_shards

        return make_camera_shards(drives, self.config, folder, count, workers, on_done)

    def frames(self, folder: Path) -> int:
        """See :class:`Kind`."""
        return len(self.open(str(folder)))

    def open(self, where: str) -> Any:
        """See :class:`Kind`."""
        from driveRT_ros.train.camera_frames import CameraShards

        if where == "sim":
            raise ConfigError(
                "Images take longer to render than to learn from: write them first with "
                "--make-shards DIR --scenes N and this configuration, then name DIR with --data."
            )
        return CameraShards(Path(where), self.config.model)

    def trainer(self, folder: Path, device: torch.device, place: Place, name: str) -> Trainer:
        """See :class:`Kind`."""
        from driveRT_ros.train.camera_loop import CameraTrainer
        from driveRT_ros.train.state import newest_state

        goes_on = newest_state(folder) is not None
        trainer = CameraTrainer(self.config, folder, device, place, name, goes_on=goes_on)
        if goes_on:
            trainer.resume()
        return trainer

    def batches(self, data: Any, trainer: Trainer, workers: int) -> Batches:
        """See :class:`Kind`."""
        from driveRT_ros.train.camera_data import CameraBatches

        pin = trainer.device.type == "cuda"
        step, place = trainer.step, trainer.place
        return closing(CameraBatches(data, self.config, place, step, workers, pin))

    def introduce(self) -> str:
        """See :class:`Kind`."""
        model = self.config.model
        rows, cols = model.image.size_hw
        layers = ", ".join(model.network.segmentation)
        return f"Lift-splat of {cols} x {rows} pixels to {layers}"


class _Cutting:
    """Say now and then how far objects to paste are cut out; only rank 0 says anything."""

    def __init__(self, place: Place) -> None:
        self._on, self._printed = place.rank == 0, time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if self._on and time.monotonic() - self._printed > LINE_EVERY_S / 4:
            self._printed = time.monotonic()
            console.print(f"objects to paste: {done} of {total} drives or frames cut")
