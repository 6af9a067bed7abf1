"""The detection heads on the GPU, from rows of the bird's-eye view to boxes, without the host.

Heat at every row, the regression branches at the chosen rows alone, suppression head by head: five
launches (six with ``max_pool``) over buffers of fixed size, with every count on the device, so that
a frame can go on as part of a CUDA graph. There is room for every value that could pass its
threshold; only ``top_k`` and ``max_boxes_per_head`` cut anything off, as they do in the reference.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from driveRT_ros.core.back_end import Found
from driveRT_ros.core.bev_grid import HEAD_STRIDE
from driveRT_ros.core.boxes import BOX_DIM
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.cuda import Kernel, Launch
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.gpu.arena import Arena
from driveRT_ros.core.gpu.domains import BEV_DILATED, level_shapes
from driveRT_ros.core.gpu.frame_maps import LevelBuffers
from driveRT_ros.core.gpu.head_tactics import EXACT, head_tactic
from driveRT_ros.core.gpu.transfers import HostCopy
from driveRT_ros.core.kernel_args import pack_structs, struct_dtype, struct_value
from driveRT_ros.core.reference.decode import MAX_SIZE_M, MAX_SPEED_MPS
from driveRT_ros.core.tactics import ConvTactic
from driveRT_ros.models.graph import BRANCHES

CANDIDATES = 512
"""Candidates of a head that one block sorts and compares; kernels/heads.cuh."""
MAX_VALUES = 2**26
"""Heat values of a frame: each may need the 16 bytes of a candidate."""
SUPPRESS_SHARED_BYTES = 57_344  # kernels/nms.cu

_THREADS, _SORTERS = 256, 512
_ALIGN_WORDS = 64
_OUTPUTS = sum(channels for _, channels in BRANCHES)
_FAULTS = ("non_finite_boxes", "implausible_boxes", "out_of_range_boxes")


def unsupported(config: LidarConfig, arithmetic: str, capability: tuple[int, int]) -> str:
    """Return why these kernels cannot run a model, or an empty string where they can.

    Args:
        config: Channels, heads, grid and ``top_k``.
        arithmetic: Of the layer whose rows the heads read.
        capability: CUDA compute capability.
    """
    width, top_k = config.model.channels[-1], config.post_process_params.top_k
    if head_tactic(width, arithmetic, capability) is None:
        return f"{width} channels; the kernels know {sorted(EXACT)}"
    if top_k > CANDIDATES:
        return f"'top_k' {top_k}; a block has room for {CANDIDATES}"
    rows, classes = level_shapes(config)[BEV_DILATED].row_capacity, len(config.model.class_names)
    if rows * classes > MAX_VALUES:
        return f"{rows} cells of {classes} classes; there is room for {MAX_VALUES} values"
    return ""


class SparseHeads:
    """All heads over rows that another part of the engine keeps in place.

    Args:
        config: Classes, thresholds and grid; :func:`unsupported` must have nothing against it.
        tensors: ``head<i>.<branch>.<layer>.weight`` and ``.bias``, float32 on the device.
        features: (capacity, C) float32, rewritten by every frame.
        level: Coordinates and number of these rows.
        arithmetic: Of the layer that made them; see :func:`head_tactic`.
        before: Words that the copy to the host shall bring along; they begin a frame at zero.

    Attributes:
        before: These words, (before,) int32 on the device.
        copy: Brings them and the result to the host.
    """

    def __init__(
        self,
        config: LidarConfig,
        tensors: Mapping[str, torch.Tensor],
        features: torch.Tensor,
        level: LevelBuffers,
        arithmetic: str = "FFMA",
        before: int = 0,
    ) -> None:
        self._config, self._level, self.features = config, level, features
        self._tensors = tensors
        self._classes = [len(names) for names in config.model.classes_per_head]
        self._first = np.cumsum([0, *self._classes[:-1]]).tolist()
        self._rows = level.shape.row_capacity
        self._device = features.device
        self._tactic = _tactic_of(features, arithmetic)
        self._blocks = torch.cuda.get_device_properties(self._device).multi_processor_count
        self._kept: list[torch.Tensor] = []  # kernels hold addresses alone
        heads, classes = len(self._classes), sum(self._classes)
        boxes = heads * config.post_process_params.max_boxes_per_head
        self._status_words = heads * struct_dtype("heads.cuh", "HeadStatus").itemsize // 4
        first = -(-before // _ALIGN_WORDS) * _ALIGN_WORDS
        sizes = [first, self._status_words, boxes * BOX_DIM, boxes, boxes]
        self._arena = Arena(self._device, 4 * sum(sizes))
        # What the host wants of a frame lies together: one copy brings it.
        result = self._arena.zeroed(sum(sizes))
        self.copy = HostCopy(result)
        self._on_host = np.split(self.copy.words, np.cumsum(sizes)[:-1])[1:]
        self._status_names = struct_dtype("heads.cuh", "HeadStatus").names or ()
        first_words, self._status, *self._found = result.split(sizes)
        self.before = first_words[:before]
        new = self._arena.empty
        self._heat = new(self._rows, classes, dtype=torch.float32)
        self._chosen, self._label = new(2, heads, CANDIDATES).unbind()
        self._score = new(heads, CANDIDATES, dtype=torch.float32)
        self._outputs = new(heads, CANDIDATES, _OUTPUTS, dtype=torch.float32)
        self._head_launches = [
            self._branches(self._heat_branches(), self._rows, first=True),
            *self._selection(),
            self._branches(self._box_branches(), config.post_process_params.top_k),
        ]
        self._last_launch = self._suppression()

    def run_branches(self) -> None:
        """Enqueue, on torch's current stream, all up to the outputs of the chosen rows."""
        self._arena.clear()
        for launch in self._head_launches:
            launch()

    def suppress(self) -> None:
        """Enqueue decoding and suppression of the chosen rows there."""
        self._last_launch()

    def found(self, rows: int) -> Found:
        """Return the boxes that :attr:`copy` brought.

        Args:
            rows: Rows of that frame.
        """
        heads, limit = len(self._classes), self._config.post_process_params.max_boxes_per_head
        status, boxes, scores, labels = self._on_host
        counts, names = status.reshape(heads, -1), self._status_names
        total = dict(zip(names, counts.sum(axis=0).tolist()))
        kept = np.arange(limit) < counts[:, names.index("kept"), None]
        shape = (heads, limit)
        return Found(
            boxes=torch.from_numpy(boxes.view(np.float32).reshape(*shape, BOX_DIM)[kept]),
            scores=torch.from_numpy(scores.view(np.float32).reshape(shape)[kept]),
            labels=torch.from_numpy(labels.reshape(shape)[kept].astype(np.int64)),
            decoded=total["chosen"],
            dropped={
                "non_finite_heat": total["non_finite_heat"],
                "over_top_k_candidates": total["candidates"] - total["chosen"],
                **{reason: total[reason] for reason in _FAULTS},
            },
            heat=lambda: list(self._heat[:rows].split(self._classes, dim=1)),
        )

    # ---- made once --------------------------------------------------------------------------

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        self._kept.append(tensor.contiguous())
        return self._kept[-1]

    def _layers(self, branch: str) -> dict[str, object]:
        """Return the weights of one branch."""
        hidden, scale = self._tactic.pack(self._tensors[f"{branch}.hidden.weight"])
        names = {"hidden_bias": "hidden.bias", "weight": "out.weight", "bias": "out.bias"}
        plain = {k: self._keep(self._tensors[f"{branch}.{name}"]) for k, name in names.items()}
        return {"hidden": self._keep(hidden), "scale": 1.0 / scale, **plain}

    def _heat_branches(self) -> list[dict[str, object]]:
        return [
            {
                **self._layers(f"head{head}.hm"),
                **{"source": None, "count": self._level.counts[1:], "out": self._heat[0, first:]},
                **{"capacity": self._rows, "outputs": classes, "stride": self._heat.shape[1]},
            }
            for head, (first, classes) in enumerate(zip(self._first, self._classes))
        ]

    def _box_branches(self) -> list[dict[str, object]]:
        chosen = (struct_dtype("heads.cuh", "HeadStatus").names or ()).index("chosen")
        status = self._status.view(len(self._classes), -1)
        rows = []
        for head in range(len(self._classes)):
            first = 0
            for name, channels in BRANCHES:
                rows.append(
                    {
                        **self._layers(f"head{head}.{name}"),
                        **{"source": self._chosen[head], "count": status[head, chosen:]},
                        **{"out": self._outputs[head, 0, first:], "capacity": CANDIDATES},
                        **{"outputs": channels, "stride": _OUTPUTS},
                    }
                )
                first += channels
        return rows

    def _branches(
        self, branches: list[dict[str, object]], rows: int, *, first: bool = False
    ) -> Launch:
        """Bind one launch of many branches; the first of a frame follows no kernel of ours."""
        tactic, width = self._tactic, self.features.shape[1]
        kernel = Kernel(
            tactic.kernel, "run_branches", tactic.defines(width, width, 1),
            shared_bytes=tactic.shared_bytes(width, width, 1), device=self._device,
        )  # fmt: skip
        resident = -(-self._blocks * tactic.min_blocks // len(branches))
        grid = (min(-(-rows // tactic.tile_rows), resident), len(branches))
        packed = self._keep(pack_structs("branches.cuh", "HeadBranch", branches, self._device))
        args = (self.features, packed)
        return kernel.bind(grid, tactic.threads(width), *args, dependent=not first)

    def _selection(self) -> list[Launch]:
        post, model = self._config.post_process_params, self._config.model
        limits = post.score_thresholds
        if len(limits) == 1:
            limits *= len(model.class_names)
        head_of = [head for head, classes in enumerate(self._classes) for _ in range(classes)]
        values = self._rows * len(limits)
        _, ny, nx = self._level.shape.shape_zyx
        new = {"dtype": torch.int32, "device": self._device}
        fields = {
            "heat": self._heat, "coords": self._level.coords_zyx, "count": self._level.counts[1:],
            "limit": self._keep(torch.tensor(limits, dtype=torch.float32, device=self._device)),
            "head": self._keep(torch.tensor(head_of, **new)),
            "first": self._keep(torch.tensor(self._first, **new)),
            "keys": self._arena.empty(values, dtype=torch.int64),
            "rows": self._arena.empty(values), "status": self._status, "chosen": self._chosen,
            "label": self._label, "score": self._score, "row_of": self._row_of(ny * nx),
            "row_capacity": self._rows,
            "classes": len(limits), "nx": nx, "cells": ny * nx, "top_k": post.top_k,
        }  # fmt: skip
        value = struct_value("select.cu", "Selection", fields)
        blocks = min(-(-values // _THREADS), 8 * self._blocks)
        stages = [
            ("collect_candidates", blocks, _THREADS),
            ("choose_candidates", len(self._classes), _SORTERS),
        ]
        if post.selection == "max_pool":
            stages.insert(0, ("mark_cells", -(-self._rows // _THREADS), _THREADS))
        launches = []
        for name, grid, block in stages:
            kernel = Kernel("select", name, device=self._device)
            launches.append(kernel.bind(grid, block, value, dependent=True))
        return launches

    def _row_of(self, cells: int) -> torch.Tensor | None:
        """Return room for the row of each cell where neighbours are to be looked up."""
        if self._config.post_process_params.selection == "nms":
            return None
        return self._keep(torch.zeros(cells, dtype=torch.int32, device=self._device))

    def _suppression(self) -> Launch:
        post, voxels = self._config.post_process_params, self._config.voxelization
        # An IoU is never above 1: peaks all stay.
        iou = post.iou_nms_threshold if post.selection == "nms" else 1.0
        boxes, scores, labels = self._found
        fields = {
            "outputs": self._outputs, "coords": self._level.coords_zyx, "chosen": self._chosen,
            "label": self._label, "score": self._score, "status": self._status, "boxes": boxes,
            "box_score": scores, "box_label": labels, "max_boxes": post.max_boxes_per_head,
            "iou": iou, "stride": HEAD_STRIDE, "max_size": MAX_SIZE_M,
            "max_speed": MAX_SPEED_MPS, "origin": voxels.point_cloud_range[:2],
            "step": voxels.voxel_size[:2], "low": post.center_range[:3],
            "high": post.center_range[3:],
        }  # fmt: skip
        value = struct_value("nms.cu", "Suppression", fields)
        shared = SUPPRESS_SHARED_BYTES
        kernel = Kernel("nms", "suppress_boxes", shared_bytes=shared, device=self._device)
        return kernel.bind(len(self._classes), CANDIDATES, value)


def _tactic_of(features: torch.Tensor, arithmetic: str) -> ConvTactic:
    width = features.shape[1]
    tactic = head_tactic(width, arithmetic, torch.cuda.get_device_capability(features.device))
    if tactic is None:
        raise ConfigError(f"No kernel runs heads of {width} channels; use {sorted(EXACT)}.")
    return tactic
