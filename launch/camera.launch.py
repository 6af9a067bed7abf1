"""Start the camera node on six live cameras.

ros2 launch driveRT_ros camera.launch.py namespace:=/sensing/camera image:=image_raw/compressed

Camera i publishes `<namespace>/camera<i>/<image>` and `<namespace>/camera<i>/camera_info`. Where
cameras are named otherwise, or are more or fewer than six, list them in the parameter `cameras` and
remap `~/input/image<i>` and `~/input/camera_info<i>`. `rviz:=true` shows results and images; its
layout has the image topics of the default arguments.
"""

from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration
from launch_ros.parameter_descriptions import ParameterValue

from driveRT_ros.nodes.launching import sensor_launch

CAMERAS = 6


def remappings():
    """Return the topics of every camera."""
    for i in range(CAMERAS):
        camera = [LaunchConfiguration("namespace"), f"/camera{i}/"]
        yield f"~/input/image{i}", [*camera, LaunchConfiguration("image")]
        yield f"~/input/camera_info{i}", [*camera, "camera_info"]


def generate_launch_description():
    transport = ParameterValue(LaunchConfiguration("transport"), value_type=str)
    return sensor_launch(
        "camera",
        arguments=[
            DeclareLaunchArgument("namespace", default_value="/sensing/camera"),
            DeclareLaunchArgument("image", default_value="image_raw/compressed"),
            DeclareLaunchArgument(
                "transport", default_value="compressed", description="'raw' or 'compressed'"
            ),
        ],
        remappings=list(remappings()),
        overrides={"input.transport": transport},
    )
