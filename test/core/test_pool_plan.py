"""The tactic of pooling in a Plan: what it is filed under, and what happens where it cannot run."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.plan import Plan, default_plan
from driveRT_ros.core.pool_plan import PoolGpu, PoolSizes, choose_tactic
from driveRT_ros.core.pool_tactics import PoolShape, PoolTactic

F32, F16, F8 = torch.float32, torch.float16, torch.float8_e4m3fn
GPU = PoolGpu("GPU A", 50 << 20)
SIZES = PoolSizes(PoolShape(64, F16, F16, F16, 8), (6, 59, 16, 44), 180 * 180)
KEY = "float16_c64_fits_l2"
TUNED = PoolTactic("tiles", steps=3)
PLAN = Plan("fp16", {}, gpu="GPU A", pools={KEY: TUNED})


def test_the_working_set_is_all_that_is_read_and_written():
    shape = PoolShape(2, F8, F32, F16, 1)
    # 120 points of a depth and three ranks, 24 pixels of 2 bytes, 100 cells of 2 halves.
    assert PoolSizes(shape, (2, 5, 3, 4), 100).working_set_bytes == 120 * (4 + 12) + 24 * 2 + 400
    both = dataclasses.replace(shape, features=F16)
    assert PoolSizes(both, (2, 5, 3, 4), 100).working_set_bytes == 120 * (4 + 12) + 24 * 4 + 400


def test_a_tactic_is_filed_under_cache_channels_and_type():
    needed = SIZES.working_set_bytes
    assert SIZES.key(needed) == KEY
    assert SIZES.key(needed - 1) == "float16_c64_exceeds_l2"
    other = dataclasses.replace(SIZES, shape=PoolShape(80, F8, F16, F16, 16))
    assert other.key(GPU.l2_bytes) == "float8_e4m3fn_c80_fits_l2"


def test_a_plan_with_pooling_survives_json_and_the_other_network_runs_its_default(tmp_path):
    assert Plan.from_json(PLAN.to_json()) == PLAN
    channels = (16, 32, 64, 64, 64, 64)
    both = dataclasses.replace(PLAN, tactics=default_plan(channels, (9, 0), "fp16").tactics)
    both.save(tmp_path / "both.json")
    assert Plan.load(tmp_path / "both.json") == both
    assert choose_tactic(tmp_path / "both.json", SIZES, GPU) == (TUNED, "")
    where = (channels, "fp16", "GPU A", (9, 0))
    assert Plan.for_device(tmp_path / "both.json", *where) == (both, "")
    PLAN.save(tmp_path / "cameras.json")
    plan, note = Plan.for_device(tmp_path / "cameras.json", *where)
    assert plan == default_plan(channels, (9, 0), "fp16") and "no tactic for domain" in note


def test_without_a_plan_the_default_runs():
    assert choose_tactic("", SIZES, GPU) == (SIZES.default(), "")
    assert SIZES.default() == PoolTactic("tiles", warps=8)
    exact = dataclasses.replace(SIZES, shape=PoolShape(64, F32, F32, F32, 4))
    assert exact.default().kind == "balanced"  # tensor cores would round features to halves


STALE = {
    "another version": ({"version": 1}, "version 1"),
    "another GPU": ({"gpu": "GPU B"}, "tuned on 'GPU B', this is 'GPU A'"),
    "from before pooling was recorded": ({"pools": None}, f"no way to pool for '{KEY}', for none"),
    "other channels": ({"pools": {"float16_c80_fits_l2": {}}}, "only for float16_c80_fits_l2"),
    "a tactic that cannot run": ({"pools": {KEY: {"groups": 3}}}, "channels that divide"),
    "a wrong type": ({"pools": {KEY: {"half_sum": 1}}}, "half_sum is 1"),
    "a count of zero": ({"pools": {KEY: {"chunk": 0}}}, "chunk is 0"),
    "an unknown field": ({"pools": {KEY: {"colour": "red"}}}, "no Plan"),
}


@pytest.mark.parametrize("case", STALE)
def test_a_stale_or_foreign_plan_is_named_and_the_default_runs(case, tmp_path):
    changes, named = STALE[case]
    values = json.loads(PLAN.to_json()) | changes
    if values["pools"] is None:
        del values["pools"]
    else:
        base = {"kind": "tiles"} if "pools" in changes else {}
        values["pools"] = {key: {**base, **fields} for key, fields in values["pools"].items()}
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(values))
    tactic, note = choose_tactic(path, SIZES, GPU)
    assert tactic == SIZES.default() != TUNED
    assert str(path) in note and "the default runs instead" in note and named in note


def test_a_missing_file_is_named(tmp_path):
    tactic, note = choose_tactic(tmp_path / "none.json", SIZES, GPU)
    assert tactic == SIZES.default() and "none.json" in note


def test_a_tactic_of_no_known_kind_is_no_plan():
    text = PLAN.to_json().replace('"tiles"', '"abacus"')
    tactic = Plan.from_json(text).pools[KEY]
    assert "kind" in tactic.supports(SIZES.shape, SIZES.frustum_shape)
    with pytest.raises(ConfigError, match="no Plan"):
        Plan.from_json(PLAN.to_json().replace('"kind": "tiles"', '"kind": 3'))
