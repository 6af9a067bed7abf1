"""Augmentation changes a frame as a whole, and pastes objects only where there is room."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from driveRT_ros.core.nms import rotated_iou_bev
from driveRT_ros.train.augment import Database, draw_motion, paste, thin_sweeps
from driveRT_ros.train.config import AugmentConfig
from driveRT_ros.train.data import changed, collate
from driveRT_ros.train.samples import Sample, pack, points_in_boxes, unpack
from test.support.training import small_config, small_sample


def augment(**values) -> AugmentConfig:
    return AugmentConfig(**{"paste_to": (3, 3, 3, 3), "paste_share": 1.0, **values})


def contents(points, boxes):
    return [sorted(rows.tolist()) for rows in points_in_boxes(points, boxes)]


def test_packed_points_are_as_exact_as_promised():
    rng = np.random.default_rng(0)
    points = np.concatenate(
        (
            rng.uniform(-80, 80, (500, 3)),
            rng.integers(0, 256, (500, 1)),
            0.05 * rng.integers(0, 10, (500, 1)),
        ),
        axis=1,
    ).astype(np.float32)
    points[0, :3] = 0.0
    points[1, 0] = 82.0
    back = unpack(pack(points))
    kept = np.delete(points, 1, axis=0)
    assert len(back) == 499, "points too far for 16 bits are left out"
    assert (
        np.abs(back[:, :3] - kept[:, :3]).max() < 1.26e-3
    )  # half a step, and the last bit of 80 m
    np.testing.assert_array_equal(back[:, 3], kept[:, 3])
    np.testing.assert_allclose(back[:, 4], kept[:, 4], atol=1e-6)
    assert (back[0, :3] == 0).all()


def test_past_points_of_a_moving_object_belong_to_it():
    box = np.array([[10.0, 5.0, 0.0, 4.0, 2.0, 2.0, 0.5, 8.0, -3.0]], np.float32)
    lag = np.array([0.0, 0.2, 0.45])
    points = np.zeros((3, 5), np.float32)
    points[:, 0], points[:, 1], points[:, 4] = 10.0 - 8 * lag, 5.0 + 3 * lag, lag
    assert contents(points, box) == [[0, 1, 2]]
    box[:, 7:] = np.nan
    assert contents(points, box) == [[0]]


@pytest.mark.parametrize("seed", range(4))
def test_objects_keep_their_points_whatever_happens_to_the_frame(seed):
    sample = small_sample(seed, objects=4)
    config = augment(max_rotation_rad=3.1, max_scale=0.3)
    motion = draw_motion(config, np.random.default_rng(seed))
    batch = collate([(sample, motion)])
    cloud = batch.to(torch.device("cpu")).points()
    before = contents(
        unpack(sample.points), sample.boxes * np.float32([1] * 3 + [1.01] * 3 + [1] * 3)
    )
    after = contents(cloud.numpy(), batch.boxes * np.float32([1] * 3 + [1.01] * 3 + [1] * 3))
    assert before == after and min(map(len, before)) > 200


def test_velocity_heading_and_motion_stay_together():
    """A box drawn at the end of its velocity is changed like the box itself."""
    sample = small_sample(3, objects=4)
    later = sample.boxes.copy()
    later[:, :2] += later[:, 7:9]
    seen = set()
    for seed in range(8):
        motion = draw_motion(augment(), np.random.default_rng(seed))
        seen.add(round(float(np.linalg.det(motion.linear_xy))))
        now, then = motion.boxes(sample.boxes), motion.boxes(later)
        np.testing.assert_allclose(now[:, :2] + now[:, 7:9], then[:, :2], atol=1e-4)
        ahead = sample.boxes.copy()
        ahead[:, 0] += np.cos(ahead[:, 6])
        ahead[:, 1] += np.sin(ahead[:, 6])
        heading = motion.boxes(ahead)[:, :2] - now[:, :2]
        np.testing.assert_allclose(np.arctan2(heading[:, 1], heading[:, 0]), now[:, 6], atol=1e-4)
    assert seen == {-1, 1}, "mirrored and not"


def test_an_unknown_velocity_stays_unknown():
    boxes = small_sample(1).boxes
    boxes[0, 7:] = np.nan
    out = draw_motion(augment(), np.random.default_rng(0)).boxes(boxes)
    assert np.isnan(out[0, 7:]).all() and np.isfinite(out[1:]).all()


def test_nothing_changes_where_nothing_is_asked_for():
    config = augment(flip_x=False, flip_y=False, max_rotation_rad=0.0, max_scale=0.0)
    motion = draw_motion(config, np.random.default_rng(0))
    assert np.array_equal(motion.matrix, np.eye(3, dtype=np.float32))


def a_database(config=None, samples=6) -> Database:
    database = Database(4, config or augment())
    for seed in range(100, 100 + samples):
        database.add(small_sample(seed, objects=4, ground=100, span=20.0))
    return database


def test_pasted_objects_collide_with_nothing_and_take_their_room():
    config, database = augment(), a_database()
    assert database.counts == (6, 6, 6, 6)
    sample = small_sample(1, span=20.0)
    out = paste(sample, database, config, np.random.default_rng(0))
    new = len(out.boxes) - len(sample.boxes)
    assert new >= 4
    boxes = torch.from_numpy(out.boxes)
    overlap = rotated_iou_bev(boxes, boxes).fill_diagonal_(0)
    assert overlap.max() == 0
    np.testing.assert_array_equal(out.boxes[: len(sample.boxes)], sample.boxes)
    # What lies in a pasted box is what was cut out with it: the ground there is gone.
    inside = [len(rows) for rows in points_in_boxes(unpack(out.points), out.boxes)]
    assert inside[len(sample.boxes) :] == out.num_points[len(sample.boxes) :].tolist()
    assert len(out.points) < len(sample.points) + out.num_points[len(sample.boxes) :].sum()


def test_a_frame_is_filled_up_to_the_number_asked_for():
    sample = small_sample(1, objects=0, span=20.0)
    empty = Sample(sample.points, sample.boxes, sample.labels, sample.num_points)
    out = paste(empty, a_database(), augment(paste_to=(2, 0, 1, 0)), np.random.default_rng(3))
    assert set(out.labels.tolist()) <= {0, 2}
    assert np.bincount(out.labels, minlength=3)[0] <= 2
    same = paste(sample, a_database(), augment(paste_share=0.0), np.random.default_rng(3))
    assert same is sample


def crowded() -> Sample:
    """Return a frame with an object of class 0 at every place of the database."""
    sample = small_sample(1, objects=0, ground=3000, span=20.0)
    boxes = np.stack([cutting.box for cutting in a_database().objects()])
    boxes[:, 3:6], boxes[:, 7:9] = (0.5, 0.5, 4.0), 0.0
    counts = [len(rows) for rows in points_in_boxes(unpack(sample.points), boxes)]
    return Sample(sample.points, boxes, np.zeros(len(boxes), np.int64), np.array(counts))


def test_objects_that_a_frame_has_too_many_of_make_way_for_rare_ones():
    """In a full street nearly every bus that was drawn met a car and was left out."""
    sample = crowded()
    sample.num_points[:] = 100
    config, rng = augment(paste_to=(3, 2, 2, 0), paste_share=1.0), np.random.default_rng(0)
    out = paste(sample, a_database(), config, rng)
    counts = np.bincount(out.labels, minlength=4)
    new = int(counts[1:].sum())
    assert counts[1] and counts[2] and 3 <= counts[0] < len(sample.boxes)
    boxes = torch.from_numpy(out.boxes)
    assert rotated_iou_bev(boxes, boxes).fill_diagonal_(0).max() < 1e-6
    # Who left took the points along: only what was pasted lies in the boxes.
    inside = [len(rows) for rows in points_in_boxes(unpack(out.points), out.boxes[-new:])]
    assert inside == out.num_points[-new:].tolist()


def test_objects_that_a_frame_needs_make_no_way_unless_they_are_hardly_seen():
    sample = crowded()
    places = len(sample.boxes)
    config = augment(paste_to=(places, 2, 2, 2), paste_share=1.0)
    sample.num_points[:] = 100
    assert paste(sample, a_database(), config, np.random.default_rng(0)) is sample
    sample.num_points[:] = config.database_min_points - 1
    out = paste(sample, a_database(), config, np.random.default_rng(0))
    assert (np.bincount(out.labels, minlength=4)[1:] >= 1).all()


def test_a_full_class_of_the_database_keeps_the_newest():
    config = augment(database_per_class=2)
    database = a_database(config)
    assert database.counts == (2, 2, 2, 2)
    newest = small_sample(105, objects=4, ground=100, span=20.0)
    kept = [o.box for o in database.objects() if o.label == newest.labels[0]]
    assert any(np.array_equal(box, newest.boxes[0]) for box in kept)


def test_a_change_depends_on_its_keys_alone():
    config = small_config(augment={"paste_to": (3, 3, 3, 3), "paste_share": 1.0})
    sample, database = small_sample(1, span=20.0), a_database()
    one, two, other = (
        collate([changed(sample, database, config, keys)]) for keys in ((5,), (5,), (6,))
    )
    for name in ("xyz", "rest", "matrices", "boxes", "labels"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name
    assert not np.array_equal(one.matrices, other.matrices)


def test_objects_hardly_seen_are_not_sought():
    sample = small_sample(1)
    sample.num_points[0] = 1
    out, _ = changed(sample, Database(4, augment()), small_config(), (0,))
    assert len(out.boxes) == len(sample.boxes) - 1
    assert len(out.points) == len(sample.points)


def test_frames_that_lose_sweeps_keep_the_newest_points_and_count_them_anew():
    sample = small_sample(3)
    config = AugmentConfig(fewer_sweeps_share=1.0)
    lags = sample.points.rest[:, 1]
    lags[:] = np.arange(len(lags)) % 4 * 20
    alone = 0
    for seed in range(40):
        thin = thin_sweeps(sample, config, np.random.default_rng(seed))
        oldest = thin.points.rest[:, 1].max()
        assert np.array_equal(thin.points.xyz, sample.points.xyz[lags <= oldest])
        inside = contents(unpack(thin.points), sample.boxes)
        assert thin.num_points.tolist() == [len(rows) for rows in inside]
        alone += int(oldest == 0)
    assert 12 <= alone <= 36


def test_no_sweep_is_lost_and_no_random_number_drawn_where_nobody_asked_for_it():
    rng = np.random.default_rng(0)
    sample = small_sample(3)
    assert thin_sweeps(sample, AugmentConfig(), rng) is sample
    assert rng.random() == np.random.default_rng(0).random()


def test_a_frame_without_points_has_no_sweep_to_lose():
    full = small_sample(3)
    none = Sample(pack(np.zeros((0, 5), np.float32)), full.boxes, full.labels, 0 * full.num_points)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        assert thin_sweeps(none, AugmentConfig(fewer_sweeps_share=1.0), rng) is none
