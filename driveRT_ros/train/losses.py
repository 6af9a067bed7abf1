"""What a wrong answer costs: focal loss for the heat, L1 for the boxes."""

from __future__ import annotations

import torch
from torch.nn import functional

from driveRT_ros.core.config import ModelConfig
from driveRT_ros.models.graph import BRANCHES
from driveRT_ros.train.config import LossConfig
from driveRT_ros.train.module import Predictions
from driveRT_ros.train.targets import Targets

PARTS = ("heat", *(name for name, _ in BRANCHES))


def focal_loss(logits: torch.Tensor, heat: torch.Tensor) -> torch.Tensor:
    """Return the focal loss over all values, per object.

    Where the heat is 1: ``-(1 - p)^2 log p``; elsewhere ``-(1 - heat)^4 p^2 log(1 - p)``; the sum
    is divided by the number of ones, at least 1.

    Args:
        logits: Any shape.
        heat: The same shape, in [0, 1].

    Source: Lin et al., "Focal loss for dense object detection", ICCV 2017, in the form of Law and
    Deng, "CornerNet", ECCV 2018.
    """
    p = torch.sigmoid(logits)
    # log p and log(1 - p) from the logits: exact where p itself rounds to 0 or 1.
    at_object = (heat == 1).to(logits.dtype)
    hit = -((1 - p) ** 2) * functional.logsigmoid(logits) * at_object
    miss = -((1 - heat) ** 4) * p**2 * functional.logsigmoid(-logits)
    return (hit + miss).sum() / at_object.sum().clamp(min=1)


def box_losses(
    codes: torch.Tensor, wanted: torch.Tensor, code_weights: torch.Tensor
) -> torch.Tensor:
    """Return the weighted L1 loss of each of the ten numbers, per object.

    Args:
        codes: (P, 10).
        wanted: (P, 10); NaN is not compared.
        code_weights: (10,).

    Returns:
        (10,).
    """
    known = torch.isfinite(wanted)
    error = torch.where(known, codes - torch.where(known, wanted, 0), 0).abs()
    return error.sum(dim=0) * code_weights / max(len(codes), 1)


def detection_loss(
    predictions: Predictions, targets: Targets, model: ModelConfig, config: LossConfig
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss of a batch, and its parts by name for the log.

    Args:
        predictions: Of all heads.
        targets: For the same rows.
        model: Heads.
        config: Weights.

    Returns:
        The sum over the heads, and for each of :data:`PARTS` the sum over the heads before the
        weights of heat and box.
    """
    parts = {name: predictions.coords_bzyx.new_zeros((), dtype=torch.float32) for name in PARTS}
    code_weights = targets.codes.new_tensor(config.code_weights)
    total = torch.zeros((), device=code_weights.device)
    first = 0
    for branches, classes in zip(predictions.branches, model.classes_per_head):
        inside = (targets.labels >= first) & (targets.labels < first + len(classes))
        mine = inside.nonzero().squeeze(1)
        heat = focal_loss(branches["hm"], targets.heat[:, first : first + len(classes)])
        codes = torch.cat([branches[name] for name, _ in BRANCHES], dim=1)[targets.rows[mine]]
        box = box_losses(codes, targets.codes[mine].to(codes.dtype), code_weights.to(codes.dtype))
        total = total + config.heat_weight * heat + config.box_weight * box.sum()
        parts["heat"] = parts["heat"] + heat.detach()
        for (name, _), loss in zip(BRANCHES, box.detach().split([n for _, n in BRANCHES])):
            parts[name] = parts[name] + loss.sum()
        first += len(classes)
    return total, parts
