"""What a wrong answer costs: focal loss for the heat, L1 for the boxes."""

from __future__ import annotations

import torch
from torch.nn import functional

from driveRT_ros.core.config import ModelConfig
from driveRT_ros.models.graph import BRANCHES
from driveRT_ros.train.config import LossConfig
from driveRT_ros.train.constants import constant
from driveRT_ros.train.module import Predictions
from driveRT_ros.train.targets import CODE_DIM, Targets

PARTS = ("heat", *(name for name, _ in BRANCHES))


def focal_loss(logits: torch.Tensor, heat: torch.Tensor, of_head: torch.Tensor) -> torch.Tensor:
    """Return the focal loss over all values of each head, per object.

    Where the heat is 1: ``-(1 - p)^2 log p``; elsewhere ``-(1 - heat)^4 p^2 log(1 - p)``; the sum
    is divided by the number of ones, at least 1.

    Args:
        logits: (N, C).
        heat: (N, C) in [0, 1].
        of_head: (H, C) bool; the columns of each head.

    Returns:
        (H,).

    Source: Lin et al., "Focal loss for dense object detection", ICCV 2017, in the form of Law and
    Deng, "CornerNet", ECCV 2018.
    """
    p = torch.sigmoid(logits)
    # log p and log(1 - p) from the logits: exact where p itself rounds to 0 or 1.
    at_object = (heat == 1).to(logits.dtype)
    hit = -((1 - p) ** 2) * functional.logsigmoid(logits) * at_object
    miss = -((1 - heat) ** 4) * p**2 * functional.logsigmoid(-logits)
    cost, count = (hit + miss).sum(dim=0), at_object.sum(dim=0)
    # Not a product: in lower precision it would round what it adds up.
    cost, count = (torch.where(of_head, value, 0).sum(dim=1) for value in (cost, count))
    return cost / count.clamp(min=1)


def box_losses(
    codes: torch.Tensor,
    wanted: torch.Tensor,
    code_weights: torch.Tensor,
    of_head: torch.Tensor,
) -> torch.Tensor:
    """Return the weighted L1 loss of each of the ten numbers of each head, per object.

    Args:
        codes: (P, 10).
        wanted: (P, 10); NaN is not compared.
        code_weights: (10,).
        of_head: (P, H) bool; the objects of each head.

    Returns:
        (H, 10).
    """
    known = torch.isfinite(wanted)
    error = torch.where(known, codes - torch.where(known, wanted, 0), 0).abs()
    total = torch.where(of_head[:, :, None], error[:, None, :], 0).sum(dim=0)
    return total * code_weights / of_head.sum(dim=0).clamp(min=1)[:, None]


def detection_loss(
    predictions: Predictions, targets: Targets, model: ModelConfig, config: LossConfig
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss of a batch, and its parts by name for the log; nothing waits for a GPU.

    Args:
        predictions: Of all heads.
        targets: For the same rows.
        model: Heads.
        config: Weights.

    Returns:
        The sum over the heads, and for each of :data:`PARTS` the sum over the heads before the
        weights of heat and box.
    """
    heads = len(model.classes_per_head)
    logits = torch.cat([branches["hm"] for branches in predictions.branches], dim=1)
    said = [branches[name] for branches in predictions.branches for name, _ in BRANCHES]
    codes = torch.cat(said, dim=1).view(-1, CODE_DIM)  # row after row, its heads one by one
    numbers = tuple(head for head, of in enumerate(model.classes_per_head) for _ in of)
    head_of = constant(numbers, torch.int64, logits.device)
    each = torch.arange(heads, device=logits.device)
    heat = focal_loss(logits, targets.heat, head_of == each[:, None])
    head = head_of[targets.labels]
    # Not index_select: its gradient would add rows that repeat in an order of their own each time.
    box = box_losses(
        codes[targets.rows * heads + head],
        targets.codes.to(codes.dtype),
        constant(config.code_weights, codes.dtype, codes.device),
        head[:, None] == each,
    )
    heat, parts = heat.sum(), box.detach().sum(dim=0).split([size for _, size in BRANCHES])
    named = {name: part.sum() for (name, _), part in zip(BRANCHES, parts)}
    total = config.heat_weight * heat + config.box_weight * box.sum()
    return total, {"heat": heat.detach(), **named}
