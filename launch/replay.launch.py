"""Play a bag into the LiDAR node, never faster than it can follow, and optionally record.

Without a bag, a drive is simulated first.

ros2 launch driveRT_ros replay.launch.py bag:=my_bag topic:=/LIDAR_TOP record:=true
"""

import sys
import tempfile
from pathlib import Path

from launch.actions import (
    DeclareLaunchArgument,
    ExecuteProcess,
    IncludeLaunchDescription,
    OpaqueFunction,
    RegisterEventHandler,
)
from launch.conditions import IfCondition
from launch.event_handlers import OnProcessExit
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import LifecycleNode
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare

from launch import LaunchDescription


def play(context):
    """Start the replay; without a bag, simulate one first."""
    bag = LaunchConfiguration("bag").perform(context)
    if bag:
        return [replay_node(bag)]
    bag = str(Path(tempfile.mkdtemp(prefix="drivert-")) / "drive")
    simulate = ExecuteProcess(
        cmd=[sys.executable, "-m", "driveRT_ros", "convert", "--sim", bag], output="screen"
    )
    after = OnProcessExit(target_action=simulate, on_exit=[replay_node(bag)])
    return [RegisterEventHandler(after), simulate]


def replay_node(bag):
    """Return the node that plays ``bag`` and waits for each answer of the LiDAR node."""
    share = FindPackageShare("driveRT_ros")
    return LifecycleNode(
        package="driveRT_ros",
        executable="replay_node",
        name="replay_node",
        namespace="",
        output="screen",
        emulate_tty=True,
        parameters=[
            PathJoinSubstitution([share, "config", "replay_node.yaml"]),
            {
                "bag_path": ParameterValue(bag, value_type=str),
                "cloud_topic": ParameterValue(LaunchConfiguration("topic"), value_type=str),
                "rate": ParameterValue(LaunchConfiguration("rate"), value_type=float),
                "loop": ParameterValue(LaunchConfiguration("loop"), value_type=bool),
                "lockstep_topic": "/lidar_node/output/detections",
                "lockstep_dropped_topic": "/lidar_node/debug/dropped_cloud",
            },
        ],
    )


def generate_launch_description():
    share = FindPackageShare("driveRT_ros")
    return LaunchDescription(
        [
            DeclareLaunchArgument("bag", default_value="", description="empty: simulate a drive"),
            DeclareLaunchArgument("topic", default_value="/LIDAR_TOP"),
            DeclareLaunchArgument("rate", default_value="1.0"),
            DeclareLaunchArgument("loop", default_value="false"),
            DeclareLaunchArgument("checkpoint", default_value=""),
            DeclareLaunchArgument("rviz", default_value="false"),
            DeclareLaunchArgument("record", default_value="false"),
            DeclareLaunchArgument("output", default_value="drivert_output_bag"),
            IncludeLaunchDescription(
                PythonLaunchDescriptionSource(
                    PathJoinSubstitution([share, "launch", "lidar.launch.py"])
                ),
                launch_arguments={
                    "input": LaunchConfiguration("topic"),
                    "params": PathJoinSubstitution([share, "config", "lidar_replay.yaml"]),
                    "checkpoint": LaunchConfiguration("checkpoint"),
                    "use_sim_time": "true",
                    "rviz": LaunchConfiguration("rviz"),
                }.items(),
            ),
            OpaqueFunction(function=play),
            LifecycleNode(
                package="driveRT_ros",
                executable="recorder_node",
                name="recorder_node",
                namespace="",
                output="screen",
                parameters=[
                    PathJoinSubstitution([share, "config", "recorder_node.yaml"]),
                    {
                        "bag_path": ParameterValue(LaunchConfiguration("output"), value_type=str),
                        "topics": ["/lidar_node/*", "/diagnostics"],
                        "use_sim_time": True,
                    },
                ],
                condition=IfCondition(LaunchConfiguration("record")),
            ),
        ]
    )
