"""The network against an independent dense evaluation, and the parts of its graph."""

from __future__ import annotations

import pytest
import torch

from driveRT_ros.core.config import LidarConfig, ModelConfig
from driveRT_ros.core.ops import Ops
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.models.checkpoint import load_openpcdet
from driveRT_ros.models.graph import build_graph
from driveRT_ros.models.voxelnext import Backbone, untrained_weights
from driveRT_ros.models.weights import fold_batch_norm
from test.support import checkpoints, dense_voxelnext
from test.support.lidar_frames import street

SMALL = {
    "model": {"channels": (4, 6, 8, 10, 10, 10), "heads": ("car", "truck,bus", "barrier")},
    "voxelization": {
        "point_cloud_range": (-3.6, -2.4, -1.0, 3.6, 2.4, 1.0),
        "voxel_size": (0.075, 0.075, 0.2),
        "max_points_per_voxel": 3,
    },
    "post_process_params": {
        "top_k": 40,
        "max_boxes_per_head": 12,
        "score_thresholds": (0.45,),
        "center_range": (-3.3, -2.1, -10.0, 3.3, 2.1, 10.0),
    },
}


def small_cloud(count: int, seed: int) -> torch.Tensor:
    """Return points on a slope and in a lump, some of them outside the range."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(count, 5, generator=generator, dtype=torch.float64)
    points[:, 0] = points[:, 0] * 4.5 - 4.0
    points[:, 1] = points[:, 1] * 3.0 - 2.5
    points[:, 2] = points[:, 0] * 0.1 - 0.4 + 0.1 * points[:, 2]
    lump = slice(0, count // 3)
    points[lump, :3] = points[lump, :3] * 0.12 + 0.3
    return points


def oracle_settings(config: LidarConfig) -> dense_voxelnext.Settings:
    voxels, post = config.voxelization, config.post_process_params
    return dense_voxelnext.Settings(
        low=voxels.point_cloud_range[:3],
        voxel=voxels.voxel_size,
        grid_xyz=voxels.grid_xyz,
        max_points=voxels.max_points_per_voxel,
        classes_per_head=[len(c) for c in config.model.classes_per_head],
        threshold=post.score_thresholds[0],
        top_k=post.top_k,
        max_boxes=post.max_boxes_per_head,
        nms_iou=post.iou_nms_threshold,
        center_range=post.center_range,
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_whole_detector_equals_a_dense_float64_evaluation(tmp_path, seed):
    config = LidarConfig.from_dict(SMALL)
    state = checkpoints.state_dict(config.model.channels, (1, 2, 1), seed=seed)
    weights = load_openpcdet(checkpoints.write(tmp_path / "model.pth", state), config)
    points = small_cloud(900, seed)
    found = LidarPipeline(config, weights, "cpu", torch.float64).process(points)
    want = dense_voxelnext.detect(points.tolist(), state, oracle_settings(config))

    assert len(want) >= 10, "the case must not be trivial"
    assert len({label for _, _, label in want}) >= 3
    assert found.report.dropped["out_of_range_boxes"] > 0
    assert found.report.dropped["over_top_k_candidates"] > 0
    assert found.boxes.dtype == torch.float64
    assert found.labels.tolist() == [label for _, _, label in want]
    boxes = torch.tensor([box for box, _, _ in want], dtype=torch.float64)
    scores = torch.tensor([score for _, score, _ in want], dtype=torch.float64)
    torch.testing.assert_close(found.boxes, boxes, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.scores, scores, rtol=1e-9, atol=1e-9)


def test_shared_features_equal_the_dense_evaluation_at_every_row(tmp_path):
    config = LidarConfig.from_dict(SMALL)
    state = checkpoints.state_dict(config.model.channels, (1, 2, 1), seed=7)
    weights = load_openpcdet(checkpoints.write(tmp_path / "model.pth", state), config)
    points = small_cloud(500, 7)
    settings = oracle_settings(config)
    dense, active = dense_voxelnext.backbone(
        *dense_voxelnext.voxelize(points.tolist(), settings), state
    )
    assert 20 < active.sum() < active.numel()
    ops = Ops.for_device("cpu")
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        voxels = ops.voxelize(points.to(dtype), config.voxelization)
        backbone = Backbone(config.model, weights.to("cpu", dtype), ops)
        maps = backbone.build_maps(voxels.coords_bzyx, config.voxelization.sparse_shape_zyx)
        bev = backbone.run(voxels.features, maps)
        assert bev.coords_bzyx[:, 2:].tolist() == active.nonzero().tolist()
        rows = dense[:, active.bool()].T
        error = (bev.features.double() - rows).abs().max() / rows.abs().max()
        assert error < tolerance


def test_the_full_graph_has_the_parameters_of_the_published_network():
    layers = build_graph(ModelConfig()).layers
    assert sum(layer.num_parameters for layer in layers) == 7_981_398
    assert sum(layer.num_tensors for layer in layers) == 337
    assert sum(layer.op != "linear" for layer in layers) == 32
    assert len({layer.name for layer in layers}) == len(layers) == 104


def test_each_batch_norm_has_its_own_epsilon():
    """The backbone was trained with 1e-3; the shared convolution and the heads with 1e-5."""
    graph = build_graph(ModelConfig())
    backbone = [layer for level in graph.levels for layer in level] + [graph.bev[0]]
    assert {layer.bn_eps for layer in backbone} == {1e-3}
    assert graph.bev[1].bn_eps == 1e-5
    assert {layer.bn_eps for layer in graph.heads if layer.relu} == {1e-5}
    assert {layer.bn_eps for layer in graph.heads if not layer.relu} == {None}


def test_a_full_frame_has_the_levels_of_the_published_grid():
    coords = torch.tensor([[0, 20, 700, 700], [0, 39, 1439, 1439], [0, 0, 0, 0]], dtype=torch.int32)
    config = ModelConfig()
    backbone = Backbone(config, {}, Ops.for_device("cpu"))
    maps = backbone.build_maps(coords, (41, 1440, 1440))
    assert maps.level_shapes == (
        (41, 1440, 1440), (21, 720, 720), (11, 360, 360), (6, 180, 180), (3, 90, 90), (2, 45, 45),
    )  # fmt: skip
    assert len(maps.by_key) == 13
    assert maps.by_key["subm_out"].out_shape_zyx == (1, 180, 180)
    assert maps.by_key["spconv_out"].num_out > maps.by_key["spconv_out"].num_in


def test_folding_equals_convolution_then_batch_norm():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(50, 6, generator=generator, dtype=torch.float64)
    weight = torch.randn(1, 6, 4, generator=generator)
    bias, scale, shift, mean = torch.randn(4, 4, generator=generator)
    variance = torch.rand(4, generator=generator)
    w, b = fold_batch_norm(weight, bias, scale, shift, mean, variance, 1e-3)
    want = torch.nn.functional.batch_norm(
        rows @ weight[0].double() + bias.double(),
        mean.double(), variance.double(), scale.double(), shift.double(), eps=1e-3,
    )  # fmt: skip
    torch.testing.assert_close(rows @ w[0] + b, want, rtol=1e-12, atol=1e-12)


def test_untrained_weights_depend_on_model_and_seed_alone():
    config = LidarConfig.from_dict(SMALL).model
    assert untrained_weights(config, 5).sha256 == untrained_weights(config, 5).sha256
    assert untrained_weights(config, 5).sha256 != untrained_weights(config, 6).sha256
    # The same on every machine: no transcendental function takes part.
    assert untrained_weights(config, 5).sha256.startswith("c3f3d1f398f68fec")


def test_drawing_weights_leaves_the_global_random_state_alone():
    torch.manual_seed(1)
    want = torch.rand(1)
    torch.manual_seed(1)
    untrained_weights(LidarConfig.from_dict(SMALL).model, 0)
    assert torch.equal(torch.rand(1), want)


@pytest.mark.parametrize("channels", [(16, 32, 64, 128, 128, 128), (16, 32, 64, 64, 64, 64)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_untrained_network_proposes_some_boxes_but_not_everywhere(channels, seed):
    config = LidarConfig.from_dict({"model": {"channels": channels}, "seed": seed})
    found = LidarPipeline(config, None, "cpu").process(street(seed=seed))
    assert 3 <= len(found) <= 400
    assert "untrained_weights" in found.report.notes
    assert "faulty_head_output" not in found.report.notes
    size = found.boxes[:, 3:6]
    assert size.min() > 0.3
    assert size.max() < 20
    assert found.boxes[:, 7:9].abs().max() < 30
    assert found.boxes[:, 6].std() > 0.3  # headings point everywhere
