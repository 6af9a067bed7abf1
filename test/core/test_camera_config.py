"""The parameters of the camera model: derived sizes, refusals by name, and the preset."""

from __future__ import annotations

import pytest

from driveRT_ros.core.bev_grid import grid_shape
from driveRT_ros.core.camera_config import (
    CameraConfig,
    CameraModelConfig,
    DepthConfig,
    GridConfig,
    NetworkConfig,
    bevdet_r50,
)
from driveRT_ros.core.config import LidarConfig
from driveRT_ros.core.errors import ConfigError


def test_default_grid_lies_on_the_lidar_grid_cell_for_cell():
    camera, lidar = CameraConfig().model.grid, LidarConfig()
    assert camera.shape_zyx[1:] == grid_shape(lidar)
    assert camera.resolution_m == lidar.bev.resolution_m
    assert (camera.x_range_m[0], camera.y_range_m[0]) == lidar.voxelization.point_cloud_range[:2]


def test_preset_has_the_published_sizes():
    config = bevdet_r50()
    assert config.model.depth.bins == 59
    assert config.model.grid.shape_zyx == (1, 128, 128)
    assert config.model.image.feature_size_hw == (16, 44)
    assert config.model.network.class_names[0] == "car"
    assert len(config.model.network.class_names) == 10


@pytest.mark.parametrize("config", [CameraConfig(), bevdet_r50()], ids=["default", "bevdet"])
def test_plain_values_give_the_same_configuration_back(config):
    assert CameraConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("low", [1.0, 2.0, 0.5])
@pytest.mark.parametrize("high", [60.0, 45.0, 58.3])
@pytest.mark.parametrize("step", [1.0, 0.5, 0.25, 0.2, 0.3])
def test_depths_are_counted_as_they_are_listed(low, high, step):
    # Counted in exact integers: a quotient of floats may fall on either side of a whole number.
    low_mm, high_mm, step_mm = (round(1000 * v) for v in (low, high, step))
    expected = len(range(low_mm, high_mm, step_mm))
    assert DepthConfig(min_m=low, max_m=high, step_m=step).bins == expected


def test_yaml_overrides_part_of_the_defaults(tmp_path):
    path = tmp_path / "camera.yaml"
    path.write_text("/**:\n  ros__parameters:\n    cameras: [left, right]\n    sync.window_s: 1\n")
    config = CameraConfig.from_yaml(path)
    assert config.cameras == ("left", "right")
    assert config.sync.window_s == 1.0
    assert config.model == CameraModelConfig()


def test_one_empty_name_stands_for_an_empty_list():
    # ROS parameter files cannot hold an empty list of strings.
    assert NetworkConfig(heads=("",)) == NetworkConfig()
    assert NetworkConfig(segmentation=("",), heads=("car",)).segmentation == ()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"camreas": ["a"]}, "'camreas' is unknown. Did you mean 'cameras'?"),
        ({"cameras": []}, "'cameras' must name every camera once"),
        ({"cameras": ["a", "a"]}, "'cameras' must name every camera once"),
        ({"cameras": ["a"], "sync.min_cameras": 2}, "'sync.min_cameras' must be at most"),
        ({"model": {"image": {"size_hw": [250, 704]}}}, "nearest are 224 and 256"),
        ({"model": {"image": {"size_hw": [256]}}}, "'model.image.size_hw' must hold 2 values"),
        ({"model": {"image": {"std": [1, 1, 0]}}}, "'model.image.std' must lie in"),
        ({"model": {"depth": {"min_m": 60.0}}}, "'model.depth.min_m' must be below 'max_m'"),
        ({"model": {"depth": {"step_m": 0.1}}}, "makes 590 depths"),
        ({"model": {"grid": {"x_range_m": [5, -5]}}}, "'model.grid.x_range_m' must have minimum"),
        ({"model": {"grid": {"y_range_m": [-5, 5.1]}}}, "'model.grid.y_range_m' must be a whole"),
        ({"model": {"grid": {"rounding": "round"}}}, "must be one of 'floor', 'trunc'"),
        ({"model": {"network": {"backbone": "vgg"}}}, "'model.network.backbone' must be one of"),
        ({"model": {"network": {"segmentation": []}}}, "must name at least one output"),
        ({"model": {"network": {"segmentation": ["a", "a"]}}}, "must name every output once"),
        ({"model": {"network": {"heads": ["car,"]}}}, "'model.network.heads' must name every"),
        ({"post_process_params.score_thresholds": [0.1, 0.2]}, "each of the 0 classes, got 2"),
        ({"post_process_params.nms_size_factors": [1, 1, 1]}, "each of the 0 classes, got 3"),
        ({"precision": "int8"}, "'precision' must be one of"),
    ],
)
def test_wrong_values_are_refused_by_name(values, said):
    with pytest.raises(ConfigError) as error:
        CameraConfig.from_dict(values)
    assert said in str(error.value)


def test_every_parameter_has_a_sentence_and_a_type_that_ros_knows():
    for parameter in CameraConfig.parameters():
        assert parameter.kind in (bool, int, float, str)
        assert parameter.info.doc.endswith("."), parameter.name


def test_cells_along_an_axis_survive_ranges_that_are_no_binary_fractions():
    assert GridConfig((-20.7, 20.7), (-0.9, 2.1), resolution_m=0.3).shape_zyx == (1, 10, 138)
    assert GridConfig((-51.2, 51.2), (-51.2, 51.2), resolution_m=0.1).shape_zyx == (1, 1024, 1024)
