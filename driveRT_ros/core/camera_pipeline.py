"""The hot path of the cameras: images in, bird's-eye-view layers and detections out."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.camera_images import check_calibration, check_image
from driveRT_ros.core.camera_rig import Calibration, Rig, Sight, given_by, rig_key
from driveRT_ros.core.camera_stages import CameraStages
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.frame import BevGrid, CameraFrame, Detections, FrameReport
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.stages import StageClock, crc32, device_named
from driveRT_ros.models.center_head import CenterDecoder
from driveRT_ros.models.head import Proposals
from driveRT_ros.models.layers import fold_norms
from driveRT_ros.models.lss_weights import CameraWeights, untrained_camera_weights

CAMERAS_LAYER = "cameras"
"""Layer that counts the present cameras that see a cell."""

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16}
"""Of the network, by precision."""
LAYOUTS = {
    "fp32": torch.contiguous_format,
    "tf32": torch.channels_last,
    "fp16": torch.channels_last,
}
"""Of tensors in the network on CUDA, by precision: matrix units want the channels of a pixel side
by side. Products of floats do not run there, and of such tensors cuDNN makes 384 launches a frame
where TF32 takes 248 (H200)."""
_FAULTS = ("non_finite_cells", "non_finite_boxes", "non_finite_heat")


class CameraPipeline:
    """The camera model on one device.

    On a CUDA device, frames are replayed from CUDA graphs; images are resized there.

    Args:
        config: Cameras, model and post-processing.
        weights: Weights of this model; None runs seeded untrained ones and says so in the report.
        device: ``auto`` (CUDA where there is a device), ``cpu``, ``cuda`` or ``cuda:N``.
        graph: Replay CUDA graphs; False enqueues kernel by kernel.

    Attributes:
        plan_note: A sentence on why ``plan_path`` is not used, or "".

    Raises:
        ConfigError: If the weights belong to another model, the device is unusable, or the
            precision needs a CUDA device and there is none.
    """

    def __init__(
        self,
        config: CameraConfig,
        weights: CameraWeights | None = None,
        device: str | torch.device = "auto",
        *,
        graph: bool = True,
    ) -> None:
        weights = weights or untrained_camera_weights(config.model, config.seed)
        weights.require(config.model)
        self.config = config
        self.weights = weights
        self.device = device_named(device)
        if config.precision != "fp32" and self.device.type != "cuda":
            raise ConfigError(
                f"Parameter 'precision' '{config.precision}' needs a CUDA device, got "
                f"'{self.device}'; use 'fp32'."
            )
        self.dtype = DTYPES[config.precision]
        self.network = weights.network()
        fold_norms(self.network)
        layout = LAYOUTS[config.precision] if self.device.type == "cuda" else torch.channels_last
        self.network.to(self.device, self.dtype, memory_format=layout)
        self._graph = graph
        self._stages = CameraStages(
            config, self.network, self.device, self.dtype, layout, graph=graph
        )
        self.plan_note = self._stages.pool.plan_note
        self._decoder = CenterDecoder(config, Ops.for_device("cpu").rotated_nms)
        self._known: dict[str, Calibration] = {}
        self._rig: Rig | None = None
        self._sight: tuple[Rig, bytes, Sight] | None = None
        self.map_builds = 0
        """Times that the scatter map was built, for a first calibration or a changed one."""

    @property
    def graph_note(self) -> str:
        """A sentence on why frames are not replayed from CUDA graphs, though they should, or ""."""
        return self._stages.note

    def reconfigured(self, config: CameraConfig) -> CameraPipeline:
        """Return a pipeline with another configuration of the same model.

        Where cameras, model, precision and Plan stay, it shares weights and scatter map with this
        one, so that changing a threshold costs nothing; the two must not run at the same time.
        """
        settings = [(c.model, c.cameras, c.precision, c.plan_path) for c in (config, self.config)]
        if settings[0] != settings[1]:
            return CameraPipeline(config, self.weights, self.device, graph=self._graph)
        other = copy.copy(self)
        other.config = config
        other._decoder = CenterDecoder(config, Ops.for_device("cpu").rotated_nms)
        return other

    def warm_up(self) -> None:
        """Look once at black images, so that the first frame is hardly slower than the next.

        They have the size of the network input: how large those of the cameras are is known with
        their first messages. So the first frame takes memory for images and builds its own map.
        """
        other = copy.copy(self)  # so that the cameras made up here stay unknown
        other._known, other._rig = {}, None
        other.process(_black_frames(self.config), with_fingerprint=True)

    @torch.no_grad()
    def process(
        self, frames: Sequence[CameraFrame], *, with_fingerprint: bool = False
    ) -> Detections:
        """Read the bird's-eye view off the images of one instant.

        A camera without a frame contributes nothing, and so does one whose frame cannot be used;
        the report names both. Its cells keep what other cameras see of them.

        Args:
            frames: At most one frame a camera, in any order, decoded and undistorted; frames of
                cameras that the configuration does not name are ignored and reported.
            with_fingerprint: Put CRC-32 numbers of network input, layers and boxes into the report.

        Returns:
            Boxes on the CPU in the ego frame (none where the weights have no detection head), and
            ``bev``: the probability of every segmentation layer, the score of every class as
            ``heat_<class>``, both NaN where no present camera sees the cell, and the number of
            those cameras as ``cameras``.

        Raises:
            InvalidFrame: If two frames are of the same camera.
        """
        clock = StageClock(self.device)
        present, notes = self._by_camera(frames)
        has_image = np.array([frame is not None for frame in present])

        # Resize, crop and normalise; missing cameras are black and weigh nothing.
        self._stages.fit(present, has_image, clock.lap)

        # Where every frustum point lies; kept until a calibration changes.
        rig, changed = self._latest_rig()
        self._stages.use(rig.scatter_map)
        sight = self._sight_of(rig, has_image)
        clock.lap("maps")

        # Depth and features of every pixel, their products in every cell, what that shows.
        if has_image.any():
            self._stages.run(clock.lap)

        # Probabilities as layers, boxes without overlaps.
        bev, bad_cells = self._layers(sight, has_image)
        found, dropped = self._boxes(sight, has_image)
        dropped = {"non_finite_cells": bad_cells, **dropped}
        clock.lap("postprocess")

        report = FrameReport(
            stage_ms=clock.stage_ms,
            dropped={**_camera_counts(notes), **dropped},
            notes=self._notes(notes, dropped, has_image, changed),
            fingerprint=_fingerprint(self._stages.batch, bev, found) if with_fingerprint else {},
        )
        names = self.config.model.network.class_names
        return Detections(found.boxes, found.scores, found.labels, names, report, bev)

    def _by_camera(
        self, frames: Sequence[CameraFrame]
    ) -> tuple[list[CameraFrame | None], list[str]]:
        """Return one usable frame or None a camera, and notes about all others."""
        by_name: dict[str, CameraFrame] = {}
        for frame in frames:
            if frame.name in by_name:
                raise InvalidFrame(
                    "Two frames of one instant are of the same camera; pass the newer one.",
                    "name",
                    frame.name,
                    "every camera once",
                    code="camera_twice",
                )
            by_name[frame.name] = frame
        present: list[CameraFrame | None] = []
        notes: list[str] = []
        for name in self.config.cameras:
            frame_or_none = by_name.pop(name, None)
            if frame_or_none is None:
                notes.append(f"camera_missing:{name}")
            else:
                try:
                    self._check(frame_or_none)
                except InvalidFrame as error:
                    notes.append(f"camera_rejected:{name}:{error.code}")
                    frame_or_none = None
            present.append(frame_or_none)
        return present, notes + [f"camera_unknown:{name}" for name in by_name]

    def _check(self, frame: CameraFrame) -> None:
        """Check a frame; take its calibration if that is another one than before."""
        check_image(frame)
        known = self._known.get(frame.name)
        if known is None or known.given != given_by(frame):
            check_calibration(frame)
            self._known[frame.name] = Calibration.of(frame, self.config.model)

    def _latest_rig(self) -> tuple[Rig, bool]:
        """Return the rig of the last calibrations, and whether one changed that was known.

        A missing camera keeps its last calibration, so that it can drop out and come back without
        the map being built again.
        """
        calibrations = [self._known.get(name) for name in self.config.cameras]
        key = rig_key(calibrations)
        if self._rig is not None and self._rig.key == key:
            return self._rig, False
        changed = self._rig is not None and any(
            old and old != new for old, new in zip(self._rig.key, key)
        )
        self._rig = Rig.build(calibrations, self.config.model, self.device, self._rig)
        self.map_builds += 1
        return self._rig, changed

    def _sight_of(self, rig: Rig, has_image: npt.NDArray[np.bool_]) -> Sight:
        """Return what these cameras see; kept until others are there."""
        key = (rig, has_image.tobytes())
        if self._sight is None or self._sight[:2] != key:
            self._sight = (*key, rig.sight(has_image))
        return self._sight[2]

    def _layers(self, sight: Sight, has_image: npt.NDArray[np.bool_]) -> tuple[BevGrid, int]:
        """Return every output as a layer, and how many values the network failed to give."""
        grid, network = self.config.model.grid, self.config.model.network
        names = [*network.segmentation, *(f"heat_{name}" for name in network.class_names)]
        if not has_image.any():
            values, bad = np.full((len(names), *sight.counts.shape), np.nan, np.float32), 0
        else:
            made = self._stages.layers()
            bad = int(np.count_nonzero(np.isnan(made)))
            values = made + sight.unknown
        layers = dict(zip(names, values))
        layers[CAMERAS_LAYER] = sight.counts.copy()
        origin_xy = (grid.x_range_m[0], grid.y_range_m[0])
        return BevGrid(layers, grid.resolution_m, origin_xy), bad

    def _boxes(
        self, sight: Sight, has_image: npt.NDArray[np.bool_]
    ) -> tuple[Proposals, Mapping[str, int]]:
        """Return boxes on the CPU, and counts of what was left out by reason."""
        if not has_image.any() or not self._stages.heads:
            nothing = Detections.empty()
            return Proposals(nothing.boxes, nothing.scores, nothing.labels), {}
        proposals, dropped = self._decoder.propose(self._stages.heads)
        found = self._decoder.suppress(proposals)
        boxes, scores, labels = found.boxes, found.scores, found.labels
        blind = sight.lost[self._cells_of(boxes)]  # the network guesses there
        kept = ~torch.from_numpy(blind)
        dropped["boxes_of_missing_cameras"] = int(blind.sum())
        return Proposals(boxes[kept], scores[kept], labels[kept]), dropped

    def _cells_of(self, boxes: torch.Tensor) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return row and column of each centre, the nearest ones for centres beside the grid."""
        grid = self.config.model.grid
        _, rows, cols = grid.shape_zyx
        row, col = (
            np.floor((boxes[:, axis].numpy() - low) / grid.resolution_m).astype(np.int64)
            for axis, low in ((1, grid.y_range_m[0]), (0, grid.x_range_m[0]))
        )
        return row.clip(0, rows - 1), col.clip(0, cols - 1)

    def _notes(
        self,
        cameras: Sequence[str],
        dropped: Mapping[str, int],
        has_image: npt.NDArray[np.bool_],
        changed: bool,
    ) -> tuple[str, ...]:
        """Return the short keys of everything about this frame that a person should know."""
        notes = {
            "untrained_weights": not self.weights.trained,
            "plan_not_used": self.plan_note != "",
            "graph_not_used": self.graph_note != "",
            "no_cameras": not has_image.any(),
            "calibration_changed": changed,
            "top_k_reached": dropped.get("over_top_k_candidates", 0) > 0,
            "faulty_head_output": any(dropped.get(fault, 0) for fault in _FAULTS),
        }
        return (*(key for key, present in notes.items() if present), *cameras)


def _black_frames(config: CameraConfig) -> list[CameraFrame]:
    """Return one black image of every camera, all of them at the ego origin and looking ahead."""
    height, width = config.model.image.size_hw
    T_ego_camera = np.zeros((4, 4))
    T_ego_camera[[0, 1, 2, 3], [2, 0, 1, 3]] = [1.0, -1.0, -1.0, 1.0]  # from right, down, forward
    K = np.array([[width / 2, 0.0, width / 2], [0.0, width / 2, height / 2], [0.0, 0.0, 1.0]])
    return [
        CameraFrame(
            name=name,
            stamp_ns=0,
            frame_id="",
            image=np.zeros((height, width, 3), np.uint8),
            encoded=None,
            format="",
            K=K,
            D=np.zeros(0),
            distortion_model="plumb_bob",
            size_wh=(width, height),
            T_ego_camera=T_ego_camera,
        )
        for name in config.cameras
    ]


def _fingerprint(batch: torch.Tensor, bev: BevGrid, found: Proposals) -> dict[str, int]:
    return {
        "images": crc32(batch),
        "bev": crc32(*(torch.from_numpy(layer) for layer in bev.layers.values())),
        "detections": crc32(found.boxes, found.scores, found.labels),
    }


def _camera_counts(notes: Sequence[str]) -> dict[str, int]:
    kinds = ("missing", "rejected", "unknown")
    return {
        f"{kind}_cameras": sum(note.startswith(f"camera_{kind}:") for note in notes)
        for kind in kinds
    }
