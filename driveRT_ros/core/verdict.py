"""Whether a precision finds what float32 finds, as a Plan remembers it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What ``drivert qualify`` found of one precision.

    Args:
        passed: All figures are within the limits.
        reasons: Which are not, one phrase each.
        figures: What was measured, in plain JSON values.
        limits: What was allowed.
        gpu: Where.
        weights_sha256: With which weights.
        tactics_sha256: With which tactics; see :meth:`~driveRT_ros.core.plan.Plan.tactics_sha256`.
        date: When, ISO 8601.
    """

    passed: bool
    reasons: tuple[str, ...]
    figures: Mapping[str, Any]
    limits: Mapping[str, float]
    gpu: str
    weights_sha256: str
    tactics_sha256: str
    date: str

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Verdict:
        """Read what :func:`dataclasses.asdict` made.

        Raises:
            TypeError: If a field is missing, unknown or of another type.
        """
        verdict = Verdict(**{**values, "reasons": tuple(values["reasons"])})
        texts = (verdict.gpu, verdict.weights_sha256, verdict.tactics_sha256, verdict.date)
        if not isinstance(verdict.passed, bool) or not all(isinstance(t, str) for t in texts):
            raise TypeError(f"a verdict of {values!r}")
        if not all(isinstance(part, Mapping) for part in (verdict.figures, verdict.limits)):
            raise TypeError(f"a verdict without figures or limits: {values!r}")
        return verdict

    def applies_to(self, gpu: str, weights_sha256: str, tactics_sha256: str) -> bool:
        """Return whether it speaks of what runs: GPU, weights and tactics."""
        mine = (self.gpu, self.weights_sha256, self.tactics_sha256)
        return mine == (gpu, weights_sha256, tactics_sha256)

    def refusal(self, precision: str, plan_path: str) -> str:
        """Return why a precision that failed is not run, and what to do."""
        return (
            f"Precision '{precision}' failed its qualification of {self.date} on this GPU with "
            f"these weights: {'; '.join(self.reasons)}. Use 'fp32' or a precision that passed, or "
            f"repeat it with 'drivert qualify --plan {plan_path} --precision {precision}'."
        )
