"""``drivert bench soak``: clouds of all sizes, memory that stays, and memory that does not."""

from __future__ import annotations

import json
import mmap

import pytest
import torch

from driveRT_ros.bench import soak as bench
from driveRT_ros.bench.frames import Frame
from driveRT_ros.cli import main
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.frame import Detections
from driveRT_ros.core.pipeline import LidarPipeline
from test.commands.test_cli import refused
from test.support.demo_files import TINY_NETWORK, tiny_network

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
CPU = torch.device("cpu")
MB = 1_000_000


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> LidarConfig:
    path = tmp_path_factory.mktemp("soak") / "network.yaml"
    path.write_text(TINY_NETWORK)
    return LidarConfig.from_yaml(path)


def small_clouds() -> list[Frame]:
    generator = torch.Generator().manual_seed(0)
    spread = torch.tensor([40.0, 40.0, 4.0, 255.0, 0.0])
    low = torch.tensor([20.0, 20.0, 3.0, 0.0, 0.0])
    sizes = (10, 60, 300)
    return [
        Frame(str(n), "made up", torch.rand(n, 5, generator=generator) * spread - low)
        for n in sizes
    ]


class Leaking:
    """A detector that keeps something of every frame."""

    def __init__(self, pipeline: LidarPipeline, kept_bytes: int) -> None:
        self._pipeline, self._bytes = pipeline, kept_bytes
        self.kept: list[mmap.mmap] = []

    def process(self, points: torch.Tensor) -> Detections:
        self.kept.append(mmap.mmap(-1, self._bytes))  # fresh pages, none that were freed before
        self.kept[-1].write(b"x" * self._bytes)
        return self._pipeline.process(points)


def test_the_command_runs_as_many_frames_as_asked_for_and_watches_memory(tmp_path, capsys):
    output = tmp_path / "result.json"
    assert main([
        "bench", "soak", "--device", "cpu", "--count", "5", "--output", str(output),
        "--config", str(tiny_network(tmp_path)),
    ]) == 0  # fmt: skip
    report = json.loads(output.read_text())
    assert (report["suite"], report["frames"], report["at_frame"]) == ("soak", 5, list(range(6)))
    assert report["points"] == [5_000, 250_000]
    rss = report["memory"]["host_rss"]
    assert len(rss["bytes"]) == 6 and min(rss["bytes"]) > 50 * MB
    assert rss["grown"] == max(rss["bytes"][3:]) - max(rss["bytes"][:3])
    assert 0 < report["wall_ms"]["p50"] <= report["wall_ms"]["max"]
    text = capsys.readouterr().out
    assert "host_rss" in text and "Message to detections" in text


def test_a_detector_that_keeps_something_of_every_frame_is_found_out(config):
    leaking = Leaking(LidarPipeline(config, None, CPU), kept_bytes=MB)
    told: list[int] = []
    report = bench.soak(leaking, small_clouds(), config, CPU, 60, told.append)
    assert len(leaking.kept) == 60 and told[-1] == 60
    # The second half has kept 30 million bytes more; half of that cannot be anything else.
    assert report["memory"]["host_rss"]["grown"] > 15 * MB
    table = bench.growth_table(report)
    assert table[1][0] == "host_rss" and table[1][-1].startswith("+")


@pytest.mark.gpu
def test_device_memory_is_flat_over_clouds_of_all_sizes():
    config = LidarConfig()
    pipeline = LidarPipeline(config, None, "cuda")
    pipeline.warm_up()
    clouds = list(bench.soak_clouds(config, distinct=12))
    report = bench.soak(pipeline, clouds, config, torch.device("cuda", 0), 300)
    assert report["overflows"] == 0
    # What the whole device has in use is reported, too, but here others may run beside.
    assert len(report["memory"]["device_used"]["bytes"]) == len(report["at_frame"])
    for kind in ("torch_reserved", "torch_allocated"):
        assert report["memory"][kind]["grown"] <= 0, report["memory"][kind]


def test_sizes_lie_on_a_logarithmic_scale_and_are_the_same_each_time(config):
    first, second = (
        [c.points for c in bench.soak_clouds(config, (100, 10_000), 3)] for _ in range(2)
    )
    assert [len(points) for points in first] == [100, 1_000, 10_000]
    assert all(torch.equal(a, b) for a, b in zip(first, second))


@no_gpu
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "'drivert bench soak --device cpu'"),
        (("--device", "cpu", "--count", "0"), "--count takes 4 to 1000000 frames, got 0"),
        (("--device", "cpu", "--rounds", "3"), "--rounds belongs to"),
    ],
)
def test_a_wrong_option_is_refused(arguments, sentence, capsys):
    assert sentence in refused(capsys, "bench", "soak", *arguments)
