"""``drivert train`` from the command line: shards, a run, another sitting, several processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from driveRT_ros.cli import main
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.models.checkpoint import load_weights
from driveRT_ros.train.config import TrainConfig
from driveRT_ros.train.log import read_log
from driveRT_ros.train.loop import WEIGHTS
from driveRT_ros.train.shards import Shards
from driveRT_ros.train.state import newest_state, read_state

REPO = Path(__file__).resolve().parents[2]
CONFIG = {
    "voxelization": {
        "point_cloud_range": [-12.8, -12.8, -3.0, 12.8, 12.8, 1.0],
        "voxel_size": [0.2, 0.2, 0.25],
    },
    "model": {"channels": [4, 4, 8, 8, 8, 8]},
    "densification_params": {"num_past_frames": 0},
    "data": {"batch_size": 1, "workers": 1, "frames_per_drive": 1, "reuse": 4},
    "augment": {"database_drives": 1},
    "output": {"log_every": 1},
}


@pytest.fixture
def config(tmp_path) -> str:
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return str(path)


def train(config: str, *options: object) -> int:
    return main(["train", "--config", config, "--device", "cpu", *map(str, options)])


def test_a_run_on_simulated_drives_goes_on_in_another_sitting(tmp_path, config, capsys):
    out = tmp_path / "run"
    assert train(config, "--out", out, "--steps", 4, "--time-limit", 0.1, "--resume") == 0
    said = capsys.readouterr().out
    assert "holds no run yet: this begins one" in said and "--resume goes on" in said
    step, _, _ = read_state(newest_state(out))
    assert step == 1
    assert train(config, "--out", out, "--steps", 4) == 2
    assert "holds a run" in capsys.readouterr().err
    assert train(config, "--out", out, "--steps", 4, "--resume") == 0
    assert "4 of 4 steps done." in capsys.readouterr().out
    assert [row["step"] for row in read_log(out)] == [1, 2, 3, 4]
    lidar = LidarConfig.from_dict({"model": CONFIG["model"]})
    assert load_weights(out / WEIGHTS, lidar).trained


def test_frames_are_written_and_trained_on(tmp_path, config, capsys):
    frames, out = tmp_path / "frames", tmp_path / "run"
    assert train(config, "--make-shards", frames, "--scenes", 2) == 0
    assert "2 of 2 drives, 2 frames" in capsys.readouterr().out
    assert train(config, "--data", frames, "--out", out, "--steps", 2) == 0
    _, _, values = read_state(newest_state(out))
    assert values["data"] == "simulator, 2 frames"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ((), "--out"),
        (("--out", "x", "--data", "nowhere"), "nowhere"),
        (("--out", "x", "--time-limit", "-1"), "--time-limit"),
        (("--out", "x", "--time-limit", "nan"), "--time-limit must be positive, got nan"),
        (("--make-shards", "x"), "--scenes"),
        (("--make-shards", "x", "--out", "y", "--scenes", "1"), "leave out --out"),
        (("--make-shards", "train.yaml", "--scenes", "1"), "'train.yaml' cannot be made"),
        (("--out", "x", "--scenes", "4"), "--scenes is for --make-shards"),
        (("--out", "train.yaml/x"), "'train.yaml/x' cannot be made"),
        (("--out", "x", "--set", "data.bach_size=1"), "batch_size"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(
    tmp_path, config, capsys, monkeypatch, options, complaint
):
    monkeypatch.chdir(tmp_path)
    assert train(config, *options) == 2
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1


def test_a_run_that_is_asked_to_end_writes_its_state_first(tmp_path, config):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "driveRT_ros", "train", "--config", config, "--device", "cpu"]
    process = subprocess.Popen([*command, "--out", str(out)], cwd=REPO, stdout=subprocess.DEVNULL)
    while process.poll() is None and not read_log(out):
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 0
    assert read_state(newest_state(out))[0] >= 1


def test_frames_written_before_ctrl_c_can_be_trained_on(tmp_path, config):
    frames = tmp_path / "frames"
    command = [sys.executable, "-m", "driveRT_ros", "train", "--config", config, "--set"]
    command += ["data.workers=2", "--make-shards", str(frames), "--scenes", "1000"]
    process = subprocess.Popen(
        command, cwd=REPO, stdout=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    while process.poll() is None and not list(frames.glob("*.npz")):
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: workers get it too
    assert process.wait(300) == 0
    names = TrainConfig.from_yaml(config).model.class_names
    assert 1 <= len(Shards(frames, names)) < 1000


_RANK = """
import hashlib, sys, torch
from pathlib import Path
from torch import distributed
from driveRT_ros.train.data import Place
from driveRT_ros.train.loop import Trainer
from test.support.training import small_config
from test.train.test_loop import batches

rank = int(sys.argv[1])
torch.set_num_threads(1)
distributed.init_process_group(
    "gloo", init_method="file://" + sys.argv[2] + "/meet", rank=rank, world_size=2
)
config = small_config(optimizer={"steps": 3})
trainer = Trainer(config, Path(sys.argv[2]) / "run", torch.device("cpu"), Place(rank, 2))
# One of the two wants to stop; both must, after the same step.
trainer.run(batches(config, 5 * rank), stop=lambda: rank == 1 and trainer.step == 2)
digest = hashlib.sha256()
for parameter in trainer.module.parameters():
    digest.update(parameter.detach().numpy().tobytes())
sys.stdout.write(f"{trainer.step} {digest.hexdigest()}")
distributed.destroy_process_group()
"""


def test_two_processes_learn_the_same_weights_and_stop_together(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPO)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK, str(rank), str(tmp_path)],
            cwd=REPO, env=environment, stdout=subprocess.PIPE, text=True,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    said = [process.communicate(timeout=300)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0]
    assert said[0] == said[1]
    assert said[0].startswith("2 ")
    step, _, values = read_state(newest_state(tmp_path / "run"))
    assert (step, values["world"]) == (2, 2)
