"""What a candidate is compared with: the layers of a domain in float64, rows in any order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import DeviceError
from driveRT_ros.core.gpu.exact import BEV, domain_layers_of, exact_outputs, relative_error
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.plan import domain_layers
from driveRT_ros.core.sparse_types import SparseTensor
from driveRT_ros.models.graph import build_graph
from driveRT_ros.models.untrained import untrained_weights
from driveRT_ros.models.voxelnext import MERGE_SCALES, MERGED_LEVELS, Backbone

CONFIG = LidarConfig.from_dict(
    {
        "voxelization.point_cloud_range": [-6.0, -4.8, -5.0, 6.0, 4.8, 3.0],
        "voxelization.voxel_size": [0.15, 0.15, 0.2],
        "model.channels": [8, 8, 16, 16, 16, 16],
    }
)
GRAPH = build_graph(CONFIG.model)


@pytest.fixture(scope="module")
def frame():
    """Return weights, maps and the float64 rows of every layer, of the merge too."""
    rng = np.random.default_rng(0)
    points = np.zeros((3000, 5), np.float32)
    points[:, :3] = rng.normal((0, 0, -1), (2, 1.5, 0.5), (3000, 3))
    ops = Ops.for_device("cpu")
    tensors = untrained_weights(CONFIG.model, 0).to("cpu", torch.float64)
    backbone = Backbone(CONFIG.model, tensors, ops)
    voxels = ops.voxelize(torch.from_numpy(points), CONFIG.voxelization)
    maps = backbone.build_maps(voxels.coords_bzyx, CONFIG.voxelization.sparse_shape_zyx)
    rows, x, levels = {}, voxels.features.double(), []
    for number, level in enumerate((*GRAPH.levels, GRAPH.bev)):
        if number == len(GRAPH.levels):
            merged = ops.bev_merge([levels[n - 1] for n in MERGED_LEVELS], MERGE_SCALES)
            x = rows[BEV] = merged.features
        for layer in level:
            x = rows[layer.name] = ops.gather_gemm_scatter(
                x, tensors[f"{layer.name}.weight"], maps.by_key[layer.map_key],
                bias=tensors[f"{layer.name}.bias"],
                residual=rows[layer.residual] if layer.residual else None, relu=layer.relu,
            )  # fmt: skip
        made = maps.by_key[level[-1].map_key]
        levels.append(SparseTensor(x, made.out_coords_bzyx, made.out_shape_zyx))
    return tensors, maps, rows


def test_every_layer_but_the_first_belongs_to_the_domain_that_the_plan_names():
    found = domain_layers_of(GRAPH)
    assert set(found) == set(domain_layers(CONFIG.model.channels))
    layers = [layer for level in (*GRAPH.levels, GRAPH.bev) for layer in level]
    assert [layer for domain in found.values() for layer in domain.layers] == layers[1:]
    for name, domain in found.items():
        assert all(layer.map_key == name for layer in domain.layers)
    assert found["subm1"].source == "conv_input"
    assert found["spconv3"].source == "conv2.2.conv2"
    assert found["spconv_out"].source == BEV and found["subm_out"].source == "conv_out"


@pytest.mark.parametrize("name", ["subm1", "spconv2", "subm4", "spconv_out", "subm_out"])
def test_the_layers_of_a_domain_are_those_of_the_network_in_the_order_of_the_engine(frame, name):
    tensors, maps, rows = frame
    coord_map = maps.by_key[name]
    generator = torch.Generator().manual_seed(1)
    x_order = torch.randperm(coord_map.num_in, generator=generator)
    same_rows = coord_map.in_coords_bzyx is coord_map.out_coords_bzyx or name.startswith("subm")
    out_order = x_order if same_rows else torch.randperm(coord_map.num_out, generator=generator)
    domain = domain_layers_of(GRAPH)[name]
    found = exact_outputs(
        domain,
        rows[domain.source][x_order],
        (coord_map.in_coords_bzyx[x_order], coord_map.in_shape_zyx),
        (coord_map.out_coords_bzyx[out_order], coord_map.out_shape_zyx),
        tensors,
    )
    assert list(found) == [layer.name for layer in domain.layers]
    for layer, values in found.items():
        assert torch.allclose(values, rows[layer][out_order], rtol=0, atol=1e-9)


def test_rows_that_the_convolution_does_not_make_are_refused(frame):
    tensors, maps, rows = frame
    coord_map = maps.by_key["spconv2"]
    domain = domain_layers_of(GRAPH)["spconv2"]
    wrong = coord_map.out_coords_bzyx.clone()
    wrong[0, 3] = coord_map.out_shape_zyx[2] - 1 - wrong[0, 3]
    for coords in (wrong, coord_map.out_coords_bzyx[1:]):
        with pytest.raises(DeviceError, match="spconv2"):
            exact_outputs(
                domain,
                rows[domain.source],
                (coord_map.in_coords_bzyx, coord_map.in_shape_zyx),
                (coords, coord_map.out_shape_zyx),
                tensors,
            )


def test_errors_are_relative_to_the_largest_value_of_each_layer():
    exact = [torch.tensor([[100.0, 1.0]], dtype=torch.float64), torch.ones(2, 1).double()]
    close = [torch.tensor([[100.0, 2.0]]), torch.tensor([[1.0], [1.5]])]
    assert relative_error(close[:1], exact[:1]) == pytest.approx(0.01)
    assert relative_error(close, exact) == pytest.approx(0.5)
    assert relative_error([torch.zeros(0, 4)], [torch.zeros(0, 4)]) == 0.0
    assert relative_error([torch.tensor([[torch.nan, 1.0]])], exact[:1]) == float("inf")
    assert relative_error([torch.zeros(1, 2).half()], [torch.zeros(1, 2)]) == 0.0
