"""What became of the images of each camera after they were paired; every thread may write."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from driveRT_ros.core.errors import InvalidFrame


@dataclass
class CameraPage:
    """The record of one camera.

    Args:
        reason: Why its newest image could not be used; empty where it was.
        rejected: Images that could not be used, by reason code.
        calibration: Name of the calibration in use; empty before the first image.
        recalibrations: How often that has changed.
    """

    reason: str = ""
    rejected: Counter[str] = field(default_factory=Counter)
    calibration: str = ""
    recalibrations: int = 0


class CameraBook:
    """One page a camera.

    Args:
        cameras: Names.
    """

    def __init__(self, cameras: Iterable[str]) -> None:
        self._pages = {name: CameraPage() for name in cameras}
        self._lock = threading.Lock()

    def rejected(self, camera: str, code: str, sentence: str) -> None:
        """Note an image that cannot be used."""
        with self._lock:
            page = self._pages[camera]
            page.reason = sentence
            page.rejected[code] += 1

    def used(self, camera: str, calibration: str) -> None:
        """Note an image that was used, with the name of its calibration."""
        with self._lock:
            page = self._pages[camera]
            page.reason = ""
            if page.calibration and page.calibration != calibration:
                page.recalibrations += 1
            page.calibration = calibration

    def page(self, camera: str) -> CameraPage:
        """Return a copy of a page."""
        with self._lock:
            page = self._pages[camera]
            return replace(page, rejected=Counter(page.rejected))


class SetFaults:
    """Images of one set that cannot be used: counts by reason, and sentence by kind of fault.

    Args:
        book: Where they are written down.
    """

    def __init__(self, book: CameraBook) -> None:
        self._book = book
        self.counts: Counter[str] = Counter()
        self.sentences: dict[str, str] = {}

    def add(self, camera: str, error: InvalidFrame) -> None:
        """Note an image that cannot be used."""
        sentence = f"{camera}: {error}"
        self._book.rejected(camera, error.code, sentence)
        self.counts[f"images.{error.code}"] += 1
        self.sentences[f"image {camera} {error.code}"] = sentence
