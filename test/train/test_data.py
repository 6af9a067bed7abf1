"""Frames come in an order that depends on the seed and the step alone."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.frame import NUSCENES_CLASSES
from driveRT_ros.train import drives as drives_module
from driveRT_ros.train.augment import Database
from driveRT_ros.train.config import FIRST_TRAINING_SEED, TrainConfig
from driveRT_ros.train.data import (
    Place,
    build_database,
    draw_weights,
    epoch_order,
    make_loader,
    open_data,
)
from driveRT_ros.train.drives import RecordedDrives, SimulatedDrives, make_shards
from driveRT_ros.train.shards import Shards, write_index, write_shard
from test.support import nuscenes
from test.support.training import small_config, small_sample


class FewDrives:
    """Drives of two small frames each."""

    count: int | None = None
    name = "small frames"

    def samples(self, drive: int):
        return [small_sample(10 * drive + k, ground=200) for k in range(2)]


def no_objects(config) -> Database:
    return Database(len(config.model.class_names), config.augment)


def write_frames(folder: Path, count: int = 6, names=None) -> Shards:
    folder.mkdir()
    names = names or small_config().model.class_names
    entries = [
        write_shard(folder / f"drive-{k:06d}.npz", [small_sample(2 * k + n) for n in (0, 1)])
        for k in range(count // 2)
    ]
    write_index(folder, entries, names, "test")
    return Shards(folder, names)


def digests(data, config, count, *, place=Place(), first=0):  # noqa: B008
    """Return what identifies each of some batches."""
    loader = make_loader(data, no_objects(config), config, place, first, False)
    batches = itertools.islice(iter(loader), count)
    return [
        tuple(int(v.astype(np.int64).sum()) for v in (b.xyz, b.rest)) + (b.matrices.sum(),)
        for b in batches
    ]


def test_a_shard_gives_back_what_was_written(tmp_path):
    shards = write_frames(tmp_path / "s")
    assert len(shards) == 6
    for k in (0, 5):
        want, got = small_sample(k), shards[k]
        for name in ("boxes", "labels", "num_points"):
            np.testing.assert_array_equal(getattr(got, name), getattr(want, name))
        np.testing.assert_array_equal(got.points.xyz, want.points.xyz)
        np.testing.assert_array_equal(got.points.rest, want.points.rest)
        np.testing.assert_array_equal(shards.labels[k], want.labels)


def test_frames_of_other_classes_or_a_broken_index_are_refused(tmp_path):
    write_frames(tmp_path / "s", names=("a", "b", "c", "d"))
    with pytest.raises(ConfigError, match="a, b, c, d"):
        Shards(tmp_path / "s", small_config().model.class_names)
    index = tmp_path / "s" / "index.json"
    index.write_text(index.read_text().replace('"version": 2', '"version": 1'))
    with pytest.raises(ConfigError, match=r"frames', 1\), but what is wanted here is \(.*, 2\)"):
        Shards(tmp_path / "s", ("a", "b", "c", "d"))
    index.write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        Shards(tmp_path / "s", ("a", "b", "c", "d"))
    with pytest.raises(ConfigError, match="none of these"):
        open_data(str(tmp_path), small_config())


def test_batches_of_shards_go_on_where_they_were(tmp_path):
    shards, config = write_frames(tmp_path / "s"), small_config(data={"workers": 2})
    whole = digests(shards, config, 7)
    assert digests(shards, config, 3, first=4) == whole[4:]
    assert len(set(whole)) == 7


def test_batches_of_drives_go_on_where_they_were():
    """The workers of a new loader start in another turn; what they make must not change."""
    config = small_config(data={"workers": 2, "reuse": 3, "window": 4, "frames_per_drive": 2})
    whole = digests(FewDrives(), config, 7)
    assert digests(FewDrives(), config, 4, first=3) == whole[3:]
    assert len(set(whole)) == 7


def test_two_processes_see_different_frames(tmp_path):
    shards, config = write_frames(tmp_path / "s"), small_config()
    for data in (shards, FewDrives()):
        first, second = (digests(data, config, 2, place=Place(rank, 2)) for rank in (0, 1))
        assert not set(first) & set(second)


def test_each_frame_comes_once_an_epoch_where_all_are_alike():
    rng = np.random.default_rng(0)
    for count in (1, 7, 1000):
        order = epoch_order(np.full(count, 1 / count), rng)
        assert sorted(order.tolist()) == list(range(count))


def test_balance_gives_every_class_that_occurs_the_same_share():
    common, rare = np.array([0]), np.array([0, 2])
    labels = [common] * 90 + [rare] * 10 + [np.array([], np.int64)] * 5
    weights = draw_weights(labels, 4, 1.0)
    assert weights.sum() == pytest.approx(1.0)
    # Class 0 gives its half to all 100 frames with it, class 2 its half to ten.
    assert weights[0] == pytest.approx(0.5 / 100)
    assert weights[90] == pytest.approx(0.5 / 100 + 0.5 / 10)
    assert weights[100] == 0.0
    order = epoch_order(weights, np.random.default_rng(0))
    share = np.isin(order, range(90, 100)).mean()
    assert share == pytest.approx(weights[90:100].sum(), abs=0.02)
    np.testing.assert_allclose(draw_weights(labels, 4, 0.0), 1 / 105)
    np.testing.assert_allclose(draw_weights([np.array([], np.int64)] * 3, 4, 1.0), 1 / 3)


def sim_config() -> TrainConfig:
    return TrainConfig.from_dict(
        {
            "densification_params.num_past_frames": 1,
            "data": {"frames_per_drive": 2, "sweeps_between_frames": 1, "workers": 2},
            "augment.database_drives": 2,
        }
    )


def test_a_simulated_drive_joins_sweeps_and_counts_points_of_all_of_them():
    drives = SimulatedDrives(sim_config())
    samples = drives.samples(5)
    assert len(samples) == 2
    for sample in samples:
        assert set(np.unique(sample.points.rest[:, 1]).tolist()) == {0, 20}  # 0 and 50 ms
        assert len(sample.boxes) > 5 and (sample.num_points > 20).any()
        assert sample.labels.max() < len(NUSCENES_CLASSES)
    again = drives.samples(5)[1]
    np.testing.assert_array_equal(again.points.xyz, samples[1].points.xyz)


def test_drives_to_train_on_differ_and_keep_off_the_seeds_for_tests():
    drives = SimulatedDrives(sim_config())
    simulations = [drives.simulation(k) for k in range(30)]
    assert [s.seed for s in simulations] == list(
        range(FIRST_TRAINING_SEED, FIRST_TRAINING_SEED + 30)
    )
    assert len({s.traffic.vehicles for s in simulations}) == 30
    assert 1 <= sum(s.lidar.clutter > 0 for s in simulations) <= 10
    with pytest.raises(ConfigError, match="first_seed"):
        TrainConfig.from_dict({"data.first_seed": 5})


def test_shards_of_the_simulator_can_be_stopped_and_gone_on_with(tmp_path):
    config, folder = sim_config(), tmp_path / "frames"
    drives = SimulatedDrives(config)
    there = make_shards(drives, config, folder, 4, 1, lambda done: True)
    assert 1 <= there < 4, "stopped early"
    assert len(Shards(folder, NUSCENES_CLASSES)) == 2 * there
    assert make_shards(drives, config, folder, 4, 2, lambda done: False) == 4
    shards = open_data(str(folder), config)
    assert len(shards) == 8
    np.testing.assert_array_equal(shards[6].points.xyz, drives.samples(3)[0].points.xyz)
    database = build_database(shards, config, 2)
    assert database.counts[0] > 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(ConfigError, match="other files"):
        make_shards(drives, config, tmp_path / "other", 1, 1, lambda done: False)


def test_shards_that_were_written_outlive_a_killed_process(tmp_path, monkeypatch):
    """Nothing runs any more after SIGKILL: what no index names would have to be made again."""
    monkeypatch.setattr(drives_module, "_INDEX_EVERY_S", 0.0)
    monkeypatch.setattr(drives_module, "_INDEX_SHARE", math.inf)
    named = []

    def look(done):
        named.append(len(json.loads((tmp_path / "index.json").read_text())["shards"]))
        return False

    config = small_config()
    assert make_shards(FewDrives(), config, tmp_path, 8, 1, look) == 8
    assert named == list(range(1, 9))


def test_an_index_is_whole_while_another_takes_its_place(tmp_path, monkeypatch):
    shards = write_frames(tmp_path / "s")

    def die(path, text, **_):
        path.write_bytes(text[:10].encode())
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", die)
    with pytest.raises(KeyboardInterrupt):
        write_index(tmp_path / "s", [], small_config().model.class_names, "test")
    assert len(Shards(tmp_path / "s", small_config().model.class_names)) == len(shards)


def test_a_truncated_index_is_told_with_what_to_do(tmp_path):
    write_frames(tmp_path / "s")
    index = tmp_path / "s" / "index.json"
    index.write_text(index.read_text()[:40])
    with pytest.raises(ConfigError, match="remove the folder and make the frames again"):
        make_shards(FewDrives(), small_config(), tmp_path / "s", 4, 1, lambda done: False)


def test_the_database_of_drives_is_the_same_each_time():
    config = small_config(augment={"paste_to": (1, 1, 1, 1), "database_drives": 3})
    one, two = (build_database(FewDrives(), config, workers) for workers in (1, 2))
    assert sum(one.counts) == sum(two.counts) > 5
    for a, b in zip(one.objects(), two.objects()):
        np.testing.assert_array_equal(a.box, b.box)


def test_nuscenes_tables_are_drives(tmp_path):
    tables = nuscenes.MiniNuScenes(keyframes=2)
    tables.add_object("vehicle.car", {0: (108.0, 50.0, 1.0), 1: (110.0, 50.0, 1.0)})
    tables.add_object("vehicle.truck", {1: (95.0, 60.0, 1.0)})
    drives = open_data(str(tables.write(tmp_path)), TrainConfig())
    assert isinstance(drives, RecordedDrives)
    assert drives.count == 1
    first, second = drives.samples(0)
    assert first.labels.tolist() == [0] and second.labels.tolist() == [0, 1]
    assert drives.name.endswith(", split train")
    np.testing.assert_allclose(first.boxes[0, 7:], (4.0, 0.0), atol=1e-4)
    assert len(first.points) == 30, "the first keyframe has no past"
    assert len(second.points) > 8 * 30
    assert len(np.unique(second.points.rest[:, 1])) == 10

    shutil.rmtree(tmp_path / "sweeps")
    single = TrainConfig.from_dict({"densification_params.num_past_frames": 0})
    frames = open_data(str(tmp_path), single).samples(0)
    assert [len(f.points) for f in frames] == [30, 30], "keyframes alone need no other sweeps"


def test_scenes_that_evaluations_take_are_not_trained_on(tmp_path):
    """Trained on every scene of the tables, a detector would be scored on frames it has seen."""
    tables = nuscenes.MiniNuScenes()
    tables.tables["scene"][0]["name"] = "scene-0103"
    folder = str(tables.write(tmp_path))
    with pytest.raises(ConfigError, match="no scene of split 'train'"):
        open_data(folder, TrainConfig())
    asked = open_data(folder, TrainConfig.from_dict({"data.split": "val"}))
    assert asked.count == 1


def test_all_keyframes_of_a_scene_are_seen_in_turn():
    """A scene of forty keyframes is visited again; each visit must take others."""

    class OneScene:
        count, name = 1, "one scene"

        def samples(self, drive: int):
            return [small_sample(k, ground=100 + k) for k in range(5)]

    config = small_config(
        data={"reuse": 1, "frames_per_drive": 2, "batch_size": 1},
    )
    loader = make_loader(OneScene(), no_objects(config), config, Place(), 0, False)
    sizes = [b.point_counts[0] - 750 - 100 for b in itertools.islice(iter(loader), 5)]
    assert sizes == [0, 1, 2, 3, 4]
