"""Configuration: defaults live in code, YAML only overrides, nothing wrong is taken in silence."""

from __future__ import annotations

import dataclasses

import pytest

from driveRT_ros.core.config import LidarConfig, ModelConfig, VoxelizationConfig
from driveRT_ros.core.errors import ConfigError
from driveRT_ros.core.yaml_text import parse_yaml


def test_defaults_are_the_nuscenes_grid_of_voxelnext():
    voxels = VoxelizationConfig()
    assert voxels.grid_xyz == (1440, 1440, 40)
    assert voxels.sparse_shape_zyx == (41, 1440, 1440)


def test_labels_follow_head_order():
    assert ModelConfig().class_names[:4] == (
        "car",
        "truck",
        "construction_vehicle",
        "bus",
    )
    assert len(ModelConfig().class_names) == 10


def test_dict_round_trip_gives_an_equal_config():
    config = LidarConfig.from_dict({"voxelization": {"max_voxels": 1000}, "device": "cpu"})
    assert config.voxelization.max_voxels == 1000
    assert LidarConfig.from_dict(config.to_dict()) == config


def test_dotted_and_nested_names_mean_the_same():
    nested = LidarConfig.from_dict({"post_process_params": {"top_k": 7}})
    assert LidarConfig.from_dict({"post_process_params.top_k": 7}) == nested


def test_ints_are_taken_where_floats_are_meant():
    config = LidarConfig.from_dict(
        {
            "voxelization.voxel_size": [1, 1, 1],
            "post_process_params.score_thresholds": [0],
        }
    )
    assert config.voxelization.voxel_size == (1.0, 1.0, 1.0)
    assert isinstance(config.post_process_params.score_thresholds[0], float)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"voxelisation": {}},
            "'voxelisation' is unknown. Did you mean 'voxelization'",
        ),
        ({"voxelization": {"max_voxel": 3}}, "'voxelization.max_voxel' is unknown"),
        (
            {"voxelization": {"max_voxels": 0}},
            r"'voxelization.max_voxels' must lie in \[1",
        ),
        ({"voxelization": {"point_cloud_range": [1, 2]}}, "must hold 6 values, got 2"),
        (
            {"voxelization": {"point_cloud_range": [0, 0, 0, 0, 1, 1]}},
            "minimum < maximum on x",
        ),
        (
            {"voxelization": {"voxel_size": [0.1, float("nan"), 1]}},
            "must be finite, got nan",
        ),
        ({"voxelization": 3}, "group 'voxelization' must be a mapping, got 3"),
        (
            {"voxelization.max_voxels": 9, "voxelization": 3},
            "group 'voxelization' must be a mapping, got 3",
        ),
        (
            {"voxelization": {"point_cloud_range": [206e3, 0, -5, 206.1e3, 54, 3]}},
            "reaches 206100 m on x",
        ),
        (
            {"post_process_params": {"center_range": [1, 0, 0, -1, 1, 1]}},
            "'post_process_params.center_range' must have minimum <= maximum on x",
        ),
        ([1], r"must be a mapping of names to values, got \[1\]"),
        ({"device": 3}, "'device' must be of type str, got 3"),
        ({"autostart": 1}, "'autostart' must be of type bool, got 1"),
        ({"seed": True}, "'seed' must be of type int, got True"),
        ({"precision": "int8"}, "must be one of 'fp32', 'fp32x3', 'tf32', 'fp16', got 'int8'"),
        (
            {"densification_params": {"num_past_frames": 2.5}},
            "must be of type int, got 2.5",
        ),
        ({"model": {"channels": [1, 2, 3, 4, 5, 6]}}, "must have equal levels 4 to 6"),
        ({"model": {"heads": ["car", "car"]}}, "must name every class once"),
        ({"model": {"heads": "car"}}, "must be a list, got 'car'"),
        (
            {"post_process_params": {"score_thresholds": [0.1, 0.2]}},
            "10 classes, got 2",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_name_value_and_what_would_do(values, sentence):
    with pytest.raises(ConfigError, match=sentence):
        LidarConfig.from_dict(values)


def test_yaml_is_read_plain_and_in_ros_form(tmp_path):
    plain, ros = tmp_path / "plain.yaml", tmp_path / "ros.yaml"
    plain.write_text("seed: 3\nvoxelization: {max_voxels: 9}\n")
    ros.write_text(
        "/**:\n  ros__parameters:\n    seed: 3\n    voxelization:\n      max_voxels: 9\n"
    )
    assert LidarConfig.from_yaml(plain) == LidarConfig.from_yaml(ros)
    assert LidarConfig.from_yaml(plain).voxelization.max_voxels == 9


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"seed: 3\na: [", "is no YAML: .* in line 2, column 5"),
        (b"seed: \xff3\n", "is no text in UTF-8: byte 6 is 0xff"),
        (b"- 1\n- 2\n", r"must hold a mapping, got \[1, 2\]"),
        (b"0\n", "must hold a mapping, got 0"),
        (b"seeds: 3\n", "Did you mean 'seed'"),
    ],
)
def test_a_bad_yaml_file_is_named_in_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"bad\.yaml.*{sentence}") as error:
        LidarConfig.from_yaml(path)
    assert "\n" not in str(error.value)


def test_a_parameter_file_that_is_absent_or_a_folder_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no\.yaml' does not exist"):
        LidarConfig.from_yaml(tmp_path / "no.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        LidarConfig.from_yaml(tmp_path)


def test_numbers_with_an_exponent_are_read_as_ros_reads_them(tmp_path):
    """YAML 1.1 takes a number for a text unless it has a point and a signed exponent."""
    path = tmp_path / "p.yaml"
    path.write_text("voxelization: {max_voxels: 1e3, voxel_size: [1e-1, 1.E-1, 2.5e-1]}\n")
    voxelization = LidarConfig.from_yaml(path).voxelization
    assert voxelization.max_voxels == 1000 and voxelization.voxel_size == (0.1, 0.1, 0.25)
    assert parse_yaml("[1e, e3, 1e3m, '1e3', 12]") == ["1e", "e3", "1e3m", "1e3", 12]


def test_every_parameter_has_a_sentence_and_a_default_of_its_kind():
    parameters = list(LidarConfig.parameters())
    assert len({p.name for p in parameters}) == len(parameters) > 30
    for p in parameters:
        assert p.info.doc.endswith("."), p.name
        values = p.default if p.is_list else (p.default,)
        assert all(type(v) is p.kind for v in values), p.name


def test_configs_are_values():
    with pytest.raises(dataclasses.FrozenInstanceError):
        LidarConfig().seed = 1  # type: ignore[misc]
    assert hash(LidarConfig()) == hash(LidarConfig())
