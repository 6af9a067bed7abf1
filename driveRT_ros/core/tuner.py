"""Search a Plan: check every candidate, time those that are right, accept by whole frames.

The search knows no GPU. What it needs of one is ``TuningDevice``; ``core/gpu/tuning.py`` is that on
CUDA. A tactic replaces another only where it is right against float64 and faster by a
minimum gain on most calibration frames, measured in turns with the tactic it would replace. The
result replaces the default Plan only if whole frames that the search never saw agree.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from driveRT_ros.core.errors import ConfigError, DeviceError
from driveRT_ros.core.plan import Plan
from driveRT_ros.core.tactics import ConvTactic
from driveRT_ros.core.tuner_device import (
    HELD_OUT,
    TOLERANCE,
    Faults,
    Frame,
    Progress,
    Settings,
    TuningDevice,
)
from driveRT_ros.core.tuner_state import DomainState, StateFile, Trial


def _quiet(domain: str, number: int, of: int) -> None:
    """Tell nobody."""


class Tuner:
    """One search, resumable.

    Args:
        device: Where candidates run.
        default: Plan that needs no search; its tactics are the first incumbents.
        choices: Candidates by domain, in the order in which they are tried.
        calibration: Frames that decide; results are checked on the first.
        held_out: Frames that accept or refuse the result.
        file: Where the state goes.
        settings: Gains and limits.
        progress: Told of every candidate.
        now_s: A monotonic clock.
    """

    def __init__(
        self,
        device: TuningDevice,
        default: Plan,
        choices: Mapping[str, Sequence[ConvTactic]],
        calibration: Sequence[Frame],
        held_out: Sequence[Frame],
        file: StateFile,
        settings: Settings | None = None,
        progress: Progress = _quiet,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        if not calibration or not held_out:
            raise ConfigError(
                f"A search needs calibration and held-out frames, got {len(calibration)} and "
                f"{len(held_out)}."
            )
        self.device, self.default, self.choices = device, default, choices
        self.calibration, self.held_out, self.file = calibration, held_out, file
        self.settings, self._progress, self._now_s = settings or Settings(), progress, now_s
        self.state = file.load()

    def run(self) -> Plan:
        """Search, accept, and return the Plan to use with all that was measured.

        The state file goes once every candidate was tried; after a time limit it stays, and the
        next start continues.

        Raises:
            DeviceError: If a default tactic is wrong, or the device died; start again to go on
                without the candidate that did it.
            KeyboardInterrupt: On Ctrl-C; the state is saved.
        """
        begin_s = self._now_s()
        before_s = self.state.seconds
        self._give_up_what_ended_the_last_process()
        complete = True
        try:
            for domain in self.choices:
                complete = self._search(domain, begin_s) and complete
        except KeyboardInterrupt:
            self.state.trying = None
            raise
        except RuntimeError as error:  # of a default tactic: those of candidates are recorded
            raise DeviceError(f"The search cannot go on: {error}") from error
        finally:
            self.state.seconds = before_s + self._now_s() - begin_s
            self._save()
        chosen = dataclasses.replace(
            self.default, tactics={**self.default.tactics, **self._chosen()}
        )
        acceptance = self._accept(chosen)
        self.state.seconds = before_s + self._now_s() - begin_s
        plan = chosen if acceptance["accepted"] else self.default
        measured = self._measured(acceptance, complete)
        if complete:
            self.file.remove()
        else:
            self._save()
        return dataclasses.replace(plan, measured=measured)

    # ---- one domain -----------------------------------------------------------------------------

    def _search(self, domain: str, begin_s: float) -> bool:
        """Try what was not tried yet; return whether the domain is done."""
        state = self.state.domains.setdefault(domain, DomainState())
        if state.done:
            return True
        tactics = self.choices[domain]
        if self._out_of_time(begin_s):
            return False
        self._check_default(domain)
        self.device.prepare(domain, tactics[len(state.trials) :])
        while len(state.trials) < len(tactics):
            if self._out_of_time(begin_s):
                break
            number = len(state.trials)
            self._progress(domain, number, len(tactics))
            self.state.trying = (domain, number)
            self._save()  # should this candidate end the process, the next start passes it by
            state.trials.append(self._try(domain, tactics[number]))
            if state.trials[-1].kept:
                state.chosen = number
            self.state.trying = None
        self._settle(domain, state)
        state.done = len(state.trials) == len(tactics)
        self._save()
        return state.done

    def _out_of_time(self, begin_s: float) -> bool:
        limit = self.settings.time_limit_s
        return bool(limit) and self._now_s() - begin_s >= limit

    def _check_default(self, domain: str) -> None:
        error = self.device.check(domain, self.default.tactics[domain], self.calibration[0])
        if not error <= TOLERANCE[self.default.precision]:
            raise DeviceError(
                f"The default tactic of domain '{domain}' has a relative error of {error:.1e} on "
                f"this GPU, {TOLERANCE[self.default.precision]:.0e} is allowed: "
                f"{self.default.tactics[domain]}. Nothing can be tuned before that is repaired."
            )

    def _try(self, domain: str, tactic: ConvTactic) -> Trial:
        incumbent = self._incumbent(domain)
        if tactic == self.default.tactics[domain]:
            return Trial(describe(tactic), note="the default itself")
        try:
            error = self.device.check(domain, tactic, self.calibration[0])
            if not error <= TOLERANCE[self.default.precision]:
                wrong = f"its results are wrong by {error:.1e}"
                return Trial(describe(tactic), error=_finite(error), fault=wrong)
            pairs = self._race(domain, incumbent, tactic)
        except Faults as fault:
            text = self._survived(domain, len(self.state.domains[domain].trials), fault)
            return Trial(describe(tactic), fault=text)
        ratio = statistics.median(b / a for a, b in pairs)
        return Trial(
            describe(tactic),
            error=error,
            ratio=ratio,
            us=statistics.fmean(b for _, b in pairs),
            incumbent_us=statistics.fmean(a for a, _ in pairs),
            frames=len(pairs),
            kept=ratio <= 1 - self.settings.min_gain,
        )

    def _race(
        self, domain: str, a: ConvTactic, b: ConvTactic, *, all_frames: bool = False
    ) -> list[tuple[float, float]]:
        """Return times by frame, up to the frame after which the median cannot win any more."""
        pairs: list[tuple[float, float]] = []
        lost = 0
        for frame in self.calibration:
            pairs.append(self.device.time_pair(domain, a, b, frame))
            lost += pairs[-1][1] > pairs[-1][0] * (1 - self.settings.min_gain)
            if 2 * lost > len(self.calibration) and not all_frames:
                break
        return pairs

    def _settle(self, domain: str, state: DomainState) -> None:
        """Race what was chosen against the default itself: small steps may not add up.

        A tactic that fails only now is a fault like any other, and the default stays: a start
        after it must not meet it again.
        """
        state.note = ""
        default, chosen = self.default.tactics[domain], self._incumbent(domain)
        if state.chosen >= 0:
            self.state.trying = (domain, state.chosen)
            self._save()
        try:
            pairs = self._race(domain, default, chosen, all_frames=True)
        except Faults as fault:
            if state.chosen < 0:
                raise
            text = self._survived(domain, state.chosen, fault)
            self._blame(domain, state.chosen, text)
            pairs = self._race(domain, default, default, all_frames=True)
        self.state.trying = None
        state.default_us = statistics.fmean(a for a, _ in pairs)
        state.chosen_us = statistics.fmean(b for _, b in pairs)
        state.ratio = statistics.median(b / a for a, b in pairs)
        if state.chosen >= 0 and state.ratio > 1 - self.settings.min_gain:
            state.note = f"{describe(chosen)} did not beat the default itself: {state.ratio:.3f}"
            state.chosen, state.chosen_us = -1, state.default_us

    def _incumbent(self, domain: str) -> ConvTactic:
        chosen = self.state.domains[domain].chosen if domain in self.state.domains else -1
        return self.choices[domain][chosen] if chosen >= 0 else self.default.tactics[domain]

    def _chosen(self) -> dict[str, ConvTactic]:
        return {domain: self._incumbent(domain) for domain in self.choices}

    # ---- faults ---------------------------------------------------------------------------------

    def _give_up_what_ended_the_last_process(self) -> None:
        if self.state.trying is None:
            return
        domain, number = self.state.trying
        self.state.domains.setdefault(domain, DomainState())
        self._blame(domain, number, "the process ended while this was tried")

    def _blame(self, domain: str, number: int, fault: str) -> None:
        """Record the fault of a candidate, in place of what was known of it."""
        state = self.state.domains[domain]
        tactic = describe(self.choices[domain][number])
        state.trials[number : number + 1] = [Trial(tactic, fault=fault)]
        if state.chosen == number:
            state.chosen = -1
        self.state.trying = None

    def _survived(self, domain: str, number: int, fault: Exception) -> str:
        """Return what a candidate did, in one line; where the device died of it, end the search."""
        text, lost = f"{type(fault).__name__}: {fault}", self.device.lost_after(fault)
        if lost is None:
            return text
        self._blame(domain, number, text)
        tactic = describe(self.choices[domain][number])
        raise DeviceError(
            f"The GPU stopped working for this process while {tactic} was tried in domain "
            f"'{domain}' ({text}); start again to continue without it."
        ) from lost

    def _save(self) -> None:
        self.file.save(self.state)

    # ---- whole frames ---------------------------------------------------------------------------

    def _accept(self, plan: Plan) -> dict[str, Any]:
        """Compare a Plan with the default on frames that the search never saw."""
        if plan.tactics == self.default.tactics:
            share = f"{100 * self.settings.min_gain:g} %"
            reason = f"no tactic beat the default by {share}"
            return {"accepted": False, "reason": reason, "frames": 0}
        default_us, tuned_us, ratios, largest = [], [], [], 0.0
        try:
            for number, frame in enumerate(self.held_out):
                self._progress(HELD_OUT, number, len(self.held_out))
                difference = self.device.difference(self.default, plan, frame)
                largest = max(largest, math.inf if math.isnan(difference) else difference)
                # There and back: what drifts meanwhile meets both alike.
                order = (self.default, plan, plan, self.default)
                a1, b1, b2, a2 = (self.device.time_frame(p, frame) for p in order)
                default_us.append((a1 + a2) / 2)
                tuned_us.append((b1 + b2) / 2)
                ratios.append((b1 + b2) / (a1 + a2))
        except Faults as fault:
            self.device.lost_after(fault)  # nothing more is asked of it
            reason = f"a whole frame failed: {type(fault).__name__}: {fault}"
            return {"accepted": False, "reason": reason, "frames": len(ratios)}
        return self._verdict(default_us, tuned_us, ratios, largest)

    def _verdict(
        self,
        default_us: list[float],
        tuned_us: list[float],
        ratios: list[float],
        largest: float,
    ) -> dict[str, Any]:
        middle = statistics.median(ratios)
        slowest = sorted(ratios)[-max(1, len(ratios) // 4) :]
        worst, tolerance = statistics.median(slowest), TOLERANCE[self.default.precision]
        reasons = []
        if not largest <= tolerance:
            reasons.append(f"features differ by {largest:.1e}, {tolerance:.0e} is allowed")
        if middle > 1:
            reasons.append(f"the median frame takes {middle:.3f} of the time of the default")
        if worst > 1 + self.settings.worst_loss:
            reasons.append(f"the slowest quarter takes {worst:.3f} of the time of the default")
        return {
            "accepted": not reasons,
            "reason": "; ".join(reasons),
            "frames": len(ratios),
            "default_us": statistics.median(default_us),
            "tuned_us": statistics.median(tuned_us),
            "median_ratio": middle,
            "worst_quarter_ratio": worst,
            "largest_difference": _finite(largest),
        }

    # ---- evidence -------------------------------------------------------------------------------

    def _measured(self, acceptance: dict[str, Any], complete: bool) -> dict[str, Any]:
        domains, faults = {}, []
        for name, state in self.state.domains.items():
            domains[name] = {
                "default_us": state.default_us,
                "chosen_us": state.chosen_us,
                "ratio": state.ratio,
                "chosen": describe(self._incumbent(name)),
                "candidates": len(self.choices[name]),
                "tried": len(state.trials),
                "faults": sum(bool(trial.fault) for trial in state.trials),
                **({"note": state.note} if state.note else {}),
            }
            faults += [
                {"domain": name, "tactic": trial.tactic, "fault": trial.fault}
                for trial in state.trials
                if trial.fault
            ]
        return {
            **self.file.key,
            "min_gain": self.settings.min_gain,
            "date": datetime.date.today().isoformat(),
            "complete": complete,
            "calibration_frames": [frame.name for frame in self.calibration],
            "held_out_frames": [frame.name for frame in self.held_out],
            "search_seconds": round(self.state.seconds, 1),
            "domains": domains,
            "acceptance": acceptance,
            "faults": faults,
        }


def describe(tactic: ConvTactic) -> str:
    """Return a tactic in one short line, for people."""
    fields = {name: value for name, value in vars(tactic).items() if name != "precision"}
    return f"{tactic.arithmetic} " + " ".join(f"{name}={value}" for name, value in fields.items())


def _finite(value: float) -> float | None:
    """Return a number that JSON can hold."""
    return value if math.isfinite(value) else None
