"""What a search knows so far, and the file that lets another process continue it."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from driveRT_ros.core.errors import ConfigError

STATE_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Trial:
    """What became of one candidate.

    Args:
        tactic: The candidate, for people.
        error: Largest error relative to float64; None where it never ran.
        ratio: Median of its time over that of the incumbent; None where it was not timed.
        us: Its mean time over the frames in microseconds.
        incumbent_us: That of the incumbent.
        frames: Frames it was timed on: fewer than all where it could not win any more.
        kept: It is the new incumbent.
        fault: Why it cannot be used; empty for none.
        note: Why it was not tried; empty for none.
    """

    tactic: str
    error: float | None = None
    ratio: float | None = None
    us: float | None = None
    incumbent_us: float | None = None
    frames: int = 0
    kept: bool = False
    fault: str = ""
    note: str = ""


@dataclasses.dataclass
class DomainState:
    """One domain: what was tried, and which candidate leads (-1: the default)."""

    trials: list[Trial] = dataclasses.field(default_factory=list)
    chosen: int = -1
    done: bool = False
    default_us: float | None = None
    chosen_us: float | None = None
    ratio: float | None = None
    note: str = ""


@dataclasses.dataclass
class State:
    """A whole search; ``trying`` is the candidate at hand: domain and number."""

    domains: dict[str, DomainState] = dataclasses.field(default_factory=dict)
    trying: tuple[str, int] | None = None
    seconds: float = 0.0


class StateFile:
    """The state of one search on disk.

    Args:
        path: JSON file; None keeps nothing.
        key: What the results depend on, as plain JSON values. A file with another key is not
            continued; ``note`` says so.
    """

    def __init__(self, path: Path | None, key: Mapping[str, Any]) -> None:
        self.path, self.key, self.note = path, dict(key), ""

    def load(self) -> State:
        """Return the state to continue from, or a new one."""
        if self.path is None or not self.path.exists():
            return State()
        try:
            values = json.loads(self.path.read_text(encoding="utf-8"))
            stored, version = values["key"], values["version"]
            state = _state(values["state"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.note = f"'{self.path}' cannot be continued ({error}); the search starts anew."
            return State()
        other = sorted(k for k in {*stored, *self.key} if stored.get(k) != self.key.get(k))
        if version != STATE_VERSION or other:
            what = ", ".join(other) or "version"
            self.note = f"'{self.path}' is of another search ({what}); the search starts anew."
            return State()
        tried = sum(len(domain.trials) for domain in state.domains.values())
        self.note = f"Continuing '{self.path}' after {tried} candidates."
        return state

    def save(self, state: State) -> None:
        """Write the state; readers see the old file or the new one, never a part.

        Raises:
            ConfigError: If the file cannot be written.
        """
        if self.path is None:
            return
        values = {"version": STATE_VERSION, "key": self.key, "state": dataclasses.asdict(state)}
        partial = self.path.with_name(self.path.name + ".new")
        try:
            partial.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
            os.replace(partial, self.path)
        except OSError as error:
            raise ConfigError(f"The state '{self.path}' cannot be written: {error}.") from None

    def remove(self) -> None:
        """Delete the file: the search is complete."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _state(values: Mapping[str, Any]) -> State:
    domains = {
        name: DomainState(**{**fields, "trials": [Trial(**trial) for trial in fields["trials"]]})
        for name, fields in values["domains"].items()
    }
    trying = values["trying"]
    return State(domains, (trying[0], int(trying[1])) if trying else None, values["seconds"])
