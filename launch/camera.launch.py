"""Start the camera node on six live cameras.

ros2 launch driveRT_ros camera.launch.py namespace:=/sensing/camera image:=image_raw/compressed

Camera i publishes `<namespace>/camera<i>/<image>` and `<namespace>/camera<i>/camera_info`. Where
cameras are named otherwise, or are more or fewer than six, list them in the parameter `cameras` and
remap `~/input/image<i>` and `~/input/camera_info<i>`. `rviz:=true` shows results and images; its
layout has the image topics of the default arguments.
"""

from launch.actions import DeclareLaunchArgument, OpaqueFunction, SetEnvironmentVariable
from launch.conditions import IfCondition
from launch.substitutions import EnvironmentVariable, LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import LifecycleNode, Node
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare

from launch import LaunchDescription

CAMERAS = 6


def remappings():
    """Return the topics of every camera."""
    for i in range(CAMERAS):
        camera = [LaunchConfiguration("namespace"), f"/camera{i}/"]
        yield f"~/input/image{i}", [*camera, LaunchConfiguration("image")]
        yield f"~/input/camera_info{i}", [*camera, "camera_info"]


def camera(context):
    """Return the node; only a checkpoint that is named overrides that of the parameter file."""
    overrides = {
        "input.transport": ParameterValue(LaunchConfiguration("transport"), value_type=str),
        "use_sim_time": ParameterValue(LaunchConfiguration("use_sim_time"), value_type=bool),
    }
    checkpoint = LaunchConfiguration("checkpoint").perform(context)
    if checkpoint:
        overrides["checkpoint_path"] = ParameterValue(checkpoint, value_type=str)
    node = LifecycleNode(
        package="driveRT_ros",
        executable="camera_node",
        name="camera_node",
        namespace="",
        output="screen",
        emulate_tty=True,
        respawn=LaunchConfiguration("respawn"),
        respawn_delay=2.0,
        parameters=[
            LaunchConfiguration("params"),
            overrides,
        ],
        remappings=list(remappings()),
    )
    return [node]


def generate_launch_description():
    share = FindPackageShare("driveRT_ros")
    return LaunchDescription(
        [
            DeclareLaunchArgument("namespace", default_value="/sensing/camera"),
            DeclareLaunchArgument("image", default_value="image_raw/compressed"),
            DeclareLaunchArgument(
                "transport", default_value="compressed", description="'raw' or 'compressed'"
            ),
            DeclareLaunchArgument(
                "params", default_value=PathJoinSubstitution([share, "config", "camera_node.yaml"])
            ),
            DeclareLaunchArgument(
                "checkpoint", default_value="", description="default: that of params, or shipped"
            ),
            DeclareLaunchArgument("use_sim_time", default_value="false"),
            DeclareLaunchArgument("rviz", default_value="false"),
            DeclareLaunchArgument(
                "respawn",
                default_value="false",
                description="start the node again when it ends; with the parameter on_device_loss "
                "at 'exit' this brings a lost GPU back",
            ),
            # Fast DDS loses most best-effort messages of image size over its default transports.
            SetEnvironmentVariable(
                "FASTDDS_BUILTIN_TRANSPORTS",
                EnvironmentVariable("FASTDDS_BUILTIN_TRANSPORTS", default_value="LARGE_DATA"),
            ),
            OpaqueFunction(function=camera),
            Node(
                package="rviz2",
                executable="rviz2",
                arguments=["-d", PathJoinSubstitution([share, "config", "rviz", "camera.rviz"])],
                condition=IfCondition(LaunchConfiguration("rviz")),
            ),
        ]
    )
