"""A Plan: which kernel variant runs each stage on one GPU, as a frozen value.

One file may hold what the LiDAR network needs (``tactics``), what pooling of camera features needs
(``pools``), or both.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from driveRT_ros.core.default_tactics import default_tactic
from driveRT_ros.core.errors import ConfigError, PlanMismatch
from driveRT_ros.core.pool_tactics import PoolTactic
from driveRT_ros.core.sparse_conv_mma import MmaTactic
from driveRT_ros.core.tactics import GROUP_TAPS, TILE_ROWS, ConvTactic, Tactic
from driveRT_ros.core.verdict import Verdict

PLAN_VERSION = 2
"""Raised whenever a tactic would mean another order of additions, so that old Plans are refused.

``pools`` and ``qualified`` may be absent: Plans of this version from before they were recorded stay
readable.
"""

ARITHMETIC = {
    "fp32": ("FFMA", "F64"),
    "fp32x3": ("FFMA", "F64", "F16X3"),
    "tf32": ("FFMA", "F64", "F16X3", "TF32"),
    "fp16": ("F16",),
}
"""What the tactics of a Plan may compute with, by its precision.

Features between layers are float16 in ``fp16`` and float32 in the others; sums of tap groups and
the rows of the result are float32 in all.
"""
PRECISIONS = tuple(ARITHMETIC)

_KINDS = {"cuda_cores": Tactic, "tensor_cores": MmaTactic}
T = TypeVar("T", Tactic, MmaTactic, PoolTactic)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The tactic of every domain, a coordinate map with its channels, and of pooling.

    Same Plan, same input, same bytes: a tactic fixes the order of every addition.

    Args:
        precision: One of ``PRECISIONS``; of the domains.
        tactics: Tactic by domain (``subm3``, ``spconv4``, ``spconv_out`` ...); empty where only
            pooling was tuned.
        gpu: Name of the GPU it was measured on; empty for a default.
        weights_sha256: Weights it was measured with; empty where it does not depend on them.
        measured: What a tuner measured, in plain JSON values.
        pools: Tactic of pooling by key; see :mod:`driveRT_ros.core.pool_plan`.
        qualified: What ``drivert qualify`` found, by precision. A precision other than that of the
            Plan was judged with its default tactics, which run where the Plan cannot.
    """

    precision: str
    tactics: Mapping[str, ConvTactic]
    gpu: str = ""
    weights_sha256: str = ""
    measured: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    pools: Mapping[str, PoolTactic] = dataclasses.field(default_factory=dict)
    qualified: Mapping[str, Verdict] = dataclasses.field(default_factory=dict)

    @property
    def is_qualified(self) -> bool:
        """Whether its precision is float32 or better, or passed."""
        return self.precision == "fp32" or self.precision in self.qualified

    def tactics_sha256(self) -> str:
        """Return the hash of everything that decides how the domains compute."""
        tactics = {name: {"kind": t.kind, **vars(t)} for name, t in sorted(self.tactics.items())}
        text = json.dumps([PLAN_VERSION, self.precision, tactics], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> str:
        """Return the Plan as JSON text."""
        tactics = {name: {"kind": t.kind, **vars(t)} for name, t in self.tactics.items()}
        pools = {key: vars(t) for key, t in self.pools.items()}
        qualified = {name: dataclasses.asdict(v) for name, v in self.qualified.items()}
        named = {"tactics": tactics, "pools": pools, "qualified": qualified}
        return json.dumps({"version": PLAN_VERSION, **vars(self), **named}, indent=1)

    @staticmethod
    def from_json(text: str) -> Plan:
        """Read a Plan.

        Raises:
            ConfigError: If the text is no Plan.
            PlanMismatch: If it was written for other kernels.
        """
        try:
            values = _entries(json.loads(text))
            version = values.pop("version")
            if version != PLAN_VERSION:
                raise PlanMismatch(
                    f"The Plan has version {version}, these kernels need {PLAN_VERSION}; tune "
                    "again."
                )
            tactics = {name: _tactic(**t) for name, t in values.pop("tactics").items()}
            pools = {key: _checked(PoolTactic(**t)) for key, t in values.pop("pools", {}).items()}
            judged = values.pop("qualified", {}).items()
            qualified = {name: Verdict.from_json(verdict) for name, verdict in judged}
            plan = Plan(tactics=tactics, pools=pools, qualified=qualified, **values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            reason = f"it lacks the entry {error}" if isinstance(error, KeyError) else error
            raise ConfigError(f"This is no Plan: {reason}.") from None
        check_precision(plan.precision)
        return plan

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a Plan from a file; see :meth:`from_json`."""
        text = _text_of(path)
        try:
            return Plan.from_json(text)
        except (ConfigError, PlanMismatch) as error:
            raise type(error)(f"Plan '{path}' cannot be used. {error}") from None

    def save(self, path: str | Path) -> None:
        """Write the Plan to a file; readers see the old file or the new one, never a part.

        Raises:
            ConfigError: If the file cannot be written.
        """
        partial = Path(f"{path}.part")
        try:
            partial.write_text(self.to_json() + "\n", encoding="utf-8")
            os.replace(partial, path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise ConfigError(f"Plan '{path}' cannot be written: {error}.") from None

    @staticmethod
    def for_device(
        path: str | Path,
        channels: tuple[int, ...],
        precision: str,
        gpu: str,
        capability: tuple[int, int],
        weights_sha256: str = "",
    ) -> tuple[Plan, str]:
        """Return the Plan of a file, or the default where that is stale, and why.

        Args:
            path: The file; empty for the default.
            channels: Channels of the six backbone levels.
            precision: One of ``PRECISIONS``.
            gpu: Name of the GPU at hand.
            capability: Its CUDA compute capability.
            weights_sha256: The weights at hand; empty where unknown.

        Returns:
            A Plan that runs, ``qualified`` holding only what speaks of it, and a sentence on what
            kept the file from being used, or "".

        Raises:
            ConfigError: If there is no such precision, no Plan at all for these channels, or the
                file says that what would run failed its qualification.
        """
        default = default_plan(channels, capability, precision)
        if not path:
            return default, ""
        note, verdict = "", None
        try:
            plan = Plan.from_json(_text_of(path))
            verdict = plan.qualified.get(precision)
            plan.check_device(gpu, weights_sha256)
            if plan.precision != precision:
                raise PlanMismatch(
                    f"The Plan is for precision '{plan.precision}', '{precision}' is asked for."
                )
            plan.check_layers(channels, capability)
        except (ConfigError, PlanMismatch) as error:
            plan = default
            note = default_instead(path, error)
        if verdict and verdict.applies_to(gpu, weights_sha256, plan.tactics_sha256()):
            if not verdict.passed:
                raise ConfigError(verdict.refusal(precision, str(path)))
            return dataclasses.replace(plan, qualified={precision: verdict}), note
        return dataclasses.replace(plan, qualified={}), note

    def check_device(self, gpu: str, weights_sha256: str = "") -> None:
        """Raise PlanMismatch where the Plan was measured on another GPU or with other weights."""
        if self.gpu and self.gpu != gpu:
            raise PlanMismatch(
                f"The Plan was tuned on '{self.gpu}', this is '{gpu}'; tune again or use the "
                "default Plan."
            )
        if self.weights_sha256 and weights_sha256 and self.weights_sha256 != weights_sha256:
            raise PlanMismatch(
                f"The Plan was tuned with weights {self.weights_sha256[:12]}, these are "
                f"{weights_sha256[:12]}; tune again or use the default Plan."
            )

    def check_layers(self, channels: tuple[int, ...], capability: tuple[int, int]) -> None:
        """Raise ConfigError where a domain has no tactic, or one that cannot or may not run it."""
        check_precision(self.precision)
        for domain, (c_in, c_out, taps) in domain_layers(channels).items():
            tactic = self.tactics.get(domain)
            if tactic is None:
                raise ConfigError(f"The Plan has no tactic for domain '{domain}'; tune again.")
            if tactic.arithmetic not in ARITHMETIC[self.precision]:
                raise ConfigError(
                    f"The Plan computes domain '{domain}' in {tactic.arithmetic}; precision "
                    f"'{self.precision}' allows {', '.join(ARITHMETIC[self.precision])}."
                )
            if tactic.tile_rows not in TILE_ROWS or taps / tactic.groups not in GROUP_TAPS:
                raise ConfigError(
                    f"The Plan cuts domain '{domain}' into tiles of {tactic.tile_rows} rows and "
                    f"{taps} taps in {tactic.groups} groups; maps have tiles of {TILE_ROWS} rows "
                    f"and groups of {GROUP_TAPS} taps."
                )
            fault = tactic.supports(c_in, c_out, taps, capability)
            if fault:
                raise ConfigError(f"The Plan cannot run domain '{domain}': {fault}.")


def default_instead(path: str | Path, error: Exception) -> str:
    """Return the sentence on a Plan that cannot be used: of the network, or of pooling."""
    return f"Plan '{path}' is not used, the default runs instead: {error}"


def needs_no_plan(path: str | Path, where: str) -> str:
    """Return the sentence on a Plan that is named where nothing is tuned."""
    return (
        f"Plan '{path}' is not used: {where} runs the reference, which needs none; leave "
        "'plan_path' empty or set 'device' to a CUDA device."
    )


_ENTRIES = {
    "version": int, "precision": str, "tactics": dict, "gpu": str, "weights_sha256": str,
    "measured": dict, "pools": dict, "qualified": dict,
}  # fmt: skip


def _entries(values: Any) -> dict[str, Any]:
    """Return what a JSON text holds, whose entries have their types."""
    if not isinstance(values, dict):
        raise ValueError(f"it holds {values!r:.60}, 'drivert tune' writes an object")
    for name, value in values.items() if values.get("version") == PLAN_VERSION else ():
        kind = _ENTRIES.get(name)
        if kind is None:
            raise ValueError(f"nothing expects its entry '{name}'")
        if not isinstance(value, kind):
            raise ValueError(
                f"its entry '{name}' must be of type {kind.__name__}, got {value!r:.60}"
            )
    return values


def _text_of(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"Plan '{path}' cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"Plan '{path}' cannot be read: it is no text ({error}).") from None


def check_precision(precision: str) -> None:
    """Raise ConfigError unless there is such a precision."""
    if precision not in PRECISIONS:
        raise ConfigError(f"Precision must be one of {', '.join(PRECISIONS)}, got '{precision}'.")


def domain_layers(channels: tuple[int, ...]) -> dict[str, tuple[int, int, int]]:
    """Return (input channels, output channels, taps) of every domain, in order of execution.

    Args:
        channels: Channels of the six backbone levels.
    """
    layers = {}
    for number, c_out in enumerate(channels, start=1):
        if number > 1:
            layers[f"spconv{number}"] = (channels[number - 2], c_out, 27)
        layers[f"subm{number}"] = (c_out, c_out, 27)
    layers["spconv_out"] = layers["subm_out"] = (channels[-1], channels[-1], 9)
    return layers


def _tactic(kind: str, **fields: Any) -> ConvTactic:
    if kind not in _KINDS:
        raise ValueError(f"a tactic of kind '{kind}'; kinds are {', '.join(_KINDS)}")
    return _checked(_KINDS[kind](**fields))


def _checked(tactic: T) -> T:
    """Return a tactic whose fields have their types, and counts that are positive."""
    for field in dataclasses.fields(tactic):
        value = getattr(tactic, field.name)
        if type(value).__name__ != field.type or (field.type == "int" and value < 1):
            raise ValueError(f"a tactic whose {field.name} is {value!r}")
    return tactic


def default_plan(
    channels: tuple[int, ...], capability: tuple[int, int], precision: str = "fp32"
) -> Plan:
    """Return the Plan that runs without a search.

    ``fp32`` sums in float64 on the matrix units of chips where that was measured to win, and runs
    on the CUDA cores of others. Where a chip or a width has no matrix unit for ``fp32x3`` or
    ``tf32``, that domain runs there too; ``fp16`` has nothing to fall back to.

    Args:
        channels: Channels of the six backbone levels.
        capability: CUDA compute capability.
        precision: One of ``PRECISIONS``.

    Raises:
        ConfigError: If there is no such precision, or a domain that nothing can run.
    """
    check_precision(precision)
    tactics = {
        domain: default_tactic(domain, layer, capability, precision)
        for domain, layer in domain_layers(channels).items()
    }
    plan = Plan(precision, tactics)
    plan.check_layers(channels, capability)
    return plan
