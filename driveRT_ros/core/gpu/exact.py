"""What the layers of one domain should give, in float64, in the row order of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from driveRT_ros.core.errors import DeviceError
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.reference.coordmap import cell_keys
from driveRT_ros.models.graph import Graph, LayerSpec

Triple = tuple[int, int, int]
BEV = "bev"
"""Name of the merged rows among the layers."""


@dataclass(frozen=True)
class DomainLayers:
    """The layers that share a coordinate map, and where their input comes from.

    Args:
        layers: In the order of execution.
        source: The layer before the first of them, or :data:`BEV`.
    """

    layers: tuple[LayerSpec, ...]
    source: str


def domain_layers_of(graph: Graph) -> dict[str, DomainLayers]:
    """Return the layers of each domain; the input layer, which has a kernel of its own, is none."""
    found: dict[str, DomainLayers] = {}
    source = graph.levels[0][0].name
    levels = (graph.levels[0][1:], *graph.levels[1:], graph.bev)
    for number, level in enumerate(levels):
        if number == len(levels) - 1:
            source = BEV
        for layer in level:
            before = found.get(layer.map_key, DomainLayers((), source))
            found[layer.map_key] = DomainLayers((*before.layers, layer), before.source)
            source = layer.name
    return found


def exact_outputs(
    domain: DomainLayers,
    x: torch.Tensor,
    in_coords: tuple[torch.Tensor, Triple],
    out_coords: tuple[torch.Tensor, Triple],
    tensors: Mapping[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """Return what each layer should write, computed from the domain's input alone.

    Args:
        domain: Its layers.
        x: (N, C) rows of the source, any floating point type.
        in_coords: (N, 4) int32 b, z, y, x of those rows, and their grid.
        out_coords: (M, 4) rows that the layers write, in their order, and their grid.
        tensors: ``<layer>.weight`` and ``<layer>.bias``.

    Raises:
        DeviceError: If the rows are not those that the convolution makes.
    """
    ops, first = Ops.for_device(x.device), domain.layers[0]
    coords, shape = in_coords
    if first.op == "subm":
        coord_map = ops.submanifold_map(coords, shape, first.kernel_zyx, (1, 1, 1))
    else:
        coord_map = ops.strided_map(
            coords, shape, first.kernel_zyx, first.stride_zyx, first.padding_zyx, (1, 1, 1)
        )
    rows, grid = out_coords
    places = _places(coord_map.out_coords_bzyx, rows, grid, first.map_key)
    made: dict[str, torch.Tensor] = {domain.source: x.double()}
    features = made[domain.source]
    for layer in domain.layers:
        features = made[layer.name] = ops.gather_gemm_scatter(
            features,
            tensors[f"{layer.name}.weight"].double(),
            coord_map,
            bias=tensors[f"{layer.name}.bias"].double(),
            residual=made[layer.residual] if layer.residual else None,
            relu=layer.relu,
        )
    return {layer.name: made[layer.name][places] for layer in domain.layers}


def relative_error(got: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> float:
    """Return the largest error of any layer relative to its largest value; infinite for NaN."""
    worst = 0.0
    for mine, exact in zip(got, want):
        if not len(exact):
            continue
        error = float((mine.double() - exact).abs().max())
        if not error >= 0:  # NaN
            return float("inf")
        worst = max(worst, error / (float(exact.abs().max()) or 1.0))
    return worst


def _places(made: torch.Tensor, rows: torch.Tensor, grid: Triple, name: str) -> torch.Tensor:
    """Return the place of each of ``rows`` among the coordinates that the reference made."""
    ours, theirs = cell_keys(rows, grid), cell_keys(made, grid)
    our_order, their_order = ours.argsort(), theirs.argsort()
    if len(ours) != len(theirs) or not torch.equal(ours[our_order], theirs[their_order]):
        raise DeviceError(
            f"The engine made {len(ours)} rows for domain '{name}', the reference {len(theirs)}, "
            "and they are not the same; nothing can be tuned on wrong coordinates."
        )
    places = torch.empty_like(our_order)
    places[our_order] = their_order
    return places
