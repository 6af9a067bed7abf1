"""Rows of the bird's-eye view with heads over them, run by the kernels and by the reference."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import torch

from driveRT_ros.core.back_end import Found
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.front_end import FrontResult
from driveRT_ros.core.gpu import heads as heads_module
from driveRT_ros.core.nms import rotated_nms
from driveRT_ros.core.sparse_types import SparseTensor
from driveRT_ros.models.head import Heads
from driveRT_ros.models.voxelnext import untrained_weights
from test.support import engine

CAPACITY = 400
COUNTS = 3  # words that something else puts before the result
GRID_YX = (23, 19)
HEADS = ("car", "truck,bus", "walker,rider,cone")


def config(width: int = 16, heads: tuple[str, ...] = HEADS, **post: object) -> LidarConfig:
    """Return small heads that let about half of all values pass."""
    model = {"channels": [16, 16, 16, width, width, width], "heads": list(heads)}
    post = {"score_thresholds": [0.5], "iou_nms_threshold": 0.05} | post
    return LidarConfig.from_dict({"model": model, "post_process_params": post})


def tensors_of(settings: LidarConfig, seed: int = 5) -> dict[str, torch.Tensor]:
    """Return random weights whose heat lies on both sides of 0 and whose boxes overlap."""
    tensors = untrained_weights(settings.model, seed).to("cpu", torch.float32)
    for name, tensor in tensors.items():
        if name.endswith("hm.out.weight"):
            tensors[name] = 0.4 * (tensor - tensor.mean())
        elif name.endswith("hm.out.bias"):
            tensors[name] = torch.zeros_like(tensor)
        elif name.endswith("out.weight"):
            tensors[name] = 4 * tensor
        elif name.endswith("dim.out.bias"):
            tensors[name] = torch.tensor([4.0, 2.0, 1.5]).log()
    return tensors


def rows_of(count: int, width: int = 16, seed: int = 0) -> SparseTensor:
    """Return rows in distinct cells, in no order, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    cells = torch.randperm(GRID_YX[0] * GRID_YX[1], generator=generator)[:count]
    coords = torch.zeros(count, 4, dtype=torch.int32)
    coords[:, 2], coords[:, 3] = cells // GRID_YX[1], cells % GRID_YX[1]
    features = torch.randn(count, width, generator=generator).relu()
    return SparseTensor(features, coords, (1, *GRID_YX))


class HeadsCase:
    """The heads of the engine over buffers of their own.

    Args:
        backend: Where the kernels run.
        monkeypatch: Puts the shim in place of the GPU, where that is the backend.
        settings: Classes, thresholds and limits.
        tensors: Weights on the CPU.
        arithmetic: Of the layer before.
        capability: Of the GPU that the shim stands for.
    """

    def __init__(
        self, backend, monkeypatch, settings, tensors, arithmetic="FFMA", capability=(9, 0)
    ):
        device, capacity = backend.device, CAPACITY
        if backend.name == "cpu-shim":
            engine.put_on_the_shim(monkeypatch, capability)
            monkeypatch.setattr(engine, "BACKEND", backend)
        width = settings.model.channels[-1]
        self.features = torch.full((capacity, width), torch.nan, device=device)
        shape = SimpleNamespace(row_capacity=capacity, shape_zyx=(1, *GRID_YX))
        self.level = SimpleNamespace(
            shape=shape,
            coords_zyx=torch.full((capacity, 3), -1, dtype=torch.int32, device=device),
            counts=torch.zeros(2, dtype=torch.int32, device=device),
        )
        on_device = {name: tensor.to(device) for name, tensor in tensors.items()}
        self.heads = heads_module.SparseHeads(
            settings, on_device, self.features, self.level, arithmetic, before=COUNTS
        )

    def put(self, bev: SparseTensor, needed: int | None = None) -> None:
        """Put rows in place, as the backbone would; what lies behind them is of another frame."""
        rows = len(bev.features)
        self.features.fill_(7.0)
        self.level.coords_zyx.fill_(3)
        self.features[:rows] = bev.features.to(self.features.device)
        self.level.coords_zyx[:rows] = bev.coords_bzyx[:, 1:].to(self.features.device)
        self.level.counts[1] = rows if needed is None else needed

    def run(self):
        """Enqueue everything for the rows in place."""
        self.heads.run_branches()
        self.heads.suppress()

    def read(self, rows: int):
        """Return what the kernels found in so many rows."""
        self.heads.copy.enqueue()
        self.heads.copy.wait()
        return self.heads.found(rows)

    def find(self, bev: SparseTensor):
        """Return what the kernels find in these rows."""
        self.put(bev)
        self.run()
        return self.read(len(bev.features))


def expected(settings, tensors, bev: SparseTensor, heat=None):
    """Return what the reference finds, and its heat.

    Args:
        settings: Classes, thresholds and limits.
        tensors: Weights on the CPU.
        bev: The rows.
        heat: Take this for the heat; where scores are close, its last bit decides the order.
    """
    heads = Heads(settings, tensors, rotated_nms)
    own = heads.heat(bev.features)
    proposals, dropped = heads.propose(bev, own if heat is None else heat)
    found = heads.suppress(proposals)
    faulty = [dropped[r] for r in ("non_finite_boxes", "implausible_boxes", "out_of_range_boxes")]
    decoded = sum(len(p.boxes) for p in proposals) + sum(faulty)
    return Found(found.boxes, found.scores, found.labels, decoded, dropped, lambda: own)


def shuffled(bev: SparseTensor, seed: int) -> SparseTensor:
    """Return the same rows in another order."""
    order = torch.randperm(len(bev.features), generator=torch.Generator().manual_seed(seed))
    return dataclasses.replace(
        bev, features=bev.features[order], coords_bzyx=bev.coords_bzyx[order]
    )


def front_result(bev: SparseTensor, **overflow: tuple[int, int]) -> FrontResult:
    """Return a front end's result that holds these rows alone."""
    return FrontResult(bev, bev.coords_bzyx[:0, 1:], bev.features[:0], (), {}, overflow)
