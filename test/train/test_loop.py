"""A run learns, stops and goes on, and what it writes is what the detector reads."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import CheckpointError, ConfigError
from driveRT_ros.core.pipeline import LidarPipeline
from driveRT_ros.models.checkpoint import load_weights
from driveRT_ros.train import loop, meters
from driveRT_ros.train.augment import draw_motion
from driveRT_ros.train.data import collate
from driveRT_ros.train.log import read_log
from driveRT_ros.train.loop import DETECTOR, WEIGHTS, Trainer
from driveRT_ros.train.samples import unpack
from driveRT_ros.train.schedule import Average, one_cycle
from driveRT_ros.train.state import newest_state, read_state, write_state
from test.support.training import small_config, small_sample

CPU = torch.device("cpu")


def batch_of(config, *seeds):
    rng = np.random.default_rng(0)
    return collate([(small_sample(s, ground=600), draw_motion(config.augment, rng)) for s in seeds])


def batches(config, first=0):
    for step in itertools.count(first):
        yield batch_of(config, 2 * step % 6, (2 * step + 1) % 6)


def still(**groups):
    """Return a configuration that changes no frame."""
    augment = {
        "flip_x": False, "flip_y": False, "max_rotation_rad": 0.0, "max_scale": 0.0,
        "paste_to": (),
    }  # fmt: skip
    return small_config(augment=augment, **groups)


def test_a_small_network_learns_one_frame_by_heart(tmp_path):
    config = still(
        optimizer={"steps": 60, "max_learning_rate": 0.02, "batch_norm_momentum": 0.2},
    )
    trainer = Trainer(config, tmp_path, CPU)
    one = batch_of(config, 4)
    assert trainer.run(itertools.repeat(one))
    losses = [row["loss"] for row in read_log(tmp_path)]
    assert len(losses) == 60
    assert losses[-1] < 0.05 * losses[0]

    lidar = LidarConfig.from_yaml(tmp_path / DETECTOR)
    assert lidar.voxelization == config.voxelization
    pipeline = LidarPipeline(lidar, load_weights(lidar.checkpoint_path, lidar), "cpu")
    sample = small_sample(4, ground=600)
    found = pipeline.process(unpack(sample.points))
    sure = found.scores > 0.4
    assert sure.sum() == len(sample.boxes)
    for box, label in zip(sample.boxes, sample.labels):
        apart = (found.boxes[sure, :2] - torch.from_numpy(box[:2])).norm(dim=1)
        match = apart.argmin()
        assert apart[match] < 0.3
        mine = found.boxes[sure][match]
        assert found.labels[sure][match] == label
        assert (mine[3:6] / torch.from_numpy(box[3:6]) - 1).abs().max() < 0.2
        assert torch.cos(mine[6] - float(box[6])) > 0.95
        assert (mine[7:9] - torch.from_numpy(box[7:9])).norm() < 0.8


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_loss_falls_in_half_precision(tmp_path, precision):
    config = still(optimizer={"steps": 8, "max_learning_rate": 0.01, "precision": precision})
    trainer = Trainer(config, tmp_path, CPU)
    one = batch_of(config, 4)
    losses = [float(trainer.train_step(one)["loss"]) for _ in range(8)]
    assert min(losses[-3:]) < 0.7 * losses[0]


def run(config, folder, *, steps=None, resume=False):
    """Run some steps, or all, and return the trainer."""
    trainer = Trainer(config, folder, CPU)
    if resume:
        trainer.resume()
    end = trainer.step + steps if steps else None
    trainer.run(batches(config, trainer.step), stop=lambda: trainer.step == end)
    return trainer


def everything(folder):
    step, tensors, values = read_state(newest_state(folder))
    return step, {k: v.numpy().tobytes() for k, v in tensors.items()}, values["optimizer_steps"]


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path):
    config = small_config(optimizer={"steps": 6, "average": 0.9}, output={"max_file_mb": 0.1})
    run(config, tmp_path / "whole")
    run(config, tmp_path / "parts", steps=2)
    assert everything(tmp_path / "parts")[0] == 2
    resumed = run(config, tmp_path / "parts", resume=True)
    assert resumed.note == ""
    assert everything(tmp_path / "whole") == everything(tmp_path / "parts")
    one, two = (load_weights(tmp_path / n / WEIGHTS, config.lidar) for n in ("whole", "parts"))
    assert one.sha256 == two.sha256
    rows = [[{k: v for k, v in row.items() if k not in ("wait_share", "frames_per_s")}
             for row in read_log(tmp_path / n)] for n in ("whole", "parts")]  # fmt: skip
    assert rows[0] == rows[1] and len(rows[0]) == 6
    assert (tmp_path / "parts" / "loss.png").stat().st_size > 1000


def test_the_log_gives_means_of_the_steps_since_its_last_line(tmp_path):
    config = small_config(optimizer={"steps": 5})
    run(config, tmp_path / "each")
    run(small_config(optimizer={"steps": 5}, output={"log_every": 2}), tmp_path / "two")
    each = [row["loss"] for row in read_log(tmp_path / "each")]
    rows = read_log(tmp_path / "two")
    assert [row["step"] for row in rows] == [2, 4, 5]
    want = [(each[0] + each[1]) / 2, (each[2] + each[3]) / 2, each[4]]
    assert [row["loss"] for row in rows] == pytest.approx(want, rel=1e-6)
    assert all(row["frames_per_s"] > 0 and 0 <= row["wait_share"] <= 1 for row in rows)


def test_another_seed_learns_other_weights(tmp_path):
    a, b = (
        run(small_config(seed=seed, optimizer={"steps": 1}), tmp_path / str(seed))
        for seed in (0, 1)
    )
    assert a.weights().sha256 != b.weights().sha256


def test_states_are_files_small_enough_and_only_the_newest_is_kept(tmp_path):
    config = small_config(optimizer={"steps": 3}, output={"max_file_mb": 0.1, "save_every_s": 1.0})
    trainer = Trainer(config, tmp_path, CPU)
    for step in (1, 2):
        trainer.step = step
        trainer.save()
    states = list(tmp_path.glob("state-*"))
    assert [s.name for s in states] == ["state-00000002"]
    sizes = [f.stat().st_size for f in states[0].iterdir()]
    assert len(sizes) > 2 and max(sizes) <= 110_000


def test_a_state_that_was_never_finished_is_passed_over(tmp_path):
    tensors = {"a": torch.arange(3.0)}
    write_state(tmp_path, 1, tensors, {"x": 1}, 1.0)
    half = tmp_path / "state-00000009"
    half.mkdir()
    safetensors.torch.save_file(tensors, half / "part-0.safetensors")
    assert newest_state(tmp_path).name == "state-00000001"
    step, read, values = read_state(newest_state(tmp_path))
    assert step == 1 and torch.equal(read["a"], tensors["a"]) and values == {"x": 1}
    (newest_state(tmp_path) / "part-0.safetensors").unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_state(newest_state(tmp_path))


@pytest.mark.parametrize("again", [1, 2])
def test_a_run_killed_at_any_moment_of_writing_a_state_has_a_whole_one(
    again, tmp_path, monkeypatch
):
    """The same step is written twice where a run that was done is asked to go on: removing the
    first one before the second one is there would lose the run."""
    calls = itertools.count()
    last = -1

    def may_die(work):
        def call(*args, **more):
            if next(calls) == last:
                raise KeyboardInterrupt
            return work(*args, **more)

        return call

    for owner, name in (
        (Path, "rename"), (Path, "unlink"), (Path, "mkdir"), (Path, "write_text"),
        (shutil, "rmtree"), (safetensors.torch, "save_file"),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, may_die(getattr(owner, name)))
    for moment in range(100):
        folder, last = tmp_path / str(moment), -1
        write_state(folder, 1, {"a": torch.zeros(3)}, {}, 1.0)
        done = []
        for _ in range(2):  # once more after the kill: what it left must not be in the way
            calls, last = itertools.count(), moment
            with contextlib.suppress(KeyboardInterrupt):
                done.append(write_state(folder, again, {"a": torch.ones(3)}, {}, 1.0))
            step, tensors, _ = read_state(newest_state(folder))
            assert step in (1, again) and set(tensors["a"].tolist()) in ({0.0}, {1.0})
        last = -1
        write_state(folder, again, {"a": torch.full((3,), 2.0)}, {}, 1.0)
        assert [f.name for f in folder.iterdir()] == [f"state-{again:08d}"]
        assert read_state(newest_state(folder))[1]["a"].tolist() == [2.0] * 3
        if len(done) == 2:
            break
    assert 4 < moment < 100


def test_without_its_moments_the_optimizer_warms_up_again(tmp_path):
    config = small_config(
        optimizer={"steps": 8, "warm_up_steps": 4, "average": 0.9},
        output={"save_optimizer": False},
    )
    run(config, tmp_path, steps=4)
    assert not any("exp_avg" in k for k in everything(tmp_path)[1])
    trainer = Trainer(config, tmp_path, CPU)
    trainer.resume()
    assert "starts anew" in trainer.note
    rates = []
    for _ in range(4):
        trainer.train_step(batch_of(config, 1))
        wanted, _ = one_cycle(trainer.step - 1, config.optimizer)
        rates.append(trainer._optimizer.param_groups[0]["lr"] / wanted)
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0])


def test_a_state_of_another_model_or_cycle_is_refused(tmp_path):
    run(small_config(optimizer={"steps": 2}), tmp_path, steps=1)
    for other in (
        {"optimizer": {"steps": 3}},
        {"model": {"channels": (6, 8, 12, 8, 8, 8)}},
        {"densification_params": {"num_past_frames": 2}},
    ):
        trainer = Trainer(small_config(**{"optimizer": {"steps": 2}, **other}), tmp_path, CPU)
        with pytest.raises(CheckpointError, match="go on with the same"):
            trainer.resume()
    with pytest.raises(CheckpointError, match="no state"):
        Trainer(small_config(), tmp_path / "nothing", CPU).resume()


def test_a_run_remembers_all_that_it_was_trained_on(tmp_path):
    """Weights that learned from a recording must not pass for simulated ones by a last step."""
    config = small_config()
    for name in ("nuScenes", "simulator", "simulator"):
        trainer = Trainer(config, tmp_path, CPU, data_name=name)
        if newest_state(tmp_path) is not None:
            trainer.resume()
        trainer.save()
    assert read_state(newest_state(tmp_path))[2]["data"] == "nuScenes; simulator"
    assert trainer.weights().source.endswith("on nuScenes; simulator")


class Ticking:
    """A clock that runs by being looked at: no machine is too slow for it."""

    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        self.now_s += 0.1
        return self.now_s


def test_a_run_stops_in_time(tmp_path, monkeypatch):
    clock = Ticking()
    for module in (loop, meters):
        monkeypatch.setattr(module, "time", clock)
    config = small_config(optimizer={"steps": 100_000})
    trainer = Trainer(config, tmp_path, CPU)
    assert not trainer.run(batches(config), deadline_s=9.0)
    assert 3.0 < clock.now_s < 9.0  # of which five seconds are kept for writing the state
    assert 2 <= trainer.step == everything(tmp_path)[0]


def test_steps_without_a_finite_gradient_leave_the_weights_alone_and_end_the_run(tmp_path):
    config = small_config(optimizer={"steps": 100})
    trainer = Trainer(config, tmp_path, CPU)
    before = {n: p.detach().clone() for n, p in trainer.module.named_parameters()}
    trainer.loss_of = lambda batch: (
        sum(p.sum() for p in trainer.module.parameters()) * float("nan"),
        {},
    )
    for _ in range(50):
        trainer.train_step(None)
    assert all(torch.equal(before[n], p) for n, p in trainer.module.named_parameters())
    with pytest.raises(ConfigError, match="no finite gradient"):
        trainer.train_step(None)


def test_a_forward_pass_that_overflows_leaves_the_running_statistics_alone(tmp_path):
    """Halves overflow now and then; a mean that took in one infinity would hold it to the end."""
    config = small_config(optimizer={"average": 0.9})
    trainer = Trainer(config, tmp_path, CPU)
    first = next(iter(trainer.module.layers.values()))
    batch, weight = batch_of(config, 1), first.weight.detach().clone()
    trainer.train_step(batch)
    with torch.no_grad():
        weight.copy_(first.weight)
        first.weight.fill_(3e38)
    before = {n: b.clone() for n, b in trainer.module.named_buffers()}
    assert not trainer.train_step(batch)["norm"].isfinite()
    assert all(torch.equal(before[n], b) for n, b in trainer.module.named_buffers())
    with torch.no_grad():
        first.weight.copy_(weight)
    assert trainer.train_step(batch)["norm"].isfinite()
    after = trainer.module.state_dict()
    assert all(t.isfinite().all() for t in after.values())
    assert any(not torch.equal(before[n], after[n]) for n in before.keys() & after.keys())


def test_the_cycle_rises_to_its_peak_and_falls_to_its_end():
    config = small_config(optimizer={"steps": 101, "max_learning_rate": 1.0, "rise": 0.3}).optimizer
    rates, momenta = zip(*(one_cycle(step, config) for step in range(101)))
    assert rates[0] == pytest.approx(0.1) and rates[30] == pytest.approx(1.0)
    assert rates[100] == pytest.approx(1e-4)
    assert momenta[0] == momenta[100] == pytest.approx(0.95)
    assert momenta[30] == pytest.approx(0.85)
    assert all(a < b for a, b in zip(rates[:30], rates[1:31]))
    assert all(a > b for a, b in zip(rates[30:100], rates[31:]))


def test_the_average_follows_the_weights_and_counts_the_first_steps_more():
    layer = torch.nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(0.0)
    average = Average(layer, 0.5)
    for step, value in enumerate((1.0, 1.0, 0.0)):
        layer.weight.data.fill_(value)
        average.update(step)
    # keep 1/10, 2/11, 3/12
    want = ((0.0 * 0.1 + 0.9) * 2 / 11 + 9 / 11) * 3 / 12
    assert average.tensors["weight"].item() == pytest.approx(want)


def test_what_is_exported_is_the_average(tmp_path):
    config = small_config(optimizer={"steps": 4, "average": 0.9})
    trainer = run(config, tmp_path)
    own = {n: t.clone() for n, t in trainer.module.state_dict().items()}
    exported = trainer.weights()
    assert all(torch.equal(own[n], t) for n, t in trainer.module.state_dict().items())
    name = "layers.head0/hm/out.bias"
    torch.testing.assert_close(
        exported.tensors["head0.hm.out.bias"].float(), trainer._average.tensors[name]
    )
    assert not torch.equal(own[name], trainer._average.tensors[name])


@pytest.mark.gpu
def test_a_gpu_learns_like_a_cpu_and_goes_on_to_the_same_bits(tmp_path):
    config = small_config(optimizer={"steps": 6, "average": 0.9, "precision": "fp32"})
    cuda = torch.device("cuda", 0)
    losses = []
    for device, name in ((CPU, "cpu"), (cuda, "gpu"), (cuda, "again")):
        trainer = Trainer(config, tmp_path / name, device)
        trainer.run(batches(config), stop=lambda t=trainer, n=name: n == "again" and t.step == 3)
        losses.append([row["loss"] for row in read_log(tmp_path / name)])
    assert losses[1][:3] == pytest.approx(losses[0][:3], rel=2e-2)
    trainer = Trainer(config, tmp_path / "again", cuda)
    trainer.resume()
    trainer.run(batches(config, trainer.step))
    assert everything(tmp_path / "gpu") == everything(tmp_path / "again")
