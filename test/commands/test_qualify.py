"""``drivert qualify``: verdicts in the Plan, tables, refusals; precisions made up on the CPU."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from driveRT_ros.bench import frames
from driveRT_ros.bench.frames import Frame
from driveRT_ros.cli import main
from driveRT_ros.commands import qualify
from driveRT_ros.commands.qualify_scenes import Scenes
from driveRT_ros.commands.tuned_gpu import Gpu
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import InvalidFrame
from driveRT_ros.core.frame import Detections
from driveRT_ros.core.plan import Plan, default_plan
from driveRT_ros.core.pool_tactics import PoolTactic
from driveRT_ros.core.qualify import StageRows
from driveRT_ros.models.checkpoint import save_weights
from driveRT_ros.models.untrained import untrained_weights
from driveRT_ros.sim.config import SimConfig
from test.commands.test_cli import refused

GPU = Gpu(torch.device("cuda", 0), "A GPU", "1.2", (9, 0))
CONFIG = LidarConfig()
CHANNELS = CONFIG.model.channels
ERRORS = {"fp32": 0.0, "fp32x3": 1e-7, "tf32": 1e-3, "fp16": 4e-3}
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def some_frames(seed, sweeps, config):
    for number, _ in enumerate(sweeps):
        yield Frame(f"f{seed}-{number}", "made up", torch.full((3, 5), float(number)))


class Precisions:
    """Features and boxes that are off by as much as a precision is said to be.

    Args:
        errors: By precision.
        fails: Raised by the features of a precision.
    """

    def __init__(self, errors=ERRORS, fails=None) -> None:
        self.errors, self.fails = errors, fails or {}
        self.stages_of: list[Plan] = []
        self.detectors: list[Plan] = []
        self.weights: list[object] = []

    def stages(self, config, weights, gpu, plan):
        self.stages_of.append(plan)
        coords = torch.arange(30).view(10, 3)

        def make(points):
            if plan.precision in self.fails:
                raise self.fails[plan.precision]
            features = torch.ones(10, 4) + self.errors[plan.precision]
            return {"level1": StageRows(coords, features), "bev": StageRows(coords, features)}

        return make

    def detector(self, config, weights, gpu, plan, folder):
        self.detectors.append(plan)
        self.weights.append(weights)

        def detect(points):
            boxes = torch.tensor([[5.0 * n, 0, 0, 4, 2, 1.5, 0, 0, 0] for n in range(4)])
            boxes[:, 0] += 100 * self.errors[plan.precision]
            scores, labels = torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.zeros(4, dtype=torch.int64)
            return Detections(boxes, scores, labels, CONFIG.model.class_names)

        return detect


@pytest.fixture
def qualified(monkeypatch, tmp_path, capsys):
    """Return a function that qualifies a Plan; it returns what the Plan says then, and the text."""

    def run(made: Precisions, *arguments: object, code: int = 0) -> tuple[Plan, str]:
        monkeypatch.setattr(qualify, "find_gpu", lambda *given: GPU)
        monkeypatch.setattr(qualify, "open_stages", made.stages)
        monkeypatch.setattr(qualify, "open_detector", made.detector)
        path = tmp_path / "plan.json"
        if not path.exists():
            default_plan(CHANNELS, GPU.capability, "fp16").save(path)
        assert main(["qualify", "--plan", str(path), *map(str, arguments)]) == code
        text = capsys.readouterr()
        return Plan.load(path), text.out + text.err

    monkeypatch.setattr(frames, "drive", some_frames)
    return run


@pytest.fixture
def untrained(tmp_path):
    """Return a file of weights that are not trained."""
    path = tmp_path / "untrained.safetensors"
    save_weights(path, untrained_weights(CONFIG.model, 0))
    return path


# ---- verdicts -----------------------------------------------------------------------------------


def test_every_precision_gets_a_verdict_with_figures_limits_and_what_it_is_about(
    qualified, untrained
):
    made = Precisions({**ERRORS, "tf32": 1e-2})
    plan, text = qualified(made, "--checkpoint", untrained, code=1)
    assert list(plan.qualified) == ["fp32x3", "tf32", "fp16"]
    assert [v.passed for v in plan.qualified.values()] == [True, False, False]
    verdict = plan.qualified["tf32"]
    assert verdict.figures["features"]["bev"]["largest"] == pytest.approx(1e-2, rel=1e-3)
    boxes = verdict.figures["boxes"]
    assert (boxes["wanted"], boxes["matched"], len(verdict.figures["frames"])) == (40, 0, 10)
    assert "0.0 % of 40 + 40 boxes" in verdict.reasons[0] and verdict.figures["mean_ap"] is None
    assert verdict.limits["feature_error"] == 0.02 and verdict.gpu == "A GPU"
    assert verdict.weights_sha256 == untrained_weights(CONFIG.model, 0).sha256
    assert "tf32" in text and "FAILED" in text and "1.0e-02" in text
    assert "are not trained" in text and text.count("0.0 % of 40 + 40 boxes") == 2


def test_what_would_run_is_what_is_judged(qualified, untrained, tmp_path):
    """The Plan in its own precision, the default in the others; the reference is the default."""
    plan = default_plan(CHANNELS, (9, 0), "fp16")
    tuned = dataclasses.replace(
        plan,
        tactics={**plan.tactics, "subm1": dataclasses.replace(plan.tactics["subm1"], stages=2)},
    )
    tuned.save(tmp_path / "plan.json")
    made = Precisions()
    plan, _ = qualified(made, "--checkpoint", untrained, "--max-center", 1)
    assert [p.precision for p in made.detectors] == [
        "fp32",
        "fp32x3",
        "fp32",
        "tf32",
        "fp32",
        "fp16",
    ]
    assert made.stages_of == made.detectors
    for ran, precision in zip(made.detectors[1::2], ("fp32x3", "tf32", "fp16")):
        default = default_plan(CHANNELS, (9, 0), precision)
        want = tuned.tactics if precision == "fp16" else default.tactics
        assert ran.tactics == want
        assert plan.qualified[precision].tactics_sha256 == ran.tactics_sha256()
    found, note = Plan.for_device(
        tmp_path / "plan.json", CHANNELS, "fp16", "A GPU", (9, 0), made.weights[0].sha256
    )
    assert found.is_qualified and note == "" and plan.tactics == tuned.tactics


def test_a_verdict_replaces_that_of_its_precision_alone(qualified, untrained):
    options = ("--checkpoint", untrained, "--max-center", 1)
    before, _ = qualified(Precisions(), *options)
    plan, text = qualified(
        Precisions({**ERRORS, "fp16": 0.5}), *options, "--precision", "fp16", code=1
    )
    assert plan.qualified["tf32"] == before.qualified["tf32"]
    assert before.qualified["fp16"].passed and not plan.qualified["fp16"].passed
    assert "tf32" not in text
    plan, _ = qualified(Precisions(), *options, "--precision", "fp16", "--sim", 1)
    assert plan.qualified["fp16"].passed  # a failed precision can be judged again
    assert len(plan.qualified["fp16"].figures["frames"]) == 5


def test_features_that_are_no_numbers_fail_and_the_plan_stays_readable(qualified, untrained):
    made = Precisions({**ERRORS, "fp16": float("nan")})
    plan, text = qualified(made, "--checkpoint", untrained, "--precision", "fp16", code=1)
    assert plan.qualified["fp16"].figures["features"]["bev"] == {"largest": None, "rms": None}
    assert "not finite" in text and "off by inf" in text


def test_frames_that_do_not_fit_are_named_and_verdicts_so_far_stay_when_one_cannot_be_made(
    qualified, untrained
):
    made = Precisions(fails={"tf32": InvalidFrame("too many tiles")})
    plan, text = qualified(made, "--checkpoint", untrained, "--max-center", 1, code=2)
    assert list(plan.qualified) == ["fp32x3"] and "None of 10 frames" in text
    made = Precisions(fails={"tf32": RuntimeError("CUDA out of memory")})
    plan, text = qualified(made, "--checkpoint", untrained, "--max-center", 1, code=2)
    assert "tf32 cannot be compared with fp32: CUDA out of memory" in text
    assert "Traceback" not in text


def test_limits_can_be_set(qualified, untrained):
    options = ("--checkpoint", untrained, "--precision", "fp16")
    plan, _ = qualified(Precisions(), *options, "--max-center", 1)
    assert plan.qualified["fp16"].passed and plan.qualified["fp16"].limits["center_m"] == 1
    plan, _ = qualified(
        Precisions(), *options, "--max-center", 1, "--max-feature-error", 1e-3, code=1
    )
    assert "1.0e-03 is allowed" in plan.qualified["fp16"].reasons[0]


# ---- scenes -------------------------------------------------------------------------------------


def test_trained_weights_are_judged_by_average_precision_too(qualified, monkeypatch, tmp_path):
    weights = dataclasses.replace(untrained_weights(CONFIG.model, 1), trained=True)
    path = tmp_path / "trained.safetensors"
    save_weights(path, weights)
    asked = []

    class Known:
        def __init__(self, number, config, jobs, told):
            self.number = number

        def __len__(self):
            return self.number

        def mean_ap(self, detect, told):
            asked.append(detect(torch.zeros(3, 5)).boxes[0, 0].item())
            return 0.5 - asked[-1]

    monkeypatch.setattr("driveRT_ros.commands.qualify_scenes.Scenes", Known)
    made = Precisions({**ERRORS, "tf32": 2e-4, "fp16": 4e-4})
    plan, text = qualified(made, "--checkpoint", path, "--scenes", 3, code=1)
    assert len(asked) == 4  # float32 once
    ap = plan.qualified["fp16"].figures["mean_ap"]
    assert ap == {"fp32": 0.5, "found": pytest.approx(0.46), "scenes": 3}
    assert plan.qualified["fp16"].reasons == (
        "mAP falls from 0.500 to 0.460, a drop of 0.010 is allowed",
    )
    assert "0.460" in text and "not trained" not in text
    plan, _ = qualified(made, "--checkpoint", path, "--scenes", 0)
    assert plan.qualified["fp16"].figures["mean_ap"] is None and len(asked) == 4


def test_scenes_are_simulated_once_and_perfect_boxes_have_an_average_precision_of_one():
    told = []
    sim = SimConfig.from_dict({"lidar.num_azimuths": 180})
    config = LidarConfig.from_dict({"densification_params.num_past_frames": 1})
    scenes = Scenes(2, config, 1, lambda: told.append(1), sim)
    truth = {len(points): moment.frame.ground_truth for points, moment in scenes._scenes}
    assert len(scenes) == len(told) == len(truth) == 2
    assert all((points[:, 4] > 0).any() for points, _ in scenes._scenes)  # two sweeps, joined

    def perfect(points):
        known = truth[len(points)]
        return dataclasses.replace(known, scores=torch.ones(len(known)))

    def half(points):
        found = perfect(points)
        return dataclasses.replace(
            found, boxes=found.boxes[::2], scores=found.scores[::2], labels=found.labels[::2],
            num_points=None, track_ids=None,
        )  # fmt: skip

    assert scenes.mean_ap(perfect, lambda: told.append(1)) > 0.99
    assert len(told) == 4
    assert 0.05 < scenes.mean_ap(half, lambda: None) < 0.9


# ---- tables and refusals ------------------------------------------------------------------------


def test_info_shows_what_a_plan_holds(qualified, untrained, tmp_path, capsys):
    path = tmp_path / "new.json"
    default_plan(CHANNELS, (9, 0), "fp16").save(path)
    assert main(["info", str(path)]) == 0
    text = capsys.readouterr().out
    assert "precision fp16" in text and f"drivert qualify --plan {path}" in text
    qualified(Precisions(), "--checkpoint", untrained, code=1)
    assert main(["info", str(tmp_path / "plan.json")]) == 0
    text = capsys.readouterr().out
    assert "fp32x3" in text and "passed" in text and "FAILED" in text and "level1" in text


@no_gpu
def test_without_a_gpu_it_says_so_in_a_sentence_and_leaves_the_plan_alone(capsys, tmp_path):
    path = tmp_path / "plan.json"
    default_plan(CHANNELS, (9, 0), "fp16").save(path)
    before = path.read_bytes()
    error = refused(capsys, "qualify", "--plan", path)
    assert "finds no CUDA device to qualify on" in error and error.count("\n") == 1
    assert "Only 'fp32' runs on a CPU." in error and path.read_bytes() == before


def test_a_plan_that_cannot_be_judged_is_refused(qualified, untrained, tmp_path, capsys):
    path = tmp_path / "none.json"
    assert "'drivert tune --output" in refused(capsys, "qualify", "--plan", path)
    pools = {"float16_c64_fits_l2": PoolTactic("tiles")}
    Plan("fp16", {}, gpu="A GPU", pools=pools).save(path)
    assert "for cameras alone" in refused(capsys, "qualify", "--plan", path)
    other = dataclasses.replace(default_plan(CHANNELS, (9, 0), "fp16"), gpu="Another")
    other.save(tmp_path / "plan.json")
    _, text = qualified(Precisions(), "--checkpoint", untrained, code=2)
    assert "tuned on 'Another'" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--precision", "fp32"), "invalid choice"),
        (("--precision", "fp8"), "invalid choice"),
        (("--topic", "/points"), "--topic needs --bag"),
        (("--data", "."), "--data needs --frames"),
        (("--sim", "0"), "from 1 on, got 0"),
        (("--scenes", "-1"), "got -1 and 1"),
        (("--min-matched", "2"), "'matched' must be a share"),
        (("--sim", "1", "--bag", "x"), "not allowed with"),
    ],
)
def test_a_wrong_option_is_refused(arguments, sentence, capsys, tmp_path):
    path = tmp_path / "plan.json"
    default_plan(CHANNELS, (9, 0), "fp16").save(path)
    assert sentence in refused(capsys, "qualify", "--plan", path, *arguments)
    assert json.loads(path.read_text())["qualified"] == {}
