"""Pictures in sequence: PNG files, an animated GIF, an MP4 video.

Each writer takes one frame at a time, so that a long run needs no memory for all its pictures;
:func:`write_animation` feeds all three at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image as PilImage

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.io.bev_shapes import BACKGROUND
from driveRT_ros.io.palette import AMBER, CLASS_COLORS, height_ramp

Frame = npt.NDArray[np.uint8]

GIF_WIDTH_PX = 800
PALETTE_FRAMES = 12


class _Writer:
    """Opens the folder, checks frames, and closes at the end of a ``with`` block."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._shape: tuple[int, ...] | None = None

    def _check(self, frame: Frame) -> None:
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            raise ConfigError(
                f"A frame must be (H, W, 3) uint8 RGB, got {frame.dtype} of shape {frame.shape}."
            )
        if self._shape not in (None, frame.shape):
            raise ConfigError(
                f"All frames of an animation must have one size: the first has {self._shape}, "
                f"this one {frame.shape}. Give every frame the same view."
            )
        self._shape = frame.shape

    def close(self) -> None:
        """Finish the file."""

    def __enter__(self):  # type: ignore[no-untyped-def]  # Self needs Python 3.11
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class PngWriter(_Writer):
    """Numbered PNG files: ``<stem>_00000.png`` and on.

    Args:
        folder: Made where it is missing.
        stem: Begin of the names.
    """

    def __init__(self, folder: str | Path, stem: str = "frame") -> None:
        super().__init__(Path(folder))
        self.folder, self.stem = Path(folder), stem
        self.paths: list[Path] = []

    def add(self, frame: Frame) -> None:
        """Write one file."""
        self._check(frame)
        path = self.folder / f"{self.stem}_{len(self.paths):05d}.png"
        PilImage.fromarray(frame).save(path, compress_level=4)
        self.paths.append(path)


class GifWriter(_Writer):
    """An endless animated GIF; all frames share one palette, so colours do not flicker.

    The palette is fitted to the first 12 frames and to every colour that classes, points and
    warnings can take. Frames are kept reduced to it (a byte a pixel) until the end.

    Args:
        path: File to write.
        fps: Frames a second; GIF counts in hundredths of a second and players slow down what is
            quicker than 50.
        width_px: Wider frames are scaled down to this.
    """

    def __init__(self, path: str | Path, fps: float, width_px: int = GIF_WIDTH_PX) -> None:
        super().__init__(Path(path).parent)
        self.path, self.width_px = Path(path), width_px
        self._duration_ms = 10 * max(2, round(100 / _checked_fps(fps)))
        self._waiting: list[PilImage.Image] = []
        self._reduced: list[PilImage.Image] = []
        self._palette: PilImage.Image | None = None

    def add(self, frame: Frame) -> None:
        """Append one frame."""
        self._check(frame)
        height, width = frame.shape[:2]
        if width > self.width_px:
            size = (self.width_px, max(1, round(height * self.width_px / width)))
            frame = np.asarray(cv2.resize(frame, size, interpolation=cv2.INTER_AREA), np.uint8)
        self._waiting.append(PilImage.fromarray(frame))
        if len(self._waiting) >= PALETTE_FRAMES or self._palette is not None:
            self._reduce()

    def close(self) -> None:
        """Write the file; without a single frame there is none."""
        self._reduce()
        if not self._reduced:
            return
        first, *rest = self._reduced
        first.save(
            self.path,
            save_all=True,
            append_images=rest,
            duration=self._duration_ms,
            loop=0,
            optimize=False,
        )
        self._reduced = []

    def _reduce(self) -> None:
        if not self._waiting:
            return
        if self._palette is None:
            self._palette = _shared_palette(self._waiting)
        self._reduced += [
            image.quantize(palette=self._palette, dither=PilImage.Dither.NONE)
            for image in self._waiting
        ]
        self._waiting = []


class Mp4Writer(_Writer):
    """An MP4 video (MPEG-4 part 2).

    Args:
        path: File to write.
        fps: Frames a second.
    """

    def __init__(self, path: str | Path, fps: float) -> None:
        super().__init__(Path(path).parent)
        self.path, self._fps = Path(path), _checked_fps(fps)
        self._video: cv2.VideoWriter | None = None

    def add(self, frame: Frame) -> None:
        """Append one frame.

        Raises:
            ConfigError: If this build of OpenCV has no encoder for MP4.
        """
        self._check(frame)
        # The codec takes even sides only.
        frame = np.pad(frame, ((0, frame.shape[0] % 2), (0, frame.shape[1] % 2), (0, 0)), "edge")
        if self._video is None:
            fourcc = cv2.VideoWriter.fourcc(*"mp4v")
            size = (frame.shape[1], frame.shape[0])
            self._video = cv2.VideoWriter(str(self.path), fourcc, self._fps, size)
            if not self._video.isOpened():
                raise ConfigError(
                    f"'{self.path}' cannot be written: this build of OpenCV has no MP4 encoder "
                    "(mp4v). The GIF and the PNG files show the same frames."
                )
        self._video.write(cv2.cvtColor(frame, cv2.COLOR_RGB2BGR))

    def close(self) -> None:
        """Finish the file."""
        if self._video is not None:
            self._video.release()


@dataclasses.dataclass(frozen=True)
class AnimationFiles:
    """What :func:`write_animation` wrote.

    Args:
        png: Numbered pictures.
        gif: None where there was no frame.
        mp4: None where there was no frame or no encoder.
        notes: Sentences on what is missing.
    """

    png: tuple[Path, ...]
    gif: Path | None
    mp4: Path | None
    notes: tuple[str, ...] = ()


def write_animation(
    frames: Iterable[Frame], folder: str | Path, fps: float, stem: str = "bev"
) -> AnimationFiles:
    """Write ``<stem>_00000.png`` ..., ``<stem>.gif`` and ``<stem>.mp4`` from one pass over frames.

    Where no MP4 encoder is available the rest is written all the same, and a note says so.

    Args:
        frames: (H, W, 3) uint8 RGB, all of one size.
        folder: Made where it is missing.
        fps: Frames a second.
        stem: Begin of the names.

    Raises:
        ConfigError: If the frames differ in size or ``fps`` is not positive.
    """
    folder = Path(folder)
    notes: list[str] = []
    has_video = True
    with (
        PngWriter(folder, stem) as png,
        GifWriter(folder / f"{stem}.gif", fps) as gif,
        Mp4Writer(folder / f"{stem}.mp4", fps) as mp4,
    ):
        for frame in frames:
            png.add(frame)
            gif.add(frame)
            try:
                if has_video:
                    mp4.add(frame)
            except ConfigError as error:
                has_video = False
                notes.append(str(error))
    if not png.paths:
        return AnimationFiles((), None, None, ("There was no frame to write.",))
    return AnimationFiles(tuple(png.paths), gif.path, mp4.path if has_video else None, tuple(notes))


def write_png_sequence(
    frames: Iterable[Frame], folder: str | Path, stem: str = "frame"
) -> list[Path]:
    """Write numbered PNG files and return their paths."""
    with PngWriter(folder, stem) as writer:
        for frame in frames:
            writer.add(frame)
    return writer.paths


def write_gif(
    frames: Iterable[Frame], path: str | Path, fps: float, width_px: int = GIF_WIDTH_PX
) -> Path:
    """Write an animated GIF (see :class:`GifWriter`) and return its path."""
    with GifWriter(path, fps, width_px) as writer:
        for frame in frames:
            writer.add(frame)
    return writer.path


def write_mp4(frames: Iterable[Frame], path: str | Path, fps: float) -> Path:
    """Write an MP4 video (see :class:`Mp4Writer`) and return its path."""
    with Mp4Writer(path, fps) as writer:
        for frame in frames:
            writer.add(frame)
    return writer.path


def _checked_fps(fps: float) -> float:
    if not 0 < fps <= 1000:
        raise ConfigError(f"Frames per second must be in (0, 1000], got {fps!r}.")
    return fps


def _shared_palette(images: Sequence[PilImage.Image]) -> PilImage.Image:
    """Fit one palette to a few frames, and keep room for colours that may only appear later."""
    swatches: list[list[int]] = []
    for color in (*CLASS_COLORS.values(), AMBER):
        # Alone, half way to the background where an edge is smoothed, and as a translucent fill.
        for share in (1.0, 0.6, 0.3):
            swatches.append([round(share * c + (1 - share) * b) for c, b in zip(color, BACKGROUND)])
    swatches += height_ramp()[::15].tolist()
    stack = PilImage.fromarray(np.concatenate([np.asarray(image) for image in images]))
    fitted = stack.quantize(256 - len(swatches), method=PilImage.Quantize.MEDIANCUT).getpalette()
    flat = (fitted or [])[: 3 * (256 - len(swatches))] + [c for row in swatches for c in row]
    palette = PilImage.new("P", (1, 1))
    palette.putpalette(flat)
    return palette
