"""Start the LiDAR node on a live cloud topic.

ros2 launch driveRT_ros lidar.launch.py input:=/sensing/lidar/pointcloud rviz:=true
"""

from launch.actions import DeclareLaunchArgument, OpaqueFunction, SetEnvironmentVariable
from launch.conditions import IfCondition
from launch.substitutions import EnvironmentVariable, LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import LifecycleNode, Node
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare

from launch import LaunchDescription


def lidar(context):
    """Return the node; only a checkpoint that is named overrides that of the parameter file."""
    overrides = {
        "use_sim_time": ParameterValue(LaunchConfiguration("use_sim_time"), value_type=bool),
    }
    checkpoint = LaunchConfiguration("checkpoint").perform(context)
    if checkpoint:
        overrides["checkpoint_path"] = ParameterValue(checkpoint, value_type=str)
    node = LifecycleNode(
        package="driveRT_ros",
        executable="lidar_node",
        name="lidar_node",
        namespace="",
        output="screen",
        emulate_tty=True,
        respawn=LaunchConfiguration("respawn"),
        respawn_delay=2.0,
        parameters=[
            LaunchConfiguration("params"),
            overrides,
        ],
        remappings=[("~/input/pointcloud", LaunchConfiguration("input"))],
    )
    return [node]


def generate_launch_description():
    share = FindPackageShare("driveRT_ros")
    return LaunchDescription(
        [
            DeclareLaunchArgument("input", default_value="/sensing/lidar/pointcloud"),
            DeclareLaunchArgument(
                "params", default_value=PathJoinSubstitution([share, "config", "lidar_node.yaml"])
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
            # Fast DDS loses most best-effort messages of cloud size over its default transports.
            SetEnvironmentVariable(
                "FASTDDS_BUILTIN_TRANSPORTS",
                EnvironmentVariable("FASTDDS_BUILTIN_TRANSPORTS", default_value="LARGE_DATA"),
            ),
            OpaqueFunction(function=lidar),
            Node(
                package="rviz2",
                executable="rviz2",
                arguments=[
                    "-d",
                    PathJoinSubstitution([share, "config", "rviz", "lidar.rviz"]),
                ],
                condition=IfCondition(LaunchConfiguration("rviz")),
            ),
        ]
    )
