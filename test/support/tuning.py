"""A device with known costs and faults, for the search of Plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from driveRT_ros.core.errors import DeviceError
from driveRT_ros.core.plan import Plan
from driveRT_ros.core.tactics import ConvTactic, Tactic


@dataclass(frozen=True)
class FakeFrame:
    name: str
    scale: float = 1.0
    points: torch.Tensor = field(default_factory=lambda: torch.zeros(0, 5))


def scale_of(frame) -> float:
    """Return how much longer a frame takes than the costs say; real frames take as long."""
    return getattr(frame, "scale", 1.0)


def tactic(number: int) -> Tactic:
    """Return one of many different tactics."""
    return Tactic(3, 64, 16, 4, 4, 2, number)


Pair = tuple[str, ConvTactic, ConvTactic]


@dataclass
class FakeDevice:
    """Costs by domain and tactic in microseconds, faults by domain and tactic.

    Args:
        costs: What a domain takes under a tactic; on a frame, times its scale.
        faults: Exceptions that checking a tactic raises.
        errors: Relative errors of tactics; 0 where not named.
        frame_us: What a whole frame takes; by default the sum of its domains.
        skew: Factor of a tactic's time on a frame, by (tactic, frame name).
        deadly: Tactics that leave the device dead.
        at_check: Called at the start of every check.
        at_pair: What ends the timing of a pair (domain, one, other), by pair.
        pairs_kill: It leaves the device dead.
        differs_by: How much features differ between any two Plans.
        trusted: What another device has checked.
    """

    costs: dict[str, dict[ConvTactic, float]]
    faults: dict[tuple[str, ConvTactic], Exception] = field(default_factory=dict)
    errors: dict[tuple[str, ConvTactic], float] = field(default_factory=dict)
    frame_us: Callable[[Plan, str], float] | None = None
    skew: dict[tuple[ConvTactic, str], float] = field(default_factory=dict)
    deadly: set[ConvTactic] = field(default_factory=set)
    at_check: Callable[[str, ConvTactic], None] | None = None
    at_pair: dict[Pair, BaseException] = field(default_factory=dict)
    pairs_kill: bool = False
    differs_by: float = 0.0
    trusted: set[tuple[str, ConvTactic]] = field(default_factory=set)
    checked: list[tuple[str, ConvTactic]] = field(default_factory=list)
    timed: list[tuple[str, ConvTactic, ConvTactic, str]] = field(default_factory=list)
    framed: list[tuple[Plan, str]] = field(default_factory=list)
    dead: bool = False

    def prepare(self, domain: str, tactics: Sequence[ConvTactic]) -> None:
        assert not self.dead

    def overflow(self, frame) -> dict[str, tuple[int, int]]:
        return {}

    def check(self, domain: str, tactic: ConvTactic, frame) -> float:
        if self.at_check:
            self.at_check(domain, tactic)
        self.checked.append((domain, tactic))
        if tactic in self.deadly:
            self.dead = True
            raise RuntimeError("an illegal memory access was encountered")
        if (domain, tactic) in self.faults:
            raise self.faults[domain, tactic]
        return self.errors.get((domain, tactic), 0.0)

    def time_pair(self, domain, a, b, frame) -> tuple[float, float]:
        for tactic in (a, b):
            assert (domain, tactic) in {*self.checked, *self.trusted}, "timed before it was checked"
        self.timed.append((domain, a, b, frame.name))
        if (domain, a, b) in self.at_pair:
            self.dead = self.pairs_kill
            raise self.at_pair[domain, a, b]
        us_a, us_b = (
            self.costs[domain][t] * scale_of(frame) * self.skew.get((t, frame.name), 1.0)
            for t in (a, b)
        )
        return us_a, us_b

    def time_frame(self, plan: Plan, frame) -> float:
        self.framed.append((plan, frame.name))
        if self.frame_us:
            return self.frame_us(plan, frame.name)
        return scale_of(frame) * sum(self.costs[d][plan.tactics[d]] for d in self.costs)

    def difference(self, a: Plan, b: Plan, frame) -> float:
        return self.differs_by

    def lost_after(self, fault: Exception) -> Exception | None:
        return RuntimeError("CUDA error: device-side assert triggered") if self.dead else None


class Compile(DeviceError):
    """What a candidate that does not compile raises."""
