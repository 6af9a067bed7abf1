"""Plans are values: they survive a round trip, and refuse what they cannot run."""

from __future__ import annotations

import dataclasses

import pytest

from driveRT_ros.core.config import ModelConfig
from driveRT_ros.core.errors import ConfigError, PlanMismatch
from driveRT_ros.core.plan import Plan, Tactic, default_plan
from driveRT_ros.models.graph import build_graph

SMALL = (16, 32, 64, 64, 64, 64)


@pytest.mark.parametrize("channels", [ModelConfig().channels, SMALL])
@pytest.mark.parametrize("capability", [(7, 5), (8, 6), (9, 0), (12, 0)])
def test_the_default_plan_runs_every_layer(channels, capability):
    plan = default_plan(channels, capability)
    graph = build_graph(ModelConfig(channels=channels))
    layers = [layer for level in graph.levels for layer in level][1:] + list(graph.bev)
    for layer in layers:
        tactic = plan.tactics[layer.map_key]
        assert tactic.supports(layer.in_channels, layer.out_channels, layer.taps) == ""
        limit = 64 << 10 if capability < (8, 0) else 99 << 10
        assert tactic.shared_bytes(layer.out_channels) <= limit


def test_a_plan_survives_json():
    plan = default_plan(SMALL, (9, 0))
    assert Plan.from_json(plan.to_json()) == plan


def test_a_file_that_is_no_plan_is_refused(tmp_path):
    for text in ("", "{}", '{"version": 1, "tactics": {"subm1": {"groups": 3}}}', "[1]"):
        with pytest.raises(ConfigError, match="no Plan"):
            Plan.from_json(text)
    with pytest.raises(ConfigError, match=r"missing\.json"):
        Plan.load(tmp_path / "missing.json")


def test_a_plan_of_other_kernels_or_another_gpu_is_named():
    text = default_plan(SMALL, (9, 0)).to_json().replace('"version": 1', '"version": 0')
    with pytest.raises(PlanMismatch, match="version 0"):
        Plan.from_json(text)
    plan = dataclasses.replace(default_plan(SMALL, (9, 0)), gpu="GPU A")
    plan.check_gpu("GPU A")
    with pytest.raises(PlanMismatch, match="'GPU A', this is 'GPU B'"):
        plan.check_gpu("GPU B")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tile_rows": 48}, "tile_rows"),
        ({"slab": 24}, "slab"),
        ({"thread_channels": 6}, "thread_channels"),
        ({"groups": 4}, "groups"),
        ({"stages": 1}, "stages"),
        ({"thread_rows": 64, "thread_channels": 128}, "threads"),
    ],
)
def test_a_tactic_says_what_it_cannot_run(changes, named):
    good = Tactic(3, 64, 16, 8, 8, 3, 3)
    assert good.supports(128, 128, 27) == ""
    assert named in dataclasses.replace(good, **changes).supports(128, 128, 27)
    assert "groups" in dataclasses.replace(good, groups=9).supports(128, 128, 9)
