"""``drivert bench ros``: a node and its probe in processes of their own, and what is counted."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch

from driveRT_ros.bench.sensor import sensor_clouds
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.io.messages import stamp_ns_of
from driveRT_ros.io.pointcloud import decode
from driveRT_ros.io.topics import POINT_CLOUD
from driveRT_ros.io.typestore import deserialize
from driveRT_ros.nodes.probe_config import Tally, load_clouds, percentiles, stamped
from test.commands.test_cli import refused
from test.support.demo_files import TINY_NETWORK, drivert
from test.support.node_process import started

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
MS = 1_000_000
STILL = "densification_params: {num_past_frames: 0}\n"


@pytest.mark.nodes
def test_clouds_of_two_rates_are_answered_or_named_and_their_latency_is_told(tmp_path: Path):
    network, output = tmp_path / "network.yaml", tmp_path / "result.json"
    network.write_text(TINY_NETWORK + STILL)
    done = drivert(
        "bench", "ros", "--device", "cpu", "--sizes", 0.05, "--rates", "5,400", "--duration", 1,
        "--config", network, "--output", output,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(output.read_text())
    assert (report["suite"], report["transports"], report["past_sweeps"]) == (
        "ros",
        "fastdds.xml",
        0,
    )
    assert (report["reliability"], report["queue_depth"]) == ("best_effort", 5)
    assert report["warm_ups"] == 3 and report["cpus_allowed"] >= 1
    slow, fast = report["cases"]
    assert slow["weights"] == fast["weights"] == "untrained, seed 0"
    assert (slow["sent"], fast["sent"]) == (5, 400)
    for case in (slow, fast):
        assert case["sent"] == case["answered"] + case["dropped"] + case["lost"]
        assert case["answered"] == case["latency_ms"]["n"] > 0
        times = [case["latency_ms"][name] for name in ("p50", "p95", "p99", "max")]
        assert times == sorted(times)
        # Seen from outside a frame takes longer than inside; warm-ups are seen inside alone.
        assert case["latency_ms"]["p50"] > case["node"]["p50"] > 0 or case["node_warm_ups"] > 0
        assert case["node"]["frames"] == case["answered"] + case["node_warm_ups"]
        assert case["node"]["decode.p50"] > 0
    assert slow["answered"] / slow["sent"] >= fast["answered"] / fast["sent"]
    assert fast["dropped"] > 0  # no CPU detects so often, and the node says what it leaves out
    assert "answered" in done.stdout and f"Wrote {output}." in done.stdout


@no_gpu
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "'drivert bench ros --device cpu'"),
        (("--device", "cpu", "--sizes", "600"), "from 0.01 to 40 by comma, got '600'"),
        (("--device", "cpu", "--rates", "0,10"), "--rates takes clouds a second"),
        (("--device", "cpu", "--duration", "0"), "--duration takes"),
        (("--device", "cpu", "--peers", "torch"), "--peers belongs to"),
        (("--device", "cpu", "--rounds", "3"), "--rounds belongs to"),
    ],
)
def test_a_wrong_option_is_refused(arguments, sentence, capsys):
    assert sentence in refused(capsys, "bench", "ros", *arguments)


def test_clouds_have_the_size_that_is_asked_for():
    clouds = sensor_clouds(0.1, 2)
    assert len(clouds.raw) == 2 and clouds.raw[0] != clouds.raw[1]
    assert 98_000 < clouds.data_bytes < 102_000 and clouds.data_bytes == 20 * clouds.points
    message = deserialize(clouds.raw[0], POINT_CLOUD)
    assert message.header.frame_id == clouds.frame_id
    assert len(decode(message)) == clouds.points == message.width
    with pytest.raises(ConfigError, match="50 is asked for"):
        sensor_clouds(50, 1)


def test_a_cloud_gets_another_stamp_and_stays_as_it_was():
    (raw,) = sensor_clouds(0.01, 1).raw
    stamp_ns = 1_700_000_000_123_456_789
    before, after = (deserialize(r, POINT_CLOUD) for r in (raw, stamped(raw, stamp_ns)))
    assert stamp_ns_of(after.header.stamp) == stamp_ns
    assert after.data.tobytes() == before.data.tobytes() and after.width == before.width
    big = b"\x00\x00\x00\x00" + bytes(20)
    assert struct.unpack_from(">iI", stamped(big, stamp_ns), 4) == (1_700_000_000, 123_456_789)


def test_a_cloud_is_answered_dropped_or_lost():
    tally = Tally(sent_ns={10: 0, 20: 50 * MS, 30: 100 * MS, 40: 150 * MS})
    tally.answered_ns = {10: 30 * MS, 20: 60 * MS, 5: 1 * MS}  # 5 belongs to an earlier run
    tally.dropped = {30, 6}
    assert tally.open == 1
    found = tally.result()
    assert (found["sent"], found["answered"], found["dropped"], found["lost"]) == (4, 2, 1, 1)
    assert found["latency_ms"] == {"p50": 10.0, "p95": 30.0, "p99": 30.0, "max": 30.0, "n": 2}


def test_nothing_measured_is_null_in_json():
    assert percentiles([]) == {"p50": None, "p95": None, "p99": None, "max": None, "n": 0}


def test_a_folder_without_clouds_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no"):
        load_clouds(str(tmp_path))


@pytest.mark.nodes
def test_a_probe_without_a_node_says_so_and_fails(domain_id: int, tmp_path: Path):
    (tmp_path / "0.cdr").write_bytes(bytes(20))
    params = {
        "clouds_path": str(tmp_path), "output_path": str(tmp_path / "result.json"),
        "node": "absent", "wait_s": 0.5,
    }  # fmt: skip
    with started("probe_node", tmp_path, domain_id, params=params) as probe:
        assert probe.wait() == 1
        assert "Node 'absent' was not there within 0.5 s." in probe.log()
    assert not (tmp_path / "result.json").exists()
