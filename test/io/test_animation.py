"""Sequences of pictures: every frame arrives, in order, in the right colours."""

import cv2
import numpy as np
import pytest
from PIL import Image

from driveRT_ros.core.errors import ConfigError
from driveRT_ros.io import animation
from driveRT_ros.io.animation import write_animation, write_gif, write_mp4, write_png_sequence
from driveRT_ros.io.palette import CLASS_COLORS
from driveRT_ros.io.render import render_bev
from test.support.pictures import boxes_of, car_at, street


def frames(num, size=(64, 96)):
    """Yield dark frames with one white bar that moves a step to the right each time."""
    for index in range(num):
        frame = np.full((*size, 3), (11, 14, 20), np.uint8)
        frame[:, 4 * index : 4 * index + 4] = 255
        yield frame


def bar_of(image):
    return int(np.flatnonzero(np.asarray(image.convert("RGB"))[0].min(axis=1) > 200)[0]) // 4


def test_png_files_are_numbered_and_hold_the_frames_exactly(tmp_path):
    paths = write_png_sequence(frames(3), tmp_path / "new" / "folder", stem="bev")
    assert [p.name for p in paths] == ["bev_00000.png", "bev_00001.png", "bev_00002.png"]
    for path, frame in zip(paths, frames(3)):
        assert np.array_equal(np.asarray(Image.open(path)), frame)


def test_a_gif_shows_every_frame_in_order_forever(tmp_path):
    gif = Image.open(write_gif(frames(20), tmp_path / "a.gif", fps=20))
    assert gif.n_frames == 20 and gif.info["loop"] == 0 and gif.info["duration"] == 50
    for index in (0, 7, 19):  # 19 comes after the frames that the palette was fitted to
        gif.seek(index)
        assert bar_of(gif) == index


def test_a_wide_gif_is_scaled_down_and_keeps_its_proportions(tmp_path):
    gif = Image.open(write_gif(frames(2), tmp_path / "a.gif", fps=10, width_px=48))
    assert gif.size == (48, 32)


def test_a_class_that_appears_late_keeps_its_colour_in_a_gif(tmp_path):
    """A palette fitted to the first frames alone would turn it into the nearest old colour."""
    quiet = [np.full((40, 60, 3), (11, 14, 20), np.uint8) for _ in range(15)]
    for name, color in CLASS_COLORS.items():
        late = quiet[0].copy()
        late[10:30, 20:40] = color
        gif = Image.open(write_gif([*quiet, late], tmp_path / f"{name}.gif", fps=10))
        gif.seek(gif.n_frames - 1)
        shown = np.asarray(gif.convert("RGB"))[20, 30].astype(int)
        assert np.abs(shown - color).max() <= 2, name


def test_the_same_frames_give_the_same_gif_and_png_bytes(tmp_path):
    for folder in ("a", "b"):
        write_gif(frames(5), tmp_path / folder / "x.gif", fps=10)
        write_png_sequence(frames(5), tmp_path / folder)
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_a_video_shows_every_frame_in_order_also_with_odd_sides(tmp_path):
    path = write_mp4(frames(8, size=(63, 95)), tmp_path / "a.mp4", fps=10)
    video = cv2.VideoCapture(str(path))
    bars = []
    while (read := video.read())[0]:
        bars.append(int(np.flatnonzero(read[1][30].mean(axis=1) > 128)[0]) // 4)
    assert bars == list(range(8))
    assert video.get(cv2.CAP_PROP_FPS) == pytest.approx(10)


def test_colours_of_a_video_are_not_swapped(tmp_path):
    orange = np.full((64, 64, 3), (255, 128, 0), np.uint8)
    video = cv2.VideoCapture(str(write_mp4([orange] * 3, tmp_path / "a.mp4", fps=10)))
    blue, _, red = video.read()[1][32, 32]
    assert red > 200 > 60 > blue


def test_one_pass_writes_all_three_kinds(tmp_path):
    files = write_animation(frames(4), tmp_path, fps=10, stem="bev")
    assert len(files.png) == 4 and files.notes == ()
    assert files.gif == tmp_path / "bev.gif" and files.gif.stat().st_size > 0
    assert files.mp4 == tmp_path / "bev.mp4" and files.mp4.stat().st_size > 0


def test_without_an_mp4_encoder_the_gif_is_kept_and_a_sentence_says_so(tmp_path, monkeypatch):
    class NoCodec:
        def __init__(self, *_):
            pass

        fourcc = staticmethod(lambda *_: 0)

        def isOpened(self):  # noqa: N802 - OpenCV's name
            return False

        def release(self):
            pass

    monkeypatch.setattr(animation.cv2, "VideoWriter", NoCodec)
    files = write_animation(frames(4), tmp_path, fps=10)
    assert files.mp4 is None and files.gif is not None and len(files.png) == 4
    (note,) = files.notes
    assert "no MP4 encoder" in note and "GIF" in note
    with pytest.raises(ConfigError, match="no MP4 encoder"):
        write_mp4(frames(1), tmp_path / "b.mp4", fps=10)


def test_no_frame_writes_no_file_and_says_so(tmp_path):
    files = write_animation([], tmp_path, fps=10)
    assert files.gif is None and files.mp4 is None and files.png == ()
    assert files.notes == ("There was no frame to write.",)
    assert list(tmp_path.iterdir()) == []


def test_frames_of_two_sizes_are_refused_with_both_sizes(tmp_path):
    mixed = [*frames(1), *frames(1, size=(32, 96))]
    with pytest.raises(ConfigError, match=r"\(64, 96, 3\), this one \(32, 96, 3\)"):
        write_animation(mixed, tmp_path, fps=10)


@pytest.mark.parametrize("fps", [0, -1, float("nan")])
def test_a_rate_that_is_not_positive_is_refused(tmp_path, fps):
    with pytest.raises(ConfigError, match="Frames per second"):
        write_gif(frames(1), tmp_path / "a.gif", fps=fps)


def test_a_float_picture_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="uint8 RGB, got float64"):
        write_gif([np.zeros((4, 4, 3))], tmp_path / "a.gif", fps=10)


def test_forty_full_pictures_make_a_gif_of_at_most_eight_megabytes(tmp_path):
    cloud = street(30_000)
    few = [
        render_bev(
            cloud + np.float32([0.4 * i, 0, 0, 0, 0]),
            detections=boxes_of(car_at(10 + i, 5, vx=4.0), car_at(-20, i)),
            title="moving",
        )
        for i in range(8)
    ]
    path = write_gif(few * 5, tmp_path / "a.gif", fps=10)
    assert Image.open(path).n_frames == 40
    assert path.stat().st_size <= 8_000_000
