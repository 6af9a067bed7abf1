"""What a frame of the cameras runs: stages over buffers that stay, each a CUDA graph of its own.

Of the four graphs, two are captured again: that of the images where they take more memory than any
before, that of pooling where the calibration changed. A missing camera changes none: it is black,
and its depths weigh nothing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.camera_images import HostInput, Normalizer
from driveRT_ros.core.camera_pool import CameraPool
from driveRT_ros.core.frame import CameraFrame
from driveRT_ros.core.gpu.transfers import HostCopy
from driveRT_ros.core.graph import StageGraphs
from driveRT_ros.core.pool_types import ScatterMap
from driveRT_ros.models.center_head import BRANCHES
from driveRT_ros.models.lss import Lss

NETWORK_STAGES = ("backbone", "pool", "head")
Lap = Callable[[str], None]
Output = tuple[int, str]
"""What comes back from the device: number of a head and name of its map, or the layers."""
LAYERS: Output = (-1, "layers")


class ImageInput(Protocol):
    """Makes the network input of one instant."""

    batch: torch.Tensor
    """(N, rows, cols, 3) uint8 RGB on the device, of fixed address."""

    def load(self, frames: Sequence[CameraFrame | None]) -> None:
        """Take images."""

    @property
    def fit(self) -> Callable[[], None]:
        """What makes :attr:`batch` of them; unequal to the last one if it reads other memory."""


class CameraStages:
    """The work of a frame on one device; one thread uses it at a time.

    Args:
        config: Cameras, model, precision and Plan.
        network: On the device, in ``dtype`` and ``layout``.
        device: Where it runs.
        dtype: Of depths, features and sums.
        layout: Of the tensors in the network.
        graph: Replay CUDA graphs where that can be; False enqueues kernel by kernel.

    Attributes:
        pool: Sums softmax(depth logits) times features.
        heads: Maps of every detection head by name, (1, channels, Y, X) float32 on the host, of the
            last frame that :meth:`layers` waited for.
    """

    def __init__(
        self,
        config: CameraConfig,
        network: Lss,
        device: torch.device,
        dtype: torch.dtype,
        layout: torch.memory_format,
        *,
        graph: bool = True,
    ) -> None:
        model, cameras = config.model, len(config.cameras)
        self._network, self._device, self._graph = network, device, graph
        self._tf32, self._note = config.precision == "tf32", ""
        self.pool = CameraPool(config, device, dtype)
        self._input = _input(config, self.pool.present)
        self._normalize = Normalizer(model.image, device, dtype)
        self._layout = layout
        shape, new = (cameras, 3, *model.image.size_hw), {"dtype": dtype, "device": device}
        self._images = torch.empty(shape, memory_format=layout, **new)
        shapes = _output_shapes(config)
        self._out = torch.zeros(sum(map(math.prod, shapes.values())), device=device)
        self._copy = HostCopy(self._out)
        self._maps = _views(self._out, shapes)
        self._layers, self.heads = _by_head(_views(torch.from_numpy(self._copy.words), shapes))
        work = {"images": self._fit, "backbone": self._lift, "pool": self._sum, "head": self._read}
        self._work: dict[str, Callable[[], object]] = {**work}
        self._graphs = {stage: self._fresh(stage) for stage in work}
        self._fits = self._input.fit

    @property
    def batch(self) -> torch.Tensor:
        """(N, rows, cols, 3) uint8 RGB that :meth:`fit` made, black where a camera is missing."""
        return self._input.batch

    @property
    def captured(self) -> tuple[str, ...]:
        """Stages that the next frame replays from a graph, if it is one like the last."""
        return tuple(stage for stage, graphs in self._graphs.items() if graphs.captured)

    @property
    def note(self) -> str:
        """A sentence on why stages are not replayed from CUDA graphs, though they should, or ""."""
        return self._note or next((g.note for g in self._graphs.values() if g.note), "")

    def fit(
        self,
        frames: Sequence[CameraFrame | None],
        has_image: npt.NDArray[np.bool_],
        lap: Lap = lambda stage: None,
    ) -> None:
        """Take the images of one instant, resize, crop and normalise them: stage ``images``.

        Args:
            frames: One entry a camera, checked.
            has_image: (N,), which are there.
            lap: Called after the stage with its name.
        """
        self.pool.mark(has_image)
        self._input.load(frames)
        if self._input.fit != self._fits:
            self._renew("images")
            self._fits = self._input.fit
        self._graphs["images"].run(lap)

    def use(self, scatter_map: ScatterMap) -> None:
        """Pool with this map from now on; another one waits for the device."""
        if self.pool.use(scatter_map):
            self._renew("pool")

    def run(self, lap: Lap = lambda stage: None) -> None:
        """Enqueue :data:`NETWORK_STAGES`, from the fitted images to the layers.

        Args:
            lap: Called after each with its name.
        """
        for stage in NETWORK_STAGES:
            self._graphs[stage].run(lap)
        self._copy.enqueue()

    def layers(self) -> npt.NDArray[np.float32]:
        """Wait for the frame; return (outputs, Y, X) probabilities: layers, then classes.

        The next frame writes them anew.
        """
        self._copy.wait()
        values: npt.NDArray[np.float32] = self._layers.numpy()
        return values

    def _fresh(self, stage: str) -> StageGraphs:
        # A device that refused once is not asked again with every calibration.
        wanted = self._graph and not self._note
        return StageGraphs({stage: self._work[stage]}, self._device, enabled=wanted)

    def _renew(self, stage: str) -> None:
        """Forget what was captured of a stage: its buffers are others now."""
        self._note = self.note
        self._graphs[stage] = self._fresh(stage)

    # ---- the stages, which may be captured and repeated -----------------------------------------

    def _fit(self) -> None:
        self._input.fit()
        self._normalize(self._input.batch, self._images.permute(0, 2, 3, 1))

    def _lift(self) -> None:
        with self._arithmetic():
            self.pool.load(*self._network.lift_logits(self._images.unsqueeze(0)))

    def _sum(self) -> None:
        self.pool()

    def _read(self) -> None:
        with self._arithmetic():
            maps = self._network.read(self.pool.out, self._layout)
        for number, head in enumerate(maps.heads):
            for name, made in head.items():
                self._maps[number, name].copy_(made)
        logits = [maps.segmentation[0], *(head["heatmap"][0] for head in maps.heads)]
        torch.sigmoid(torch.cat(logits).float(), out=self._maps[LAYERS])

    def _arithmetic(self) -> AbstractContextManager[None]:
        """Give the same bytes every time, and float32 products where float32 is asked for."""
        return torch.backends.cudnn.flags(  # type: ignore[no-any-return]
            enabled=True, benchmark=False, deterministic=True, allow_tf32=self._tf32
        )


def _output_shapes(config: CameraConfig) -> dict[Output, tuple[int, ...]]:
    """Return the shape of everything that comes back, the layers first."""
    model = config.model
    _, *cells = model.grid.shape_zyx
    outputs = len(model.network.segmentation) + len(model.network.class_names)
    shapes: dict[Output, tuple[int, ...]] = {LAYERS: (outputs, *cells)}
    for number, classes in enumerate(model.network.classes_per_head):
        for name, channels in (*BRANCHES, ("heatmap", len(classes))):
            shapes[number, name] = (1, channels, *cells)
    return shapes


def _views(
    words: torch.Tensor, shapes: Mapping[Output, tuple[int, ...]]
) -> dict[Output, torch.Tensor]:
    parts = words.split([math.prod(shape) for shape in shapes.values()])
    return {key: part.view(shape) for (key, shape), part in zip(shapes.items(), parts)}


def _by_head(
    views: Mapping[Output, torch.Tensor],
) -> tuple[torch.Tensor, list[dict[str, torch.Tensor]]]:
    """Return the layers, and the maps of each head by name."""
    heads: dict[int, dict[str, torch.Tensor]] = {}
    for (number, name), view in views.items():
        if (number, name) != LAYERS:
            heads.setdefault(number, {})[name] = view
    return views[LAYERS], list(heads.values())


def _input(config: CameraConfig, present: torch.Tensor) -> ImageInput:
    """Return what makes the network input on the device of ``present``."""
    if present.is_cuda:
        from driveRT_ros.core.gpu.camera_input import CameraInput  # needs a driver

        threads = min(len(config.cameras), config.num_threads or os.cpu_count() or 1)
        return CameraInput(config.model.image, present, threads=threads)
    return HostInput(config.model.image, len(config.cameras))
