"""The camera pipeline as a whole: geometry, missing and faulty cameras, and repeatability."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from driveRT_ros.core import camera_rig
from driveRT_ros.core.camera_config import CameraConfig
from driveRT_ros.core.camera_pipeline import CAMERAS_LAYER
from driveRT_ros.core.camera_stages import CameraStages
from driveRT_ros.core.errors import ConfigError, InvalidFrame
from driveRT_ros.core.frame import CameraFrame, Detections
from driveRT_ros.core.pipeline import CameraPipeline
from driveRT_ros.models.lss_weights import untrained_camera_weights
from test.support.camera_rig import NAMES, frame, textured

# A quarter of the default input in both directions, and coarser cells: the same model, faster.
SMALL = {
    "cameras": list(NAMES),
    "model": {
        "image": {"size_hw": [64, 192]},
        "depth": {"max_m": 40.0, "step_m": 2.0},
        "grid": {"x_range_m": [-32, 32], "y_range_m": [-40, 40], "resolution_m": 1.0},
        "network": {
            "neck_channels": 32,
            "context_channels": 16,
            "bev_channels": [16, 24, 32],
            "bev_out_channels": 16,
            "head_channels": 16,
            "segmentation": ["vehicle", "drivable_area"],
            "heads": ["car,truck", "pedestrian"],
        },
    },
    "post_process_params": {"score_thresholds": [0.12], "top_k": 60},
}
SMALL_WH = (480, 270)


@pytest.fixture(scope="module")
def pipeline() -> CameraPipeline:
    return CameraPipeline(CameraConfig.from_dict(SMALL), device="cpu")


@pytest.fixture
def images() -> list[CameraFrame]:
    return textured(5, size_wh=SMALL_WH)


def assert_same(a: Detections, b: Detections) -> None:
    assert torch.equal(a.boxes, b.boxes)
    assert torch.equal(a.scores, b.scores)
    for name, layer in a.bev.layers.items():
        np.testing.assert_array_equal(layer, b.bev.layers[name])


def test_every_output_is_a_probability_on_the_same_grid(pipeline, images):
    result = pipeline.process(images)
    names = ["vehicle", "drivable_area", "heat_car", "heat_truck", "heat_pedestrian"]
    assert list(result.bev.layers) == [*names, CAMERAS_LAYER]
    assert result.bev.resolution_m == 1.0
    assert result.bev.origin_xy == (-32.0, -40.0)
    for name, layer in result.bev.layers.items():
        assert layer.shape == (80, 64)
        assert layer.dtype == np.float32
        seen = layer[result.bev.layers[CAMERAS_LAYER] > 0]
        assert np.isfinite(seen).all()
        if name != CAMERAS_LAYER:
            assert 0 < seen.min() < seen.max() < 1
            assert np.isnan(layer[result.bev.layers[CAMERAS_LAYER] == 0]).all()


def test_boxes_come_with_scores_labels_and_the_names_of_the_classes(pipeline, images):
    result = pipeline.process(images)
    assert result.class_names == ("car", "truck", "pedestrian")
    assert len(result) > 0
    assert result.boxes.shape == (len(result), 9)
    assert result.boxes.dtype == torch.float32
    assert result.scores.shape == result.labels.shape == (len(result),)
    assert (result.scores > 0.12).all()
    assert set(result.labels.tolist()) <= {0, 1, 2}


def test_the_report_says_how_long_each_stage_took_and_that_weights_are_untrained(pipeline, images):
    report = pipeline.process(images).report
    assert set(report.stage_ms) == {"images", "maps", "backbone", "pool", "head", "postprocess"}
    assert all(ms >= 0 for ms in report.stage_ms.values())
    assert "untrained_weights" in report.notes
    assert not any(note.startswith("camera_") for note in report.notes)
    assert report.dropped["missing_cameras"] == report.dropped["rejected_cameras"] == 0


def test_the_same_images_give_the_same_bytes(pipeline, images):
    again = CameraPipeline(pipeline.config, device="cpu")
    assert_same(pipeline.process(images), pipeline.process(images))
    assert_same(pipeline.process(images), again.process(images))


def test_the_order_of_the_frames_does_not_matter(pipeline, images):
    assert_same(pipeline.process(images), pipeline.process(images[::-1]))


def test_the_result_depends_on_the_images_and_on_the_seed(pipeline, images):
    layer = pipeline.process(images).bev.layers["vehicle"]
    other_images = pipeline.process(textured(6, size_wh=SMALL_WH))
    other_seed = CameraPipeline(replace(pipeline.config, seed=1), device="cpu").process(images)
    for other in (other_images, other_seed):
        assert np.nanmax(np.abs(other.bev.layers["vehicle"] - layer)) > 1e-3


def test_a_fingerprint_is_given_where_asked_for_and_tells_results_apart(pipeline, images):
    assert pipeline.process(images).report.fingerprint == {}
    first = pipeline.process(images, with_fingerprint=True).report.fingerprint
    assert first == pipeline.process(images, with_fingerprint=True).report.fingerprint
    other = pipeline.process(textured(6, size_wh=SMALL_WH), with_fingerprint=True)
    assert set(first) == {"images", "bev", "detections"}
    assert not set(first.values()) & set(other.report.fingerprint.values())


def test_other_thresholds_share_weights_and_scatter_map(monkeypatch, pipeline, images):
    before = pipeline.process(images)
    post = replace(pipeline.config.post_process_params, score_thresholds=(1.0,))
    monkeypatch.setattr(camera_rig, "build_scatter_map", None)  # must not be needed
    strict = pipeline.reconfigured(replace(pipeline.config, post_process_params=post))
    assert strict.network is pipeline.network
    assert len(strict.process(images)) == 0
    assert len(before) > 0
    assert_same(before, pipeline.process(images))


def test_other_cameras_need_another_pipeline(pipeline, images):
    two = pipeline.reconfigured(replace(pipeline.config, cameras=NAMES[:2]))
    assert two.weights is pipeline.weights
    fresh = CameraPipeline(two.config, device="cpu").process(images[:2])
    assert_same(two.process(images[:2]), fresh)


def test_warming_up_leaves_no_trace(images):
    config = CameraConfig.from_dict(SMALL)
    warm, cold = CameraPipeline(config, device="cpu"), CameraPipeline(config, device="cpu")
    warm.warm_up()
    results = warm.process(images), cold.process(images)
    assert_same(*results)
    assert results[0].report.notes == results[1].report.notes


def test_a_missing_camera_contributes_nothing_and_is_named(pipeline, images):
    gone = NAMES.index("CAM_FRONT")
    all_seen = pipeline.process(images).bev.layers[CAMERAS_LAYER]
    result = pipeline.process(images[:gone] + images[gone + 1 :])
    assert "camera_missing:CAM_FRONT" in result.report.notes
    assert result.report.dropped["missing_cameras"] == 1
    seen = result.bev.layers[CAMERAS_LAYER]
    assert seen.sum() < all_seen.sum()
    # Straight ahead only that camera looks; to the left nothing changes.
    assert all_seen[40, 60] == 1
    assert seen[40, 60] == 0
    assert np.isnan(result.bev.layers["vehicle"][40, 60])
    np.testing.assert_array_equal(seen[60:, :], all_seen[60:, :])


def test_a_missing_camera_weighs_as_much_as_one_that_was_never_there(pipeline, images):
    # Its black image must not reach the view: the network makes features of black, too.
    rest = [frame for frame in images if frame.name != "CAM_BACK_LEFT"]
    names = tuple(frame.name for frame in rest)
    without = CameraPipeline(replace(pipeline.config, cameras=names), device="cpu")
    for camera in images:
        pipeline.process([camera])  # every calibration is known
    got, expected = pipeline.process(rest), without.process(rest)
    for name, layer in expected.bev.layers.items():
        # Convolutions over another number of images may round differently.
        np.testing.assert_allclose(got.bev.layers[name], layer, atol=1e-5, err_msg=name)


def test_what_a_missing_camera_last_saw_leaves_no_trace(images):
    # Two pipelines see different images of one camera, which then fails: both must agree.
    results = []
    for seed in (1, 2):
        pipeline = CameraPipeline(CameraConfig.from_dict(SMALL), device="cpu")
        pipeline.process([textured(seed, size_wh=SMALL_WH)[0], *images[1:]])
        results.append(pipeline.process(images[1:]))
    assert_same(*results)


def test_a_camera_that_comes_back_gives_the_result_of_before(pipeline, images):
    before = pipeline.process(images)
    pipeline.process(images[2:])
    assert_same(before, pipeline.process(images))


def test_no_box_stands_where_only_a_missing_camera_looks(images):
    # A threshold of 0 proposes boxes everywhere, so some must fall into the lost sector.
    config = CameraConfig.from_dict(
        {**SMALL, "post_process_params": {"score_thresholds": [0.0], "top_k": 300}}
    )
    pipeline = CameraPipeline(config, device="cpu")
    everywhere = pipeline.process(images)
    assert everywhere.report.dropped["boxes_of_missing_cameras"] == 0
    result = pipeline.process([f for f in images if f.name != "CAM_BACK"])
    assert result.report.dropped["boxes_of_missing_cameras"] > 0
    seen = result.bev.layers[CAMERAS_LAYER] > 0
    would = everywhere.bev.layers[CAMERAS_LAYER] > 0
    col = ((result.boxes[:, 0].numpy() + 32) // 1).astype(int).clip(0, 63)
    row = ((result.boxes[:, 1].numpy() + 40) // 1).astype(int).clip(0, 79)
    assert len(result) > 0
    assert not (would & ~seen)[row, col].any()


def test_without_any_camera_the_view_is_unknown_and_empty(pipeline):
    result = pipeline.process([])
    assert len(result) == 0
    assert "no_cameras" in result.report.notes
    assert result.report.dropped["missing_cameras"] == 6
    assert (result.bev.layers[CAMERAS_LAYER] == 0).all()
    assert np.isnan(result.bev.layers["vehicle"]).all()
    assert result.class_names == ("car", "truck", "pedestrian")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"image": None}, "image_missing"),
        ({"image": np.zeros((8, 8, 3), np.uint8)}, "image_size"),
        ({"K": np.zeros((3, 3))}, "intrinsics"),
        ({"D": np.array([0.1])}, "distorted"),
        ({"T_ego_camera": np.zeros((4, 4))}, "extrinsics"),
    ],
)
def test_a_faulty_frame_counts_as_missing_with_its_fault_named(pipeline, images, change, code):
    missing = pipeline.process(images[1:])
    faulty = pipeline.process([replace(images[0], **change), *images[1:]])
    assert f"camera_rejected:{images[0].name}:{code}" in faulty.report.notes
    assert faulty.report.dropped["rejected_cameras"] == 1
    assert_same(missing, faulty)


def test_a_camera_that_nobody_named_is_ignored_and_reported(pipeline, images):
    stranger = replace(images[0], name="CAM_ROOF")
    result = pipeline.process([*images, stranger])
    assert "camera_unknown:CAM_ROOF" in result.report.notes
    assert_same(result, pipeline.process(images))


def test_two_frames_of_one_camera_are_refused(pipeline, images):
    with pytest.raises(InvalidFrame, match="same camera"):
        pipeline.process([*images, images[0]])


def test_the_scatter_map_is_built_again_only_when_a_calibration_changes(monkeypatch, images):
    built = []
    original = camera_rig.build_scatter_map

    def counting(*args, **kwargs):
        built.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(camera_rig, "build_scatter_map", counting)
    pipeline = CameraPipeline(CameraConfig.from_dict(SMALL), device="cpu")
    assert "calibration_changed" not in pipeline.process(images).report.notes
    pipeline.process(images)
    pipeline.process(images[1:])  # a camera drops out ...
    pipeline.process(images)  # ... and comes back
    pipeline.process([])
    assert len(built) == 1

    moved = np.array(images[0].T_ego_camera)
    moved[2, 3] += 0.05
    result = pipeline.process([replace(images[0], T_ego_camera=moved), *images[1:]])
    assert "calibration_changed" in result.report.notes
    assert len(built) == 2


def test_a_calibration_that_changes_where_it_lies_is_seen_and_checked(images):
    """Whoever calibrates on the way may write into the matrix that it gave before."""
    pose = np.array(images[0].T_ego_camera)
    frames = [replace(images[0], T_ego_camera=pose), *images[1:]]
    pipeline = CameraPipeline(CameraConfig.from_dict(SMALL), device="cpu")
    pipeline.process(frames)
    pose[2, 3] += 0.05
    assert "calibration_changed" in pipeline.process(frames).report.notes
    pose[:3, :3] *= 2.0
    notes = pipeline.process(frames).report.notes
    assert f"camera_rejected:{NAMES[0]}:extrinsics" in notes
    assert "calibration_changed" not in notes


def test_a_camera_heard_for_the_first_time_is_no_change_of_calibration(images):
    pipeline = CameraPipeline(CameraConfig.from_dict(SMALL), device="cpu")
    pipeline.process(images[1:])
    late = pipeline.process(images)
    assert "calibration_changed" not in late.report.notes
    assert_same(late, CameraPipeline(pipeline.config, device="cpu").process(images))


def test_a_moved_camera_moves_what_it_sees(pipeline, images):
    before = pipeline.process(images)
    turned = np.array(images[1].T_ego_camera)
    turned[:3, :3] = np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1.0]]) @ turned[:3, :3]
    after = pipeline.process([images[0], replace(images[1], T_ego_camera=turned), *images[2:]])
    changed = before.bev.layers[CAMERAS_LAYER] != after.bev.layers[CAMERAS_LAYER]
    assert changed.sum() > 500


def test_cameras_may_have_images_of_different_sizes(pipeline):
    mixed = [frame(n, size_wh=((640, 360), (480, 270))[i % 2]) for i, n in enumerate(NAMES)]
    result = pipeline.process(mixed)
    assert not any(note.startswith("camera_") for note in result.report.notes)
    assert np.isfinite(result.bev.layers["vehicle"]).any()


@pytest.mark.parametrize("count", [1, 2])
def test_any_number_of_cameras_will_do(count, images):
    config = CameraConfig.from_dict({**SMALL, "cameras": list(NAMES[:count])})
    result = CameraPipeline(config, device="cpu").process(images[:count])
    assert result.bev.layers[CAMERAS_LAYER].max() >= 1


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_every_convolution_reads_the_layout_that_was_asked_for(pipeline, images, layout):
    """A tensor of another layout would be turned before and after each of them."""
    want, rig = pipeline.process(images), pipeline._rig
    network = copy.deepcopy(pipeline.network).to(memory_format=layout)
    stages = CameraStages(
        pipeline.config, network, pipeline.device, torch.float32, layout, graph=False
    )
    seen = []

    def look(module, inputs):
        seen.append(all(t.is_contiguous(memory_format=layout) for t in (*inputs, module.weight)))

    for module in network.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_pre_hook(look)
    with torch.no_grad():
        stages.fit(images, np.ones(len(images), bool))
        stages.use(rig.scatter_map)
        stages.run()
    assert len(seen) > 50 and all(seen)
    for made, layer in zip(stages.layers(), want.bev.layers.values()):
        np.testing.assert_allclose(made[np.isfinite(layer)], layer[np.isfinite(layer)], atol=1e-5)


def test_a_network_that_gives_no_numbers_is_reported(images):
    config = CameraConfig.from_dict(SMALL)
    weights = untrained_camera_weights(config.model, 0)
    broken = {**weights.tensors, "segmentation.1.bias": torch.tensor([math.nan, 0.0])}
    pipeline = CameraPipeline(config, replace(weights, tensors=broken), device="cpu")
    report = pipeline.process(images).report
    assert report.dropped["non_finite_cells"] == 80 * 64
    assert "faulty_head_output" in report.notes


def test_weights_of_another_model_are_refused():
    weights = untrained_camera_weights(CameraConfig.from_dict(SMALL).model, 0)
    with pytest.raises(ConfigError, match="make them agree"):
        CameraPipeline(CameraConfig(), weights, device="cpu")


@pytest.mark.parametrize("precision", ["fp16", "tf32"])
def test_precisions_of_the_gpu_are_refused_on_the_cpu(precision):
    config = CameraConfig.from_dict({**SMALL, "precision": precision})
    with pytest.raises(ConfigError, match="needs a CUDA device"):
        CameraPipeline(config, device="cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("precision", "tolerance"),
    # Products of float16 keep 11 bits and of TF32 as many; the rest of the sums is float32.
    [("fp32", 1e-4), ("tf32", 2e-2), ("fp16", 3e-2)],
)
def test_the_gpu_agrees_with_the_cpu_and_repeats_itself(pipeline, images, precision, tolerance):
    config = replace(pipeline.config, precision=precision)
    gpu = CameraPipeline(config, device="cuda")
    expected, got = pipeline.process(images), gpu.process(images)
    for name, layer in expected.bev.layers.items():
        np.testing.assert_allclose(got.bev.layers[name], layer, atol=tolerance, err_msg=name)
    assert_same(got, gpu.process(images))
