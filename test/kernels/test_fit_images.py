"""Images that the device resizes are those of OpenCV, byte for byte."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from driveRT_ros.core.camera_config import ImageConfig
from driveRT_ros.core.camera_images import network_input
from driveRT_ros.core.gpu import camera_input
from driveRT_ros.core.gpu.camera_input import CameraInput
from test.support.camera_rig import NAMES, frame

SMALL = ImageConfig(size_hw=(64, 192))


def noise(size_wh, seed, name=NAMES[0]):
    """Return a frame of random bytes, which no rounding forgives."""
    width, height = size_wh
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    return frame(name, pixels, size_wh=size_wh)


class Fitted:
    """A :class:`CameraInput` on a backend."""

    def __init__(self, backend, config, cameras):
        self.present = torch.ones(cameras, device=backend.device)

        def bind(blocks, threads, value):
            return lambda: backend.launch("fit_images", "fit_images", blocks, threads, value)

        self.input = CameraInput(config, self.present, bind, threads=2)

    def __call__(self, frames):
        """Return the batch and whether memory moved."""
        here = [float(f is not None) for f in frames]
        self.present.copy_(torch.tensor(here))
        before = self.input.fit
        self.input.load(frames)
        self.input.fit()
        return self.input.batch.cpu().numpy(), self.input.fit != before


@pytest.mark.parametrize(
    ("size_wh", "change"),
    [
        ((480, 270), {}),  # a factor of 2.5
        ((384, 216), {}),  # halves, which OpenCV rounds up
        ((576, 324), {}),  # thirds
        ((384, 300), {"resize": 1 / 3}),
        ((401, 225), {}),
        ((192, 64), {}),  # as it is
        ((192, 300), {}),
        ((100, 80), {}),  # enlarged, so by the host
        ((480, 100), {}),  # black rows on top
        ((480, 270), {"crop_top": 0.0}),
        ((480, 270), {"crop_top": 0.3, "resize": 0.3}),  # black columns
        ((480, 270), {"resize": 0.9}),  # columns cut away
    ],
)
def test_the_device_gives_the_bytes_of_the_host(backend, size_wh, change):
    config = replace(SMALL, **change)
    frames = [noise(size_wh, seed) for seed in (1, 2)]
    want = network_input(frames, config)
    found, _ = Fitted(backend, config, 2)(frames)
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("size_wh", [(1600, 900), (1920, 1080), (1408, 792)])
def test_images_of_common_cameras_are_the_same_bytes(backend, size_wh):
    config = ImageConfig() if backend.device.type == "cuda" else replace(SMALL, resize=0.44)
    frames = [noise(size_wh, 3)]
    found, _ = Fitted(backend, config, 1)(frames)
    np.testing.assert_array_equal(found, network_input(frames, config))


def test_cameras_of_several_sizes_come_and_go_and_memory_grows_with_the_largest(backend):
    fitted = Fitted(backend, SMALL, 3)
    small, large = [noise((240, 135), seed) for seed in (4, 5, 6)], noise((480, 270), 7)
    told = []
    for frames in (
        small,
        small,
        [None, *small[1:]],
        [small[0], large, None],
        [small[0], large, small[2]],
        small,
        [None, None, None],
    ):
        found, moved = fitted(frames)
        told.append(moved)
        np.testing.assert_array_equal(found, network_input(frames, SMALL))
    assert told == [True, False, False, True, False, False, False]


def test_images_that_find_no_memory_leave_the_next_ones_their_place(backend, monkeypatch):
    fitted = Fitted(backend, SMALL, 2)
    small, large = noise((240, 135), 4), noise((480, 270), 7)
    fitted([small, small])

    def full(*_):
        raise MemoryError

    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(camera_input, "_Slot", full)
        fitted([large, small])
    for frames in ([None, small], [large, small]):
        found, _ = fitted(frames)
        np.testing.assert_array_equal(found, network_input(frames, SMALL))


def test_images_may_be_views_and_read_only_and_change_at_once(backend):
    fitted = Fitted(backend, SMALL, 1)
    wide = noise((960, 270), 8).image
    for image in (wide[:, ::2], wide[:, :480], wide[::-1, :480, ::-1]):
        given = replace(noise((480, 270), 0), image=image)
        want = network_input([given], SMALL)
        np.testing.assert_array_equal(fitted([given])[0], want)
    image = np.ascontiguousarray(wide[:, :480])
    image.flags.writeable = False
    given = replace(given, image=image)
    np.testing.assert_array_equal(fitted([given])[0], network_input([given], SMALL))


def test_a_slot_is_written_again_only_after_the_device_has_read_it(backend):
    fitted = Fitted(backend, SMALL, 1)
    frames = [noise((480, 270), seed) for seed in range(6)]
    found = []
    for each in frames:
        want = network_input([each], SMALL)
        if backend.device.type == "cuda":
            torch.cuda._sleep(20_000_000)  # the device is behind: who does not wait overtakes it
        fitted.input.load([each])
        each.image[:] = 0
        fitted.input.fit()
        found.append((fitted.input.batch.clone(), want))
    for got, want in found:
        np.testing.assert_array_equal(got.cpu().numpy(), want)


def test_images_may_change_once_a_load_has_failed(backend, monkeypatch):
    """Threads copy the images: none may still read them, or write, when the caller knows."""
    fitted = Fitted(backend, SMALL, 3)
    frames = [noise((480, 270), seed) for seed in (1, 2, 3)]
    fitted(frames)
    lines_of, ended = camera_input._Plan.lines_of, []

    def slow_or_broken(plan, image):
        if image is frames[0].image:
            raise MemoryError
        time.sleep(0.05)
        ended.append(image)
        return lines_of(plan, image)

    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(camera_input._Plan, "lines_of", slow_or_broken)
        fitted(frames)
    assert len(ended) == 2
    found, moved = fitted(frames[::-1])
    np.testing.assert_array_equal(found, network_input(frames[::-1], SMALL))
    assert not moved
