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
from driveRT_ros.core.verdict import Verdict
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


def test_a_plan_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    default_plan(SMALL, (9, 0), "fp16").save(path)
    before = path.read_bytes()

    def fails(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(ConfigError, match="cannot be written: No space left"):
        default_plan(SMALL, (9, 0)).save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"] and path.read_bytes() == before


def test_float32_sums_in_float64_where_that_was_measured_to_win_and_nowhere_else():
    for capability in CHIPS:
        plan = default_plan(ModelConfig().channels, capability)
        used = {tactic.arithmetic for tactic in plan.tactics.values()}
        assert used == {"F64" if capability == (9, 0) else "FFMA"}


def test_the_published_widths_alone_take_the_tactics_measured_by_domain():
    published = default_plan(ModelConfig().channels, (9, 0)).tactics
    assert published["subm6"].parts == 4 and published["spconv4"].parts == 2
    assert {t.parts for t in default_plan(SMALL, (9, 0)).tactics.values()} == {1}


@pytest.mark.parametrize("chip, rows, folded", [((8, 0), 64, False), ((9, 0), 128, True)])
def test_half_layers_take_the_tiles_and_the_order_measured_on_their_chip(chip, rows, folded):
    tactics = default_plan(ModelConfig().channels, chip, "fp16").tactics
    assert {tactics[domain].tile_rows for domain in ("subm1", "spconv2")} == {rows}
    assert {tactics[domain].folded for domain in ("subm3", "subm4", "subm_out")} == {folded}


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
    with pytest.raises(ConfigError, match="'weights_sha256' must be of type str, got 3"):
        Plan.from_json(json.dumps({**good, "weights_sha256": 3}))
    with pytest.raises(ConfigError, match="it lacks the entry 'tactics'"):
        Plan.from_json('{"version": 2}')
    (tmp_path / "bad.json").write_text("null")
    with pytest.raises(ConfigError, match=r"bad\.json' cannot be used. This is no Plan: .* None"):
        Plan.load(tmp_path / "bad.json")
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


# ---- what was qualified -------------------------------------------------------------------------

GPU, WEIGHTS = "A GPU", "ab" * 32


def judged(plan: Plan, passed: bool, **changes: object) -> Verdict:
    """Return a verdict on what a Plan runs."""
    reasons = () if passed else ("91.0 % of the boxes agree, 98.0 % are needed",)
    verdict = Verdict(
        passed=passed,
        reasons=reasons,
        figures={"frames": 3, "features": {"bev": {"largest": 0.5}}},
        limits={"agreeing": 0.98},
        gpu=GPU,
        weights_sha256=WEIGHTS,
        tactics_sha256=plan.tactics_sha256(),
        date="2026-11-30",
    )
    return dataclasses.replace(verdict, **changes)


def saved(path, precision: str, verdicts: dict[str, Verdict]) -> Plan:
    plan = dataclasses.replace(default_plan(SMALL, (9, 0), precision), qualified=verdicts)
    plan.save(path)
    return plan


def for_device(path, precision: str, weights: str = WEIGHTS) -> tuple[Plan, str]:
    return Plan.for_device(path, SMALL, precision, GPU, (9, 0), weights)


def test_verdicts_survive_json_and_a_plan_without_them_stays_readable():
    plan = default_plan(SMALL, (9, 0), "fp16")
    both = {"fp16": judged(plan, False), "tf32": judged(plan, True)}
    plan = dataclasses.replace(plan, qualified=both)
    assert Plan.from_json(plan.to_json()) == plan
    values = json.loads(plan.to_json())
    del values["qualified"]
    assert Plan.from_json(json.dumps(values)).qualified == {}


@pytest.mark.parametrize("broken", [{}, {"passed": 1}, {"figures": []}, {"gpu": None}, {"new": 1}])
def test_a_plan_with_a_broken_verdict_is_no_plan(broken):
    plan = default_plan(SMALL, (9, 0), "fp16")
    values = json.loads(plan.to_json())
    good = dataclasses.asdict(judged(plan, True))
    values["qualified"] = {"fp16": {**good, **broken} if broken else {}}
    with pytest.raises(ConfigError, match="no Plan"):
        Plan.from_json(json.dumps(values))


def test_a_precision_that_failed_is_refused_with_its_figures_and_what_to_do(tmp_path):
    path = tmp_path / "plan.json"
    saved(path, "fp16", {"fp16": judged(default_plan(SMALL, (9, 0), "fp16"), False)})
    with pytest.raises(ConfigError) as caught:
        for_device(path, "fp16")
    sentence = str(caught.value)
    assert "'fp16' failed" in sentence and "91.0 % of the boxes agree" in sentence
    assert f"drivert qualify --plan {path} --precision fp16" in sentence


def test_a_failed_precision_is_refused_too_where_the_plan_is_of_another(tmp_path):
    """The default tactics run then, and they are what was judged."""
    path = tmp_path / "plan.json"
    saved(path, "fp16", {"tf32": judged(default_plan(SMALL, (9, 0), "tf32"), False)})
    with pytest.raises(ConfigError, match="'tf32' failed"):
        for_device(path, "tf32")
    assert for_device(path, "fp16")[1] == ""


@pytest.mark.parametrize("change", ["gpu", "weights_sha256", "tactics_sha256"])
@pytest.mark.parametrize("passed", [True, False])
def test_a_verdict_on_something_else_neither_refuses_nor_vouches(tmp_path, change, passed):
    path = tmp_path / "plan.json"
    other = judged(default_plan(SMALL, (9, 0), "fp16"), passed, **{change: "other"})
    saved(path, "fp16", {"fp16": other})
    plan, note = for_device(path, "fp16")
    assert note == "" and plan.qualified == {} and not plan.is_qualified


def test_a_precision_that_passed_is_known_to_be_qualified(tmp_path):
    path = tmp_path / "plan.json"
    verdict = judged(default_plan(SMALL, (9, 0), "fp16"), True)
    saved(path, "fp16", {"fp16": verdict})
    plan, note = for_device(path, "fp16")
    assert plan.is_qualified and plan.qualified == {"fp16": verdict} and note == ""
    assert default_plan(SMALL, (9, 0)).is_qualified  # float32 is what others are compared with
    assert not for_device("", "fp16")[0].is_qualified


def test_other_tactics_or_another_precision_are_another_hash():
    plans = [default_plan(SMALL, (9, 0), precision) for precision in PRECISIONS]
    slower = dataclasses.replace(plans[0].tactics["subm1"], stages=2)
    plans.append(dataclasses.replace(plans[0], tactics={**plans[0].tactics, "subm1": slower}))
    assert len({plan.tactics_sha256() for plan in plans}) == len(plans)
    turned = dict(reversed(plans[0].tactics.items()))
    again = dataclasses.replace(plans[0], tactics=turned, measured={"x": 1}, gpu="B")
    assert again.tactics_sha256() == plans[0].tactics_sha256()
