"""The hot path as a whole: any valid cloud gives a complete, repeatable result."""

from __future__ import annotations

import time
import zlib

import numpy as np
import pytest
import torch

from driveRT_ros.core.config import LidarConfig, ModelConfig
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.fingerprint import first_difference
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.models.voxelnext import VoxelNeXtWeights, untrained_weights
from test.support.frames import ROWS
from test.support.lidar_frames import street

CHANNELS = (8, 8, 16, 16, 16, 16)
STAGES = ["voxelize", "maps", "backbone", "head", "postprocess"]


def config(**groups) -> LidarConfig:
    return LidarConfig.from_dict({"model": {"channels": CHANNELS}, **groups})


@pytest.fixture(scope="module")
def pipeline() -> LidarPipeline:
    return LidarPipeline(config(), None, "cpu")


@pytest.fixture(scope="module")
def cloud() -> torch.Tensor:
    return street(seed=3)


def same(a, b) -> bool:
    return all(
        torch.equal(x, y)
        for x, y in ((a.boxes, b.boxes), (a.scores, b.scores), (a.labels, b.labels))
    )


def test_a_frame_gives_boxes_and_a_complete_report(pipeline, cloud):
    found = pipeline.process(cloud)
    m = len(found)
    assert m > 0
    assert found.boxes.shape == (m, 9) and found.boxes.dtype == torch.float32
    assert found.scores.shape == (m,) and found.scores.dtype == torch.float32
    assert found.labels.shape == (m,) and found.labels.dtype == torch.int64
    assert found.class_names == pipeline.config.model.class_names
    assert found.bev is None
    assert ((found.scores > 0.1) & (found.scores <= 1)).all()
    report = found.report
    assert list(report.stage_ms) == STAGES
    assert all(ms >= 0 for ms in report.stage_ms.values())
    assert report.num_points == len(cloud)
    assert report.num_voxels == report.voxels_per_level[0] > 1000
    assert len(report.voxels_per_level) == 6
    assert report.dropped["out_of_range_points"] == 0
    assert report.fingerprint == {} and report.overflow == {}


def test_boxes_are_best_first_within_a_head_and_at_most_83(pipeline, cloud):
    found = pipeline.process(cloud)
    start = 0
    for classes in pipeline.config.model.classes_per_head:
        mine = (found.labels >= start) & (found.labels < start + len(classes))
        scores = found.scores[mine]
        assert len(scores) <= 83
        assert (scores[1:] <= scores[:-1]).all()
        start += len(classes)
    heads = torch.bucketize(found.labels, torch.tensor([0, 2, 4, 5, 7, 9]))
    assert (heads[1:] >= heads[:-1]).all()


def test_the_same_cloud_gives_the_same_bytes_also_in_a_new_pipeline(pipeline, cloud):
    first, second = (pipeline.process(cloud, with_fingerprint=True) for _ in range(2))
    third = LidarPipeline(config(), None, "cpu").process(cloud, with_fingerprint=True)
    assert same(first, second) and same(first, third)
    want = ["points", "coords", "features", "bev", "detections"]
    assert list(first.report.fingerprint) == want
    assert first.report.fingerprint == second.report.fingerprint == third.report.fingerprint


def test_the_fingerprint_is_the_crc32_of_the_points_and_of_the_published_arrays(pipeline, cloud):
    found = pipeline.process(cloud, with_bev=True, with_fingerprint=True)
    marks = found.report.fingerprint
    data = b"".join(t.numpy().tobytes() for t in (found.boxes, found.scores, found.labels))
    assert marks["detections"] == zlib.crc32(data)
    assert marks["points"] == zlib.crc32(cloud.numpy().tobytes())
    layers = sorted(found.bev.layers.items())
    assert marks["grid"] == zlib.crc32(b"".join(n.encode() + v.tobytes() for n, v in layers))
    other = pipeline.process(cloud[1:], with_fingerprint=True).report.fingerprint
    assert other["points"] != marks["points"] and other["features"] != marks["features"]


def test_one_point_moved_is_seen_in_points_first_and_a_threshold_in_detections_only(cloud):
    moved = cloud.clone()
    moved[7, 0] += 1e-4
    strict = config(post_process_params={"score_thresholds": [0.5]})
    runs = ((config(), cloud), (config(), moved), (strict, cloud))
    base, other, fewer = (
        LidarPipeline(c, None, "cpu").process(p, with_fingerprint=True).report.fingerprint
        for c, p in runs
    )
    assert first_difference(base, base) is None
    assert first_difference(base, other) == first_difference(other, base) == "points"
    assert first_difference(base, fewer) == "detections"


def test_numpy_torch_and_double_points_are_the_same_cloud(pipeline, cloud):
    want = pipeline.process(cloud)
    swapped = cloud.numpy().astype(">f4")
    strided = np.zeros((len(cloud), 10), np.float32)[:, ::2]
    strided[:] = cloud.numpy()
    frozen = cloud.numpy().copy()
    frozen.setflags(write=False)
    for points in (cloud.numpy(), cloud.double(), cloud.double().numpy(), swapped, strided, frozen):
        assert same(pipeline.process(points), want)


def test_processing_does_not_write_to_the_points(pipeline, cloud):
    before = cloud.clone()
    pipeline.process(cloud, with_bev=True)
    assert torch.equal(cloud, before)


def test_an_empty_cloud_is_an_ordinary_frame(pipeline, cloud):
    """Nothing seen is a result; the frame after it must not suffer."""
    want = pipeline.process(cloud)
    for empty in (torch.zeros(0, 5), np.zeros((0, 5), np.float32)):
        found = pipeline.process(empty, with_bev=True)
        assert found.boxes.shape == (0, 9)
        assert found.report.voxels_per_level == (0,) * 6
        assert "empty_input" in found.report.notes
        assert list(found.report.stage_ms) == STAGES
        assert found.bev.layers["heat_car"].shape == (180, 180)
    assert same(pipeline.process(cloud), want)


@pytest.mark.parametrize(
    "point", [[1e4, 0, 0, 0, 0], [float("nan")] * 5, [0, 0, float("inf"), 0, 0], [0, 0, 9, 0, 0]]
)
def test_a_cloud_without_a_usable_point_gives_no_boxes(pipeline, point):
    found = pipeline.process(torch.tensor([point], dtype=torch.float32))
    assert len(found) == 0
    assert "no_voxels" in found.report.notes
    assert sum(found.report.dropped.values()) == 1


@pytest.mark.parametrize("count", [1, 2, 31, 33])
def test_a_few_points_pass_through_every_level(pipeline, cloud, count):
    found = pipeline.process(cloud[:count])
    assert min(found.report.voxels_per_level) >= 1
    assert torch.isfinite(found.boxes).all()


@pytest.mark.parametrize(
    ("points", "part"),
    [
        (torch.zeros(10, 4), r"\(10, 4\)"),
        (torch.zeros(10, 6), r"\(10, 6\)"),
        (torch.zeros(50), r"\(50,\)"),
        (np.zeros((2, 3, 5), np.float32), r"\(2, 3, 5\)"),
        (torch.zeros(10, 5, dtype=torch.float16), "float16"),
        (torch.zeros(10, 5, dtype=torch.int32), "int32"),
        (np.zeros((10, 5), np.uint8), "uint8"),
        (np.zeros((10, 5), np.complex64), "complex64"),
        ([[0.0] * 5], "list"),
    ],
)
def test_points_of_another_form_are_refused_by_what_they_are(pipeline, points, part):
    with pytest.raises(InvalidFrame, match=part) as caught:
        pipeline.process(points)
    assert caught.value.field == "points"


def test_more_voxels_than_the_capacity_are_counted(cloud):
    found = LidarPipeline(config(voxelization={"max_voxels": 500}), None, "cpu").process(cloud)
    assert found.report.num_voxels == 500
    assert found.report.dropped["over_capacity_voxels"] > 1000


def test_a_threshold_of_one_publishes_nothing(cloud):
    quiet = config(post_process_params={"score_thresholds": [1.0]})
    found = LidarPipeline(quiet, None, "cpu").process(cloud)
    assert len(found) == 0
    assert found.boxes.shape == (0, 9)


def test_a_threshold_of_zero_is_capped_and_says_so(cloud):
    open_wide = config(post_process_params={"score_thresholds": [0.0]})
    found = LidarPipeline(open_wide, None, "cpu").process(cloud)
    assert 0 < len(found) <= 6 * 83
    assert "top_k_reached" in found.report.notes
    assert found.report.dropped["over_top_k_candidates"] > 0


def test_untrained_and_trained_weights_are_told_apart(cloud):
    random = untrained_weights(config().model, 0)
    trained = VoxelNeXtWeights(random.config, random.tensors, trained=True, source="file")
    assert "untrained_weights" in LidarPipeline(config(), None, "cpu").process(cloud).report.notes
    assert "untrained_weights" not in (
        LidarPipeline(config(), trained, "cpu").process(cloud).report.notes
    )


def test_faulty_head_output_is_noted_counted_and_not_published(cloud):
    """Weights that do not fit give infinite sizes and speeds; none of them may get out."""
    random = untrained_weights(config().model, 0)
    tensors = dict(random.tensors)
    tensors["head0.dim.out.bias"] = torch.full((3,), 1000.0, dtype=torch.float64)
    tensors["head1.vel.out.bias"] = torch.full((2,), 1e4, dtype=torch.float64)
    tensors["head2.center.out.bias"] = torch.full((2,), float("nan"), dtype=torch.float64)
    broken = VoxelNeXtWeights(random.config, tensors, trained=True, source="broken")
    wide = config(post_process_params={"score_thresholds": [0.01]})
    found = LidarPipeline(wide, broken, "cpu").process(cloud)
    assert found.report.dropped["non_finite_boxes"] >= 1000
    assert found.report.dropped["implausible_boxes"] == 500
    assert "faulty_head_output" in found.report.notes
    assert torch.isfinite(found.boxes).all()
    assert found.labels.min() >= 5


def test_weights_of_another_model_are_refused():
    with pytest.raises(ConfigError, match="make them agree"):
        LidarPipeline(config(), untrained_weights(ModelConfig(), 0), "cpu")


@pytest.mark.parametrize("device", ["cuda:99", "toaster", "meta:x"])
def test_a_device_that_cannot_be_used_is_refused_by_name(device):
    with pytest.raises(ConfigError, match=device) as error:
        LidarPipeline(config(), None, device)
    assert len(str(error.value)) < 200, "torch lists every device it ever heard of"


def test_half_precision_is_refused():
    with pytest.raises(ConfigError, match="float16"):
        LidarPipeline(config(), None, "cpu", torch.float16)


def test_heat_layers_lie_where_the_boxes_lie(cloud):
    """Row and column of a heat layer are y and x: the best heat of a class has a box near it."""
    settings = config(bev={"resolution_m": 0.6}, post_process_params={"iou_nms_threshold": 1.0})
    found = LidarPipeline(settings, None, "cpu").process(cloud, with_bev=True)
    assert found.bev.shape == (180, 180)
    checked = 0
    for label, name in enumerate(found.class_names):
        heat = found.bev.layers[f"heat_{name}"]
        assert np.isnan(heat).any() and not np.isnan(heat).all()
        mine = found.labels == label
        if not mine.any():
            continue
        best = found.boxes[mine][found.scores[mine].argmax()]
        row, col = np.unravel_index(np.nanargmax(heat), heat.shape)
        assert heat[row, col] == pytest.approx(found.scores[mine].max().item(), abs=1e-6)
        assert abs(best[0].item() - (col * 0.6 - 54)) < 3.0
        assert abs(best[1].item() - (row * 0.6 - 54)) < 3.0
        checked += 1
    assert checked >= 2


def test_float64_and_float32_agree(pipeline, cloud):
    """Float64 cells may differ for points on a cell edge, so the cloud keeps off the edges."""
    inner = cloud.clone()
    size = torch.tensor([0.075, 0.075, 0.2])
    low = torch.tensor([-54.0, -54.0, -5.0])
    inner[:, :3] = ((inner[:, :3] - low) / size).floor() * size + low + size / 2
    single = pipeline.process(inner)
    double = LidarPipeline(config(), None, "cpu", torch.float64).process(inner)
    assert double.boxes.dtype == torch.float64
    assert double.report.voxels_per_level == single.report.voxels_per_level
    near = (single.boxes[:, None, :2] - double.boxes[None, :, :2].float()).norm(dim=-1) < 1e-2
    assert near.any(1).float().mean() > 0.9  # candidates near the threshold may differ


def test_a_real_dense_frame_has_the_rows_of_the_published_levels(data_dir):
    path = data_dir / "nuscenes/multisweep_points/ff9eff4389a740848f9a56ad749a4ae8.bin"
    points = np.fromfile(path, np.float16).reshape(-1, 5).astype(np.float32)
    found = LidarPipeline(config(), None, "cpu").process(points)
    assert found.report.voxels_per_level == ROWS["C"]


def test_a_full_frame_of_30000_voxels_takes_seconds_of_one_core():
    """In seconds of the processor: other work on the machine does not count."""
    points = street(seed=0, rings=18, azimuths=900, sweeps=5)
    pipeline = LidarPipeline(LidarConfig(), None, "cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        pipeline.process(points[:2000])
        start = time.process_time()
        found = pipeline.process(points)
        took_s = time.process_time() - start
    finally:
        torch.set_num_threads(threads)
    assert took_s < 40.0  # about 1.3 s; a slow core takes several times as long
    assert found.report.num_voxels >= 30_000
