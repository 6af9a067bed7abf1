"""The camera model as a module that learns, and what a wrong answer costs it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from driveRT_ros.core.camera_config import CameraModelConfig, DepthConfig
from driveRT_ros.core.camera_images import Normalizer
from driveRT_ros.models.lss import Lss
from driveRT_ros.models.lss_weights import CameraWeights, expected_shapes
from driveRT_ros.train.camera_config import CameraLossConfig
from driveRT_ros.train.camera_data import CameraBatch
from driveRT_ros.train.camera_frames import DEPTH_STEP_M, NO_DEPTH
from driveRT_ros.train.camera_pool import BatchMap, batch_pool


@dataclass(frozen=True, eq=False)
class CameraPredictions:
    """What the network says of a batch.

    Args:
        segmentation: (B, layers, Y, X) logits.
        depth: (B, N, D, H/16, W/16) probability of each depth.
    """

    segmentation: torch.Tensor
    depth: torch.Tensor


class LssModule(Lss):
    """The whole network with pooling; tensors have the names of the network that infers.

    Args:
        weights: To start with.
        momentum: Share of a batch in the running statistics of batch norm.
    """

    def __init__(self, weights: CameraWeights, momentum: float) -> None:
        with torch.device("meta"):  # no random number is drawn
            super().__init__(weights.config)
        self.load_state_dict(weights.network().state_dict(), assign=True)
        self.requires_grad_(True)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = momentum

    def forward(self, images: torch.Tensor, found: BatchMap) -> CameraPredictions:
        """Return all outputs of a batch.

        Args:
            images: (B, N, 3, H, W) normalised.
            found: Where the points of these frames fall.
        """
        depth, context = self.lift(images)
        # Sums of many products, as exact as those of the network that infers.
        with torch.autocast(images.device.type, enabled=False):
            depth, context = depth.float(), context.float()
            pooled = batch_pool(depth, context, found, self.config.grid.shape_zyx)
        return CameraPredictions(self.read(pooled).segmentation.float(), depth)


def normalized(batch: CameraBatch, model: CameraModelConfig) -> torch.Tensor:
    """Return (B, N, 3, H, W) float32 network inputs in the light of the batch."""
    normalize = Normalizer(model.image, batch.images.device, torch.float32)
    colours = normalize(batch.images.flatten(0, 1))[0].unflatten(0, batch.images.shape[:2])
    factor, offset = batch.light[..., None, None, None].unbind(2)
    return colours * factor + offset


def bits(cells: torch.Tensor, layers: int) -> torch.Tensor:
    """Return (B, layers, Y, X) float32 0 or 1 of (B, Y, X) uint8; bit k belongs to layer k."""
    return torch.stack([(cells >> k & 1).float() for k in range(layers)], dim=1)


def segmentation_loss(
    logits: torch.Tensor, batch: CameraBatch, names: tuple[str, ...], rules: CameraLossConfig
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return cross-entropy and overlap of all layers, and for each its loss and IoU.

    Cells of hidden objects count neither way: nobody could know of them.

    Args:
        logits: (B, layers, Y, X) float32.
        batch: With the truth.
        names: Of the layers.
        rules: Weights.

    Source: the overlap term is the soft Jaccard loss of Rahman and Wang, ISVC 2016.
    """
    covered, counts = (bits(batch.covered, len(names)), 1.0 - bits(batch.hidden, len(names)))
    positive = logits.new_tensor(rules.positive_weights).view(-1, 1, 1)
    cost = functional.binary_cross_entropy_with_logits(
        logits, covered, counts, pos_weight=positive, reduction="none"
    )
    entropy = cost.mean(dim=(0, 2, 3))
    likely, truth = logits.sigmoid() * counts, covered * counts
    shared = (likely * truth).sum(dim=(0, 2, 3))
    soft = shared / ((likely + truth).sum(dim=(0, 2, 3)) - shared).clamp_min(1e-6)
    each = entropy + rules.overlap_weight * (1.0 - soft)
    with torch.no_grad():
        found = (logits > 0).float() * counts
        both = (found * truth).sum(dim=(0, 2, 3))
        iou = both / ((found + truth).sum(dim=(0, 2, 3)) - both).clamp_min(1.0)
    parts = {name: value.detach() for name, value in zip(names, each)}
    parts |= {f"iou_{name}": value for name, value in zip(names, iou)}
    return (each * logits.new_tensor(rules.layer_weights)).sum(), parts


def depth_truth(
    depth: torch.Tensor, config: DepthConfig, shape_hw: tuple[int, int]
) -> torch.Tensor:
    """Return how much of each feature pixel lies at each depth.

    Args:
        depth: (B, N, h, w) uint8 packed depths.
        config: The depths of the model.
        shape_hw: Feature map.

    Returns:
        (B, N, D, H, W) float32 shares of the pixels; they sum to less than 1 where some show sky,
        or lie nearer or farther than the depths.
    """
    rows, cols = shape_hw
    patches = depth.unflatten(3, (cols, -1)).unflatten(2, (rows, -1))  # B, N, H, h, W, w
    patches = patches.permute(0, 1, 2, 4, 3, 5).flatten(4)
    index = ((patches * DEPTH_STEP_M - config.min_m) / config.step_m).round().long()
    known = (patches != NO_DEPTH) & (index >= 0) & (index < config.bins)
    index = torch.where(known, index, config.bins)
    counts = torch.zeros(*index.shape[:4], config.bins + 1, device=depth.device)
    # Whole numbers: any order of adding gives the same.
    counts.scatter_add_(4, index, torch.ones_like(index, dtype=torch.float32))
    return counts[..., : config.bins].movedim(4, 2) / patches.shape[4]


def depth_loss(predicted: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy over pixels of known depth.

    Args:
        predicted: (B, N, D, H, W) probabilities.
        truth: (B, N, D, H, W) shares.

    Source: Li et al., "BEVDepth", AAAI 2023, with rendered depths in place of LiDAR points.
    """
    cost = -(truth * predicted.clamp_min(1e-6).log()).sum()
    return cost / truth.sum().clamp_min(1.0)


def export_camera_weights(
    tensors: dict[str, torch.Tensor], config: CameraModelConfig, source: str
) -> CameraWeights:
    """Return what the camera node runs: convolutions in half precision, all else in float32.

    Args:
        tensors: By the names of the network.
        config: The model.
        source: Where the weights come from, for reports.
    """
    kept = {}
    for name, shape in expected_shapes(config).items():
        dtype = torch.float16 if len(shape) == 4 else torch.float32
        # Copied also where nothing changes: the module may go on to other values in place.
        kept[name] = tensors[name].detach().to("cpu", dtype, copy=True)
    return CameraWeights(config, kept, trained=True, source=source)
