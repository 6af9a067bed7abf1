"""Sources of an evaluation, its pictures and the submission file."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import NUSCENES_CLASSES, Detections
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.core.turn import facing
from driveRT_ros.io import kitti
from driveRT_ros.io.nuscenes_eval import NuScenesEval
from driveRT_ros.train.eval_boxes import EvalSettings
from driveRT_ros.train.eval_sources import (
    Answer,
    Detector,
    Moment,
    Outcome,
    Recorded,
    bag_frames,
    compare,
    compared_frame,
    kitti_frames,
    nuscenes_frames,
    simulated,
)
from driveRT_ros.train.evaluate import Evaluation, Evaluator
from driveRT_ros.train.plots import by_range, precision_recall
from driveRT_ros.train.report import report
from driveRT_ros.train.submission import Submission
from test.io.test_kitti import label, write_frame
from test.support.evaluation import LABEL, TINY, boxes_of, frame_of, recorded_drive
from test.support.nuscenes import MiniNuScenes


def truth_itself(moment: Moment) -> Detections | None:
    return moment.frame.ground_truth if moment.wanted else None


def evaluated(moments, answer: Answer = truth_itself, **options) -> tuple[Evaluation, Outcome]:
    evaluator = Evaluator()
    outcome = compare(moments, answer, evaluator, EvalSettings(), **options)
    return evaluator.result(), outcome


# ---- sources ------------------------------------------------------------------------------------


def test_perfect_answers_to_simulated_scenes_score_one_for_every_class_that_is_there() -> None:
    moments = list(simulated(3, 5, 1, TINY))
    assert [m.wanted for m in moments] == [False, True] * 3
    assert len({m.token for m in moments}) == 3
    result, outcome = evaluated(moments, num_worst=2)
    assert result.num_frames == 3 and result.classes[LABEL["car"]].overall.num_truth > 5
    assert result.mean_ap_present == pytest.approx(1.0)
    assert all(error == pytest.approx(0.0, abs=1e-6) for error in result.errors_present.values())
    assert [s.tally.missed + s.tally.wrong for s in outcome.worst] == [0, 0]


def test_a_scene_does_not_depend_on_how_many_are_asked_for() -> None:
    (few,), many = list(simulated(1, 6, 0, TINY)), list(simulated(2, 5, 0, TINY))
    assert few.token == many[1].token == "simulated-6"
    assert np.array_equal(few.frame.points.xyz, many[1].frame.points.xyz)


def test_the_number_of_processes_changes_nothing() -> None:
    alone, together = list(simulated(3, 5, 1, TINY)), list(simulated(3, 5, 1, TINY, jobs=2))
    assert [(m.token, m.wanted) for m in alone] == [(m.token, m.wanted) for m in together]
    for ours, theirs in zip(alone, together):
        assert np.array_equal(ours.frame.points.xyz, theirs.frame.points.xyz)
        assert torch.equal(ours.frame.ground_truth.boxes, theirs.frame.ground_truth.boxes)


def test_the_worst_frames_come_first() -> None:
    rows = [[(0, 10), (0, 20), (0, 30)][:count] for count in (1, 3, 2)]
    moments = [Moment(str(len(r)), frame_of(boxes_of(r, num_points=[5] * len(r)))) for r in rows]
    _, outcome = evaluated(moments, lambda moment: Detections.empty(), num_worst=2)
    assert [(s.token, s.tally.missed) for s in outcome.worst] == [("3", 3), ("2", 2)]


def test_the_detector_joins_the_sweeps_before_a_frame_and_answers_that_frame_only() -> None:
    config = LidarConfig.from_dict(
        {
            "voxelization.point_cloud_range": [-24.0, -24.0, -4.0, 24.0, 24.0, 2.0],
            "voxelization.voxel_size": [0.5, 0.5, 0.5],
            "model.channels": [4, 4, 4, 8, 8, 8],
            "densification_params.num_past_frames": 2,
        }
    )
    detector = Detector(LidarPipeline(config, device="cpu"))
    answers = [detector(m) for m in simulated(2, 5, 2, TINY)]
    assert [a is None for a in answers] == [True, True, False] * 2
    points = [len(m.frame.points) for m in simulated(1, 5, 0, TINY)]
    assert all(a.report.num_points > 1.5 * points[0] for a in answers if a is not None)


def test_recorded_detections_are_compared_by_stamp_with_their_velocity(tmp_path: Path) -> None:
    bags = recorded_drive(tmp_path)
    moments = bag_frames(bags / "clouds", "", LidarConfig().input)
    result, outcome = evaluated(moments, Recorded(bags / "results"))
    assert (result.num_frames, outcome.unanswered) == (3, 0)
    cars = result.classes[LABEL["car"]].overall
    assert cars.num_truth > 5 and cars.mean_ap == pytest.approx(1.0)
    assert cars.errors["vel"] == pytest.approx(0.0, abs=1e-3)


def test_frames_without_an_answer_count_as_empty_ones(tmp_path: Path) -> None:
    bags = recorded_drive(tmp_path, answered=2)
    moments = bag_frames(bags / "clouds", "", LidarConfig().input)
    result, outcome = evaluated(moments, Recorded(bags / "results"))
    assert (result.num_frames, outcome.unanswered) == (3, 1)
    assert 0.5 < result.classes[LABEL["car"]].overall.best.recall < 0.75


def test_nuscenes_frames_know_token_attributes_points_and_racks(tmp_path: Path) -> None:
    data = MiniNuScenes(keyframes=2)
    data.add_object("vehicle.car", dict.fromkeys(range(2), (110.0, 50.0, 1.0)))
    data.add_object("vehicle.bicycle", dict.fromkeys(range(2), (100.0, 60.0, 0.5)))
    data.add_object("static_object.bicycle_rack", dict.fromkeys(range(2), (100.0, 60.0, 0.5)))
    data.add_object("vehicle.bicycle", dict.fromkeys(range(2), (100.0, 40.0, 0.5)))
    data.tables["attribute"] = [{"token": "a", "name": "vehicle.stopped"}]
    for annotation in data.tables["sample_annotation"]:
        car = annotation["instance_token"] == "instance0"
        annotation["attribute_tokens"] = ["a"] if car else []
        annotation["num_radar_pts"] = 2
        annotation["num_lidar_pts"] = 0
    tables = NuScenesEval(data.write(tmp_path))
    moments = list(nuscenes_frames(tables, "all", keyframes_only=False))
    wanted = [m for m in moments if m.wanted]
    assert [m.token for m in wanted] == ["sample0", "sample1"] and len(moments) == 11
    assert wanted[0].facts.attributes == ("vehicle.stopped", "", "")
    frame, boxes = compared_frame(wanted[0], Detections.empty(), EvalSettings())
    assert frame.ground_truth.num_points.tolist() == [2, 2, 2]  # those of the radar count, too
    assert boxes.truth.boxes[:, :2].round(3).tolist() == [[110.0, 50.0], [100.0, 40.0]]
    assert boxes.truth.attributes == ("vehicle.stopped", "")


def test_splits_choose_scenes(tmp_path: Path) -> None:
    data = MiniNuScenes(keyframes=1)
    data.tables["scene"][0]["name"] = "scene-0103"
    tables = NuScenesEval(data.write(tmp_path))
    for split in ("all", "val", "mini_val", "scene-0103"):
        assert tables.scene_names(split) == ["scene-0103"]
    for split in ("train", "mini_train", "validation"):
        with pytest.raises(ConfigError, match="no scene of split"):
            tables.scene_names(split)


def test_kitti_compares_only_what_its_camera_sees_and_counts_points(tmp_path: Path) -> None:
    points = write_frame(tmp_path, label("Car", 0, 1.6, 10, 0.0) + label("Car", 20, 1.6, 10, 0.0))
    inside = np.concatenate([points, np.full((5, 4), (10.0, 0.0, 0.0, 0.5), np.float32)])
    inside.astype(np.float32).tofile(tmp_path / "training/velodyne/000000.bin")
    (moment,) = kitti_frames(tmp_path)
    assert moment.frame.points.intensity.max() > 1.0  # scaled to 0..255
    ahead = moment.frame.ground_truth.boxes[0, :2].numpy()
    found = boxes_of([ahead, (0, 15), (-10, 0)])
    frame, boxes = compared_frame(moment, found, EvalSettings())
    assert frame.ground_truth.num_points.tolist() == [5]
    assert (len(boxes.truth), len(boxes.found)) == (1, 1)


def test_what_is_found_where_kitti_labels_nothing_is_not_wrong_but_may_be_right(
    tmp_path: Path,
) -> None:
    """Objects far away are often left unlabelled in KITTI, inside a rectangle that says so."""
    region = "DontCare -1 -1 -10 400 100 800 260 -1 -1 -1 -1000 -1000 -1000 -10\n"
    write_frame(tmp_path, label("Car", 0, 1.6, 20, 0.0) + region)
    (moment,) = kitti_frames(tmp_path)
    labelled = moment.frame.ground_truth.boxes[0, :3].tolist()
    beside, outside = (30.0, 3.0, -0.8), (20.0, -9.0, -0.8)  # x, y ahead and left of the LiDAR
    in_frame = np.linalg.inv(moment.frame.T_ego_lidar)
    ahead = [in_frame[:3, :3] @ place for place in (beside, outside)]
    found = boxes_of([labelled, *(place.tolist() for place in ahead)])
    evaluator = Evaluator()
    _, boxes = compared_frame(moment, found, EvalSettings(every_box=True))
    assert boxes.found.ignored.tolist() == [True, True, False]
    tally = evaluator.add(boxes)
    assert (tally.hits, tally.missed, tally.wrong) == (1, 0, 1)
    everywhere = evaluator.result().classes[LABEL["car"]].overall
    assert (everywhere.num_found, everywhere.best.hits) == (2, 1)


def test_a_detector_that_knows_where_ahead_is_sees_kitti_as_nuscenes_mounts_its_sensor(
    tmp_path: Path,
) -> None:
    """A network that never saw streets along +x finds little on a sensor whose +x is ahead."""
    write_frame(tmp_path, label("Car", 0, 1.6, 10, 0.0))
    (moment,) = kitti_frames(tmp_path)
    (plain,) = kitti.frames(tmp_path)
    assert np.array_equal(moment.frame.points.xyz, plain.points.xyz)
    config = LidarConfig.from_dict(
        {
            "voxelization.point_cloud_range": [-16.0, -24.0, -4.0, 16.0, 24.0, 2.0],
            "voxelization.voxel_size": [0.5, 0.5, 0.5],
            "model.channels": [4, 4, 4, 8, 8, 8],
            "post_process_params.score_thresholds": [0.001],
            "densification_params.num_past_frames": 0,
        }
    )
    ahead = facing(config, kitti.FORWARD_YAW_DEG)
    found = Detector(LidarPipeline(ahead, device="cpu"))(moment)
    x, y = moment.frame.points.xyz[:, :2].T.copy()
    turned = np.stack((-y, x, moment.frame.points.xyz[:, 2]), axis=1)
    points = dataclasses.replace(moment.frame.points, xyz=turned)
    frame = dataclasses.replace(moment.frame, points=points)
    want = Detector(LidarPipeline(config, device="cpu"))(Moment("turned", frame))
    assert len(found) == len(want) > 0 and torch.equal(found.scores, want.scores)
    assert torch.equal(found.boxes[:, :2], torch.stack((want.boxes[:, 1], -want.boxes[:, 0]), 1))


# ---- submission ---------------------------------------------------------------------------------


def test_a_submission_has_the_documented_fields_in_the_global_frame(tmp_path: Path) -> None:
    pose = np.eye(4)
    pose[:2, :2], pose[:2, 3] = [[0, -1], [1, 0]], (100, 200)
    row = (10, 0, 1, 4.5, 1.9, 1.6, 0.0, 3.0, 0.0)
    submission = Submission()
    found = boxes_of([row, (5, 5, 0, 1, 1, 1, 0, math.nan, math.nan)], scores=[0.75, 0.5])
    submission.add("sample", frame_of(None, T_world_ego=pose), found)
    many = boxes_of([(k * 0.01, 0) for k in range(600)], scores=(np.arange(600) / 600).tolist())
    submission.add("full", frame_of(None, T_world_ego=pose), many)
    submission.add("empty", frame_of(None, T_world_ego=pose), Detections.empty())
    submission.write(tmp_path / "s.json")
    tree = json.loads((tmp_path / "s.json").read_text())
    flags = ("use_camera", "use_lidar", "use_radar", "use_map", "use_external")
    assert tree["meta"] == {flag: flag == "use_lidar" for flag in flags}
    assert list(tree["results"]) == ["sample", "full", "empty"]
    assert len(tree["results"]["full"]) == 500 and tree["results"]["empty"] == []
    assert min(b["detection_score"] for b in tree["results"]["full"]) == pytest.approx(100 / 600)
    first, second = tree["results"]["sample"]
    assert {name: type(value) for name, value in first.items()} == {
        "sample_token": str,
        "translation": list,
        "size": list,
        "rotation": list,
        "velocity": list,
        "detection_name": str,
        "detection_score": float,
        "attribute_name": str,
    }
    assert first["sample_token"] == "sample" and first["detection_name"] in NUSCENES_CLASSES
    assert first["translation"] == pytest.approx([100, 210, 1])
    assert first["size"] == pytest.approx([1.9, 4.5, 1.6])  # width, length, height
    assert first["rotation"] == pytest.approx([math.sqrt(0.5), 0, 0, math.sqrt(0.5)])
    assert first["velocity"] == pytest.approx([0, 3])
    assert first["attribute_name"] == "vehicle.moving" and first["detection_score"] == 0.75
    assert second["velocity"] == [0.0, 0.0] and second["attribute_name"] == ""


def test_a_submission_needs_poses(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'k' has no pose"):
        Submission().add("k", frame_of(None), boxes_of([(1, 1)]))
    with pytest.raises(ConfigError, match="cannot be written"):
        Submission().write(tmp_path / "absent" / "s.json")


# ---- report and pictures ------------------------------------------------------------------------


def test_the_same_frames_give_the_same_report_and_pictures() -> None:
    def run() -> tuple[str, bytes, bytes]:
        result, _ = evaluated(simulated(2, 5, 0, TINY))
        pictures = (precision_recall(result, "x"), by_range(result, "x"))
        return (json.dumps(report(result, {}), allow_nan=False), *(p.tobytes() for p in pictures))

    assert run() == run()


def test_curves_are_drawn_where_they_run() -> None:
    half = boxes_of([(0, 10)], scores=[0.9])
    truth = boxes_of([(0, 10), (0, 20)], num_points=[5, 5])
    nothing, _ = evaluated([Moment("x", frame_of(truth))], lambda m: Detections.empty())
    found, _ = evaluated([Moment("x", frame_of(truth))], lambda m: half)
    changed = (precision_recall(nothing, "") != precision_recall(found, "")).any(axis=2)
    rows, cols = np.nonzero(changed[50:])  # below the titles, which give the AP
    # the panel of cars is the first one: its curve runs along the top from recall 0 to 1/2
    assert rows.max() < 10 and cols.min() >= 16 + 52 - 4 and cols.max() < 16 + 52 + 272 / 2 + 6


def test_real_keyframes_are_evaluated_with_their_own_ground_truth(data_dir: Path) -> None:
    tables = NuScenesEval(data_dir / "nuscenes" / "scene-0061")
    moments = list(nuscenes_frames(tables, "mini_train", keyframes_only=True))
    result, _ = evaluated(moments, truth_with_points)
    assert result.num_frames == 1
    assert sum(c.overall.num_truth for c in result.classes) > 30
    assert result.mean_ap_present == pytest.approx(1.0)
    kitti, _ = evaluated(kitti_frames(data_dir / "lidar" / "kitti_object"))
    assert kitti.mean_ap_present == pytest.approx(1.0) and math.isnan(kitti.nds)


def test_real_frames_hold_few_cars_that_are_close_and_well_seen(data_dir: Path) -> None:
    """These are all that recall on real frames is about: a single one is a third of it."""
    tables = NuScenesEval(data_dir / "nuscenes" / "scene-0061")
    settings = EvalSettings(min_points=10, max_range_m=40.0)
    for moments, cars in (
        (nuscenes_frames(tables, "all", keyframes_only=True), 2),
        (kitti_frames(data_dir / "lidar" / "kitti_object"), 1),
    ):
        evaluator = Evaluator()
        compare(moments, lambda moment: moment.frame.ground_truth, evaluator, settings)
        best = evaluator.result().classes[LABEL["car"]].overall.best
        assert (best.hits, best.missed) == (cars, 0)


def truth_with_points(moment: Moment) -> Detections:
    """Detect exactly what counts: a detection where no point is would be a wrong one."""
    truth = moment.frame.ground_truth
    keep = truth.num_points > 0
    return Detections(truth.boxes[keep], truth.scores[keep], truth.labels[keep])
