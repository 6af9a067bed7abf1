"""The search of a Plan, on a device whose costs and faults are known."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from driveRT_ros.core.device_faults import context_lost
from driveRT_ros.core.errors import ConfigError, DeviceError
from driveRT_ros.core.plan import Plan
from driveRT_ros.core.tuner import Tuner, describe
from driveRT_ros.core.tuner_device import Settings
from driveRT_ros.core.tuner_state import StateFile
from test.support.tuning import Compile, FakeDevice, FakeFrame, tactic

START, A, B, C, D = (tactic(n) for n in range(1, 6))
DEFAULT = Plan("fp32", {"subm1": START, "subm2": START, "spconv2": START}, gpu="A GPU")
CHOICES = {"subm2": (A, B, C), "subm1": (A, B)}
COSTS = {
    "subm2": {START: 100.0, A: 90.0, B: 120.0, C: 80.0},
    "subm1": {START: 50.0, A: 49.5, B: 70.0},
}
CALIBRATION = [FakeFrame(f"c{i}", 1 + i / 10) for i in range(5)]
HELD_OUT = [FakeFrame(f"h{i}", 1 + i / 10) for i in range(20)]
KEY = {"gpu": "A GPU", "driver": "1.2"}


def tuner(device: FakeDevice, path: Path | None = None, key=KEY, choices=CHOICES, **options):
    return Tuner(
        device, DEFAULT, choices, CALIBRATION, HELD_OUT, StateFile(path, key), **options
    )  # fmt: skip


def chosen(plan: Plan, domain: str):
    return plan.tactics[domain]


# ---- choosing -----------------------------------------------------------------------------------


def test_the_fastest_right_tactic_of_each_domain_is_chosen_and_others_stay():
    plan = tuner(FakeDevice(COSTS)).run()
    assert chosen(plan, "subm2") == C
    assert chosen(plan, "subm1") == START  # 1 % is not enough
    assert chosen(plan, "spconv2") == START  # nothing was tried
    assert plan.gpu == "A GPU" and plan.precision == "fp32"
    assert plan.measured["acceptance"]["accepted"]


def test_the_evidence_is_in_the_plan_and_survives_json():
    plan = Plan.from_json(tuner(FakeDevice(COSTS)).run().to_json())
    found = plan.measured
    assert found["gpu"] == "A GPU" and found["driver"] == "1.2" and found["date"]
    domain = found["domains"]["subm2"]
    assert domain["default_us"] == pytest.approx(120.0)  # median frame: 1.2 times 100
    assert domain["chosen_us"] == pytest.approx(96.0)
    assert domain["ratio"] == pytest.approx(0.8)
    assert domain["candidates"] == domain["tried"] == 3 and domain["faults"] == 0
    assert domain["chosen"] == describe(C)
    assert found["domains"]["subm1"]["ratio"] == 1.0
    acceptance = found["acceptance"]
    assert acceptance["frames"] == 20
    assert acceptance["median_ratio"] == pytest.approx(130 / 150)
    assert found["complete"] and found["faults"] == []
    assert len(found["calibration_frames"]) == 5 and len(found["held_out_frames"]) == 20


@pytest.mark.parametrize(("gain", "winner"), [(0.0, A), (0.009, A), (0.02, START), (0.5, START)])
def test_less_than_the_minimum_gain_is_noise(gain, winner):
    plan = tuner(FakeDevice(COSTS), settings=Settings(min_gain=gain)).run()
    assert chosen(plan, "subm1") == winner


def test_a_candidate_meets_the_incumbent_not_the_default():
    device = FakeDevice(COSTS)
    tuner(device).run()
    assert ("subm2", A, B, "c0") in device.timed  # A had replaced the default
    assert ("subm2", START, B, "c0") not in device.timed


def test_steps_that_do_not_add_up_against_the_default_are_taken_back():
    class Drifting(FakeDevice):
        """Whatever comes second looks faster, but for the last race against the default."""

        def time_pair(self, domain, a, b, frame):
            us_a, us_b = super().time_pair(domain, a, b, frame)
            final = a == START and b == C
            return us_a, us_b * (1.0 if final else 0.9)

    costs = {"subm2": dict.fromkeys((START, A, B, C), 100.0)}
    plan = tuner(Drifting(costs), choices={"subm2": (A, B, C)}).run()
    assert chosen(plan, "subm2") == START
    assert "did not beat the default itself" in plan.measured["domains"]["subm2"]["note"]


def test_one_frame_of_luck_does_not_decide():
    device = FakeDevice(COSTS | {"subm2": dict.fromkeys((START, A, B, C), 100.0)})
    device.skew = {(A, "c0"): 0.5, (A, "c1"): 0.5, (B, "c0"): 2.0, (B, "c4"): 2.0}
    for frame in ("c1", "c2", "c3"):
        device.skew[B, frame] = 0.9
    plan = tuner(device).run()
    assert chosen(plan, "subm2") == B  # three of five frames; A had only two


def test_timing_stops_where_a_candidate_cannot_win_any_more():
    device = FakeDevice(COSTS)
    tuner(device).run()
    assert [f for d, _, b, f in device.timed if (d, b) == ("subm2", B)] == ["c0", "c1", "c2"]
    assert [f for d, _, b, f in device.timed if (d, b) == ("subm2", A)] == [
        f.name for f in CALIBRATION
    ]


def test_candidates_are_tried_in_order_and_the_same_search_gives_the_same_bytes():
    first, second = FakeDevice(COSTS), FakeDevice(COSTS)
    clock = {"now_s": lambda: 0.0}
    texts = [tuner(device, **clock).run().to_json() for device in (first, second)]
    assert texts[0] == texts[1]
    assert first.timed == second.timed
    tried = [t for d, t in first.checked if d == "subm2"]
    assert tried == [START, A, B, C]


def test_the_default_among_the_candidates_is_not_raced_against_itself():
    device = FakeDevice(COSTS)
    plan = tuner(device, choices={"subm2": (START, C)}).run()
    assert chosen(plan, "subm2") == C
    assert plan.measured["domains"]["subm2"]["tried"] == 2
    assert device.timed[0][1:3] == (START, C)


# ---- candidates at fault ------------------------------------------------------------------------


@pytest.mark.parametrize("error", [1e-3, math.inf, math.nan])
def test_a_wrong_result_is_recorded_and_never_timed(error):
    device = FakeDevice(COSTS, errors={("subm2", C): error})
    plan = tuner(device).run()
    assert chosen(plan, "subm2") == A
    assert all(C not in (a, b) for d, a, b, _ in device.timed if d == "subm2")
    (fault,) = plan.measured["faults"]
    assert fault["domain"] == "subm2" and fault["tactic"] == describe(C)
    assert "wrong by" in fault["fault"]
    json.loads(plan.to_json(), parse_constant=pytest.fail)  # no NaN, no Infinity


def test_the_tolerance_is_that_of_the_precision():
    device = FakeDevice(COSTS, errors={("subm2", C): 1e-3})
    half = Plan("fp16", DEFAULT.tactics)
    plan = Tuner(device, half, CHOICES, CALIBRATION, HELD_OUT, StateFile(None, KEY)).run()
    assert chosen(plan, "subm2") == C


@pytest.mark.parametrize(
    "fault",
    [Compile("does not compile"), ConfigError("too much shared memory"), RuntimeError("no memory")],
    ids=["compile", "shared memory", "torch"],
)
def test_a_candidate_that_cannot_run_is_recorded_and_the_search_goes_on(fault):
    device = FakeDevice(COSTS, faults={("subm2", A): fault})
    plan = tuner(device).run()
    assert chosen(plan, "subm2") == C
    (found,) = plan.measured["faults"]
    assert found["fault"] == f"{type(fault).__name__}: {fault}"
    assert plan.measured["domains"]["subm2"]["faults"] == 1


def test_a_programming_error_is_not_taken_for_a_bad_candidate():
    device = FakeDevice(COSTS, faults={("subm2", A): KeyError("oops")})
    with pytest.raises(KeyError):
        tuner(device).run()


@pytest.mark.parametrize("error", [1.0, math.nan])
def test_a_default_that_is_wrong_stops_everything(error):
    device = FakeDevice(COSTS, errors={("subm2", START): error})
    with pytest.raises(DeviceError, match="default tactic of domain 'subm2'"):
        tuner(device).run()
    assert device.timed == []


def test_a_dead_device_ends_the_search_and_the_next_start_leaves_the_culprit_out(tmp_path):
    path = tmp_path / "state.json"
    device = FakeDevice(COSTS, deadly={B})
    with pytest.raises(DeviceError, match="start again to continue without it") as raised:
        tuner(device, path).run()
    assert context_lost(raised.value)  # so that the command leaves without cleaning up
    fresh = FakeDevice(COSTS, deadly={B}, trusted=set(device.checked))
    with pytest.raises(DeviceError):  # B of subm1
        tuner(fresh, path).run()
    assert ("subm2", B) not in fresh.checked and ("subm2", A) not in fresh.checked
    plan = tuner(FakeDevice(COSTS, trusted=set(fresh.checked)), path).run()
    assert chosen(plan, "subm2") == C
    assert [f["domain"] for f in plan.measured["faults"]] == ["subm2", "subm1"]
    assert all("illegal memory access" in f["fault"] for f in plan.measured["faults"])


@pytest.mark.parametrize("end", [None, DeviceError, SystemExit])
def test_a_tactic_that_fails_when_it_has_won_is_left_out_and_the_default_stays(tmp_path, end):
    """A fault need not show at once; the next start must not end at the same place."""
    path, dies = tmp_path / "state.json", end is DeviceError
    error = SystemExit() if end is SystemExit else RuntimeError("CUDA error 700")
    won = {("subm2", START, C): error}  # it was raced against A, which had won before
    device = FakeDevice(COSTS, at_pair=won, pairs_kill=dies)
    if end:
        with pytest.raises(end, match="^The GPU stopped" if dies else None):
            tuner(device, path).run()
        device = FakeDevice(COSTS, at_pair=won, trusted=set(device.checked))
    plan = tuner(device, path).run()
    assert chosen(plan, "subm2") == START and plan.measured["complete"] and not path.exists()
    (fault,) = plan.measured["faults"]
    assert (fault["domain"], fault["tactic"]) == ("subm2", describe(C))
    assert ("process ended" if end is SystemExit else "CUDA error 700") in fault["fault"]


# ---- interruption -------------------------------------------------------------------------------


def stop_at(number: int, error: BaseException):
    """Return a hook that raises at the n-th check."""
    count = 0

    def hook(domain, tactic):
        nonlocal count
        count += 1
        if count == number:
            raise error

    return hook


@pytest.mark.parametrize("number", range(1, 8))
def test_ctrl_c_anywhere_loses_nothing_but_the_candidate_at_hand(tmp_path, number):
    path, clock = tmp_path / "state.json", {"now_s": lambda: 0.0}
    whole = tuner(FakeDevice(COSTS), **clock).run()
    device = FakeDevice(COSTS, at_check=stop_at(number, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        tuner(device, path, **clock).run()
    rest = FakeDevice(COSTS, trusted=set(device.checked))
    plan = tuner(rest, path, **clock).run()
    assert plan.to_json() == whole.to_json()
    done = {(d, t) for d, t in device.checked if t != START}
    assert done.isdisjoint({(d, t) for d, t in rest.checked if t != START})
    assert not path.exists()


def test_a_process_that_vanished_leaves_its_candidate_behind_as_a_fault(tmp_path):
    path = tmp_path / "state.json"
    device = FakeDevice(COSTS, at_check=stop_at(3, SystemExit()))  # 1: default, 2: A, 3: B
    with pytest.raises(SystemExit):
        tuner(device, path).run()
    assert json.loads(path.read_text())["state"]["trying"] == ["subm2", 1]
    rest = FakeDevice(COSTS, trusted=set(device.checked))
    plan = tuner(rest, path).run()
    assert ("subm2", B) not in rest.checked
    (fault,) = plan.measured["faults"]
    assert fault["tactic"] == describe(B) and "the process ended" in fault["fault"]


def test_a_time_limit_keeps_what_was_found_and_the_next_start_goes_on(tmp_path):
    path, now = tmp_path / "state.json", [0.0]

    def tick(domain, tactic):
        now[0] += 10.0

    limited = {"settings": Settings(time_limit_s=25.0), "now_s": lambda: now[0]}
    device = FakeDevice(COSTS, at_check=tick)
    plan = tuner(device, path, **limited).run()
    assert chosen(plan, "subm2") == A  # the default, A and B were checked
    assert plan.measured["complete"] is False
    assert plan.measured["domains"]["subm2"]["tried"] == 2
    assert plan.measured["acceptance"]["accepted"]
    assert path.exists()
    second = tuner(FakeDevice(COSTS, trusted=set(device.checked)), path)
    assert "after 2 candidates" in second.file.note
    plan = second.run()
    assert chosen(plan, "subm2") == C and plan.measured["complete"]
    assert plan.measured["domains"]["subm2"]["tried"] == 3
    assert plan.measured["search_seconds"] >= 30.0
    assert not path.exists()


@pytest.mark.parametrize(
    ("key", "what"), [(KEY | {"driver": "1.3"}, "driver"), (KEY | {"weights": "x"}, "weights")]
)
def test_a_state_of_another_search_is_named_and_not_continued(tmp_path, key, what):
    path = tmp_path / "state.json"
    device = FakeDevice(COSTS, at_check=stop_at(5, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        tuner(device, path).run()
    other = tuner(FakeDevice(COSTS), path, key)
    assert f"another search ({what})" in other.file.note and "anew" in other.file.note
    assert other.state.domains == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": {}}', '{"key": 1, "version": 1}'])
def test_a_damaged_state_is_named_and_not_continued(tmp_path, text):
    path = tmp_path / "state.json"
    path.write_text(text)
    search = tuner(FakeDevice(COSTS), path)
    assert "anew" in search.file.note
    assert chosen(search.run(), "subm2") == C


def test_a_state_that_cannot_be_written_is_said_before_time_is_spent(tmp_path):
    device = FakeDevice(COSTS)
    with pytest.raises(ConfigError, match="cannot be written"):
        tuner(device, tmp_path / "no" / "folder" / "state.json").run()
    assert device.timed == []


# ---- acceptance ---------------------------------------------------------------------------------


def tuned_takes(factor):
    """Return frame times: the default 1000 us, anything else by the factor of the frame."""

    def frame_us(plan, name):
        number = int(name[1:])
        return 1000.0 * (1.0 if plan.tactics == DEFAULT.tactics else factor(number))

    return frame_us


@pytest.mark.parametrize(
    ("factor", "reason"),
    [
        (lambda i: 1.01, "the median frame takes 1.010"),
        (lambda i: 0.9 if i < 15 else 1.05, "the slowest quarter takes 1.050"),
    ],
)
def test_domains_that_win_but_frames_that_lose_leave_the_default(factor, reason):
    device = FakeDevice(COSTS, frame_us=tuned_takes(factor))
    plan = tuner(device).run()
    assert plan.tactics == DEFAULT.tactics
    acceptance = plan.measured["acceptance"]
    assert not acceptance["accepted"] and reason in acceptance["reason"]
    assert plan.measured["domains"]["subm2"]["chosen"] == describe(C)  # the evidence stays


@pytest.mark.parametrize("factor", [lambda i: 1.0, lambda i: 0.9 if i < 18 else 1.05])
def test_as_fast_as_the_default_and_few_slow_frames_are_accepted(factor):
    plan = tuner(FakeDevice(COSTS, frame_us=tuned_takes(factor))).run()
    assert plan.measured["acceptance"]["accepted"]


def test_frames_are_timed_there_and_back_so_that_drift_favours_nobody():
    now = [0.0]

    def drifting(plan, name):
        now[0] += 1.0  # every measurement is slower than the one before
        return 1000.0 + now[0]

    plan = tuner(FakeDevice(COSTS, frame_us=drifting)).run()
    assert plan.measured["acceptance"]["median_ratio"] == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("difference", [1e-3, math.inf, math.nan])
def test_features_that_differ_from_the_default_refuse_the_plan(difference):
    plan = tuner(FakeDevice(COSTS, differs_by=difference)).run()
    assert plan.tactics == DEFAULT.tactics
    assert "features differ" in plan.measured["acceptance"]["reason"]
    json.loads(plan.to_json(), parse_constant=pytest.fail)


def test_a_frame_that_fails_refuses_the_plan():
    def broken(plan, name):
        raise RuntimeError("unspecified launch failure")

    plan = tuner(FakeDevice(COSTS, frame_us=broken)).run()
    assert plan.tactics == DEFAULT.tactics
    assert "unspecified launch failure" in plan.measured["acceptance"]["reason"]


def test_where_nothing_wins_there_is_nothing_to_accept():
    device = FakeDevice({"subm1": COSTS["subm1"]})
    plan = tuner(device, choices={"subm1": (A, B)}).run()
    assert plan.tactics == DEFAULT.tactics and device.framed == []
    assert plan.measured["acceptance"]["reason"] == "no tactic beat the default by 2 %"


# ---- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values", [{"min_gain": -0.1}, {"min_gain": 1.0}, {"worst_loss": 2}, {"time_limit_s": -1}]
)
def test_settings_that_mean_nothing_are_refused(values):
    with pytest.raises(ConfigError, match=next(iter(values))):
        Settings(**values)


def test_a_search_without_frames_is_refused():
    with pytest.raises(ConfigError, match="held-out frames, got 5 and 0"):
        Tuner(FakeDevice(COSTS), DEFAULT, CHOICES, CALIBRATION, [], StateFile(None, KEY))
