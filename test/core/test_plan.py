"""Plans are values: they survive a round trip, refuse what they cannot run, and never block."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from driveRT_ros.core.config import ModelConfig
from driveRT_ros.core.errors import ConfigError, PlanMismatch
from driveRT_ros.core.plan import ARITHMETIC, PRECISIONS, Plan, default_plan, domain_layers
from driveRT_ros.core.sparse_conv_mma import MmaTactic
from driveRT_ros.core.tactics import Tactic, shared_limit
from driveRT_ros.models.graph import build_graph

SMALL = (16, 32, 64, 64, 64, 64)
CHIPS = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]


@pytest.mark.parametrize("channels", [ModelConfig().channels, SMALL, (16,) * 6])
def test_the_layers_of_a_plan_are_those_of_the_network(channels):
    graph = build_graph(ModelConfig(channels=channels))
    layers = [layer for level in graph.levels for layer in level][1:] + list(graph.bev)
    expected = {lay.map_key: (lay.in_channels, lay.out_channels, lay.taps) for lay in layers}
    assert domain_layers(channels) == expected


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("channels", [ModelConfig().channels, SMALL, (16,) * 6])
@pytest.mark.parametrize("capability", CHIPS)
def test_the_default_plan_runs_every_layer(channels, capability, precision):
    plan = default_plan(channels, capability, precision)
    assert plan.precision == precision
    for domain, layer in domain_layers(channels).items():
        tactic = plan.tactics[domain]
        assert tactic.supports(*layer, capability) == ""
        assert tactic.arithmetic in ARITHMETIC[precision]
        assert tactic.shared_bytes(*layer) < shared_limit(capability)
    plan.check_layers(channels, capability)


def test_a_chip_without_a_unit_falls_back_to_float32_and_fp16_says_what_it_needs():
    channels = ModelConfig().channels
    assert default_plan(channels, (7, 5), "tf32").tactics["subm4"].arithmetic == "FFMA"
    assert default_plan(channels, (7, 5), "fp32x3").tactics["subm4"].arithmetic == "F16X3"
    assert default_plan(channels, (7, 0), "fp32x3").tactics["subm4"].arithmetic == "FFMA"
    with pytest.raises(ConfigError, match=r"'fp16' cannot run domain 'subm1'.*7\.0"):
        default_plan(channels, (7, 0), "fp16")
    with pytest.raises(ConfigError, match="got 'int8'"):
        default_plan(channels, (9, 0), "int8")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_plan_survives_json_and_a_file(precision, tmp_path):
    made = default_plan(ModelConfig().channels, (9, 0), precision)
    plan = dataclasses.replace(made, measured={"frame_us": 12.5, "frames": ["a", "b"]})
    assert Plan.from_json(plan.to_json()) == plan
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    kinds = {t["kind"] for t in json.loads(plan.to_json())["tactics"].values()}
    assert kinds == {"tensor_cores"}


def test_float32_sums_in_float64_where_that_was_measured_to_win_and_nowhere_else():
    for capability in CHIPS:
        plan = default_plan(ModelConfig().channels, capability)
        used = {tactic.arithmetic for tactic in plan.tactics.values()}
        assert used == {"F64" if capability == (9, 0) else "FFMA"}


def test_a_file_that_is_no_plan_is_refused(tmp_path):
    good = json.loads(default_plan(SMALL, (9, 0)).to_json())

    def with_tactic(**changes):
        changed = {**good["tactics"]["subm1"], **changes}
        return json.dumps({**good, "tactics": {**good["tactics"], "subm1": changed}})

    texts = ["", "{}", "[1]", '{"version": 2, "tactics": {"subm1": {"groups": 3}}}']
    texts += [json.dumps({**good, "tactics": 3}), json.dumps({**good, "colour": "red"})]
    texts += [with_tactic(kind="abacus"), with_tactic(groups=0), with_tactic(slab="x16")]
    texts += [with_tactic(tile_rows=64.5), with_tactic(stages=True), with_tactic(extra=1)]
    for text in texts:
        with pytest.raises(ConfigError, match="no Plan"):
            Plan.from_json(text)
    with pytest.raises(ConfigError, match="Precision must be one of"):
        Plan.from_json(json.dumps({**good, "precision": "int8"}))
    with pytest.raises(ConfigError, match=r"missing\.json"):
        Plan.load(tmp_path / "missing.json")


def test_a_plan_of_other_kernels_another_gpu_or_other_weights_is_named():
    text = default_plan(SMALL, (9, 0)).to_json().replace('"version": 2', '"version": 1')
    with pytest.raises(PlanMismatch, match="version 1"):
        Plan.from_json(text)
    plan = dataclasses.replace(default_plan(SMALL, (9, 0)), gpu="GPU A", weights_sha256="ab12")
    plan.check_device("GPU A", "ab12")
    plan.check_device("GPU A")
    with pytest.raises(PlanMismatch, match="'GPU A', this is 'GPU B'"):
        plan.check_device("GPU B")
    with pytest.raises(PlanMismatch, match="weights ab12, these are cd34"):
        plan.check_device("GPU A", "cd34")


STALE = {
    "another version": (lambda text: text.replace('"version": 2', '"version": 1'), "version 1"),
    "another GPU": (lambda text: text.replace("GPU A", "GPU B"), "tuned on 'GPU B'"),
    "other weights": (lambda text: text.replace("ab12", "cd34"), "weights cd34"),
    "no JSON": (lambda text: text[:-10], "no Plan"),
    "no UTF-8": (lambda _: b"\xff\xfe\x00", "cannot be read"),
    "a domain less": (lambda text: text.replace('"subm3"', '"subm9"'), "domain 'subm3'"),
    "a kernel of wider layers": (lambda text: text.replace('"slab": 16', '"slab": 512'), "slab"),
    "tiles of another height": (
        lambda t: t.replace('"tile_rows": 128', '"tile_rows": 256'),
        "256 r",
    ),
    "another precision": (lambda text: text.replace('"fp32"', '"tf32"'), "precision 'tf32'"),
}


@pytest.mark.parametrize("case", STALE)
def test_a_stale_plan_is_named_and_replaced_by_the_default(tmp_path, case):
    damage, named = STALE[case]
    default = default_plan(SMALL, (9, 0))
    text = dataclasses.replace(default, gpu="GPU A", weights_sha256="ab12").to_json()
    path, where = tmp_path / "plan.json", (SMALL, "fp32", "GPU A", (9, 0), "ab12")
    path.write_text(text)
    plan, note = Plan.for_device(path, *where)
    assert plan.gpu == "GPU A" and note == ""
    stale = damage(text)
    path.write_bytes(stale if isinstance(stale, bytes) else stale.encode())
    plan, note = Plan.for_device(path, *where)
    assert plan == default
    assert named in note and str(path) in note and "default" in note


def test_no_path_means_the_default_and_a_missing_file_is_named(tmp_path):
    where = (SMALL, "fp16", "GPU A", (9, 0))
    assert Plan.for_device("", *where) == (default_plan(SMALL, (9, 0), "fp16"), "")
    plan, note = Plan.for_device(tmp_path / "none.json", *where)
    assert plan == default_plan(SMALL, (9, 0), "fp16") and "none.json" in note


def test_arithmetic_that_a_precision_does_not_allow_is_refused():
    tactics = default_plan(SMALL, (9, 0), "fp16").tactics
    with pytest.raises(ConfigError, match="'subm1' in F16; precision 'fp32' allows FFMA"):
        Plan("fp32", tactics).check_layers(SMALL, (9, 0))
    with pytest.raises(ConfigError, match="'fp16' allows F16"):
        Plan("fp16", default_plan(SMALL, (9, 0)).tactics).check_layers(SMALL, (9, 0))
    with pytest.raises(ConfigError, match="no tactic for domain 'spconv2'"):
        Plan("fp16", {"subm1": tactics["subm1"]}).check_layers(SMALL, (9, 0))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tile_rows": 48}, "tile_rows"),
        ({"slab": 24}, "slab"),
        ({"thread_channels": 6}, "thread_channels"),
        ({"groups": 4}, "groups"),
        ({"stages": 1}, "stages"),
        ({"stages": 40}, "shared memory"),
        ({"thread_rows": 0}, "thread_channels"),
        ({"thread_rows": 64, "thread_channels": 128}, "threads"),
    ],
)
def test_a_tactic_says_what_it_cannot_run(changes, named):
    good = Tactic(3, 64, 16, 8, 8, 3, 3)
    assert good.supports(128, 128, 27, (9, 0)) == ""
    assert named in dataclasses.replace(good, **changes).supports(128, 128, 27, (9, 0))
    assert "groups" in dataclasses.replace(good, groups=9).supports(128, 128, 9, (9, 0))


def test_weights_of_the_cuda_cores_stay_as_they_lie():
    weight = torch.arange(24.0, dtype=torch.float64).view(2, 3, 4).transpose(0, 1)
    packed, scale = Tactic(3, 64, 16, 8, 8, 3, 3).pack(weight)
    assert scale == 1 and packed.is_contiguous() and packed.dtype == torch.float32
    assert torch.equal(packed.double(), weight)


def test_a_tactic_of_resident_weights_counts_a_tile_a_warp():
    tactic = MmaTactic(1, 16, 16, 8, 1, 2, 4, "F16", "resident")
    assert (tactic.tiles_per_block, tactic.threads(16)) == (8, 256)
    assert dataclasses.replace(tactic, flow="direct").tiles_per_block == 1
