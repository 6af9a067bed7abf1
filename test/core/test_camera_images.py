"""From camera frames to the network input: size, place, colours, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from driveRT_ros.core.camera_config import ImageConfig
from driveRT_ros.core.camera_images import ImageFit, Normalizer, check_frame, network_input
from driveRT_ros.core.errors import InvalidFrame
from test.support.camera_rig import frame


def test_a_nuscenes_image_is_shrunk_to_the_width_and_cropped_at_the_top():
    fit = ImageFit.of((1600, 900), ImageConfig())
    assert fit.resized_wh == (704, 396)
    assert (fit.left, fit.top) == (0, 140)
    np.testing.assert_allclose(np.diag(fit.post_rot), (0.44, 0.44, 1.0))
    np.testing.assert_array_equal(fit.post_trans, (0, -140, 0))


def test_a_larger_factor_crops_both_sides_evenly():
    fit = ImageFit.of((1600, 900), ImageConfig(resize=0.48))
    assert fit.resized_wh == (768, 432)
    assert (fit.left, fit.top) == (32, 176)


@pytest.mark.parametrize(
    "size_wh", [(1600, 900), (1920, 1080), (640, 480), (352, 128), (900, 1600)]
)
@pytest.mark.parametrize("config", [ImageConfig(), ImageConfig(resize=0.3, crop_top=0.25)])
def test_a_bright_spot_lands_where_the_matrices_say(size_wh, config):
    width, height = size_wh
    fit = ImageFit.of(size_wh, config)
    rows, cols = config.size_hw
    # A spot in the middle of what the network sees of this image.
    low = np.maximum((fit.left, fit.top), 0)
    high = np.minimum((fit.left + cols, fit.top + rows), fit.resized_wh)
    u, v = ((low + high) / 2 / fit.scale_xy).round()
    image = np.zeros((height, width, 3), np.uint8)
    radius = 6
    image[int(v) - radius : int(v) + radius + 1, int(u) - radius : int(u) + radius + 1] = 255
    out = np.zeros((rows, cols, 3), np.uint8)
    fit.apply(image, out)
    y, x = np.nonzero(out[..., 0] > 128)
    expected = fit.post_rot @ (u, v, 1.0) + fit.post_trans
    assert abs(x.mean() - expected[0]) <= 1.0
    assert abs(y.mean() - expected[1]) <= 1.0


def test_missing_rows_are_black_and_the_rest_stays_in_place():
    # 1920 x 600 shrinks to 704 x 220: 36 rows too few, all of them added at the top.
    frames = [frame("CAM_FRONT", np.full((600, 1920, 3), 200, np.uint8), size_wh=(1920, 600))]
    batch = network_input(frames, ImageConfig())
    assert batch.shape == (1, 256, 704, 3)
    assert (batch[0, :36] == 0).all()
    assert (batch[0, 36:] == 200).all()


def test_a_missing_camera_is_black_and_the_others_keep_their_rows():
    white = frame("CAM_FRONT", np.full((900, 1600, 3), 255, np.uint8))
    batch = network_input([None, white, None], ImageConfig())
    assert [int(row.max()) for row in batch] == [0, 255, 0]


def test_fine_texture_is_averaged_not_sampled():
    # Columns of one pixel, black and white in turn, must become grey, not moire.
    image = np.zeros((900, 1600, 3), np.uint8)
    image[:, ::2] = 255
    batch = network_input([frame("CAM_FRONT", image)], ImageConfig())
    assert abs(batch.astype(float).mean() - 127.5) < 2
    assert batch.std() < 40


def test_colours_are_normalised_in_the_order_of_the_network():
    batch = torch.tensor([10, 20, 30], dtype=torch.uint8).expand(1, 32, 32, 3)
    numbers = {"mean": (1.0, 2.0, 3.0), "std": (2.0, 4.0, 8.0)}
    cpu = torch.device("cpu")
    rgb = Normalizer(ImageConfig(**numbers), cpu, torch.float32)(batch)
    assert rgb.shape == (1, 1, 3, 32, 32)
    assert rgb[0, 0, :, 5, 7].tolist() == [4.5, 4.5, 3.375]
    swapped = ImageConfig(channel_order="bgr", **numbers)
    bgr = Normalizer(swapped, cpu, torch.float32)(batch)
    assert bgr[0, 0, :, 5, 7].tolist() == [14.5, 4.5, 0.875]


def test_a_good_frame_passes():
    check_frame(frame("CAM_FRONT"))
    check_frame(replace(frame("CAM_FRONT"), D=np.zeros(5)))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"image": None}, "image_missing"),
        ({"image": np.zeros((900, 1600), np.uint8)}, "image_type"),
        ({"image": np.zeros((900, 1600, 4), np.uint8)}, "image_type"),
        ({"image": np.zeros((900, 1600, 3), np.float32)}, "image_type"),
        ({"image": np.zeros((0, 1600, 3), np.uint8)}, "image_type"),
        ({"image": np.zeros((450, 800, 3), np.uint8)}, "image_size"),
        ({"image": np.zeros((1600, 900, 3), np.uint8)}, "image_size"),
        ({"K": np.zeros((3, 3))}, "intrinsics"),
        ({"K": np.full((3, 3), np.nan)}, "intrinsics"),
        ({"K": np.eye(4)}, "intrinsics"),
        ({"D": np.array([-0.3, 0.1, 0.0, 0.0, 0.0])}, "distorted"),
        ({"T_ego_camera": np.full((4, 4), np.inf)}, "extrinsics"),
        ({"T_ego_camera": np.diag([1.0, 1.0, -1.0, 1.0])}, "extrinsics"),
        ({"T_ego_camera": 2 * np.eye(4)}, "extrinsics"),
        ({"T_ego_camera": np.eye(3)}, "extrinsics"),
        ({"T_ego_camera": None}, "extrinsics"),
    ],
)
def test_an_unusable_frame_is_refused_with_a_key_and_the_name_of_the_camera(change, code):
    with pytest.raises(InvalidFrame, match="CAM_FRONT") as error:
        check_frame(replace(frame("CAM_FRONT"), **change))
    assert error.value.code == code
