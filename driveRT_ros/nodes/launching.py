"""What the launch files of the sensor nodes have in common; only they import it.

The modules ``launch`` and ``launch_ros`` come with a ROS install and are not needed elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import Any

from launch.actions import DeclareLaunchArgument, OpaqueFunction, SetEnvironmentVariable
from launch.conditions import IfCondition
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import LifecycleNode, Node
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare

from driveRT_ros.nodes.transport import transport_environment
from launch import LaunchDescription

PACKAGE = "driveRT_ros"


def sensor_launch(
    sensor: str,
    arguments: Sequence[DeclareLaunchArgument],
    remappings: Sequence[tuple[str, Any]],
    overrides: Mapping[str, Any] | None = None,
) -> LaunchDescription:
    """Return the node of a sensor, RViz where it is asked for, and the arguments of both.

    Args:
        sensor: ``lidar`` or ``camera``; node, parameter file and RViz layout are named after it.
        arguments: Those that this sensor alone has.
        remappings: Topics of the node.
        overrides: Parameters of the node that come from those arguments.
    """
    share = FindPackageShare(PACKAGE)
    params = PathJoinSubstitution([share, "config", f"{sensor}_node.yaml"])
    layout = PathJoinSubstitution([share, "config", "rviz", f"{sensor}.rviz"])

    def node(context: Any) -> list[LifecycleNode]:
        return [_node(context, f"{sensor}_node", remappings, overrides or {})]

    return LaunchDescription(
        [
            *arguments,
            *_common_arguments(params),
            *starmap(SetEnvironmentVariable, transport_environment(os.environ).items()),
            OpaqueFunction(function=node),
            Node(
                package="rviz2",
                executable="rviz2",
                arguments=["-d", layout],
                condition=IfCondition(LaunchConfiguration("rviz")),
            ),
        ]
    )


def _common_arguments(params: PathJoinSubstitution) -> list[DeclareLaunchArgument]:
    return [
        DeclareLaunchArgument("params", default_value=params),
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
    ]


def _node(
    context: Any,
    name: str,
    remappings: Sequence[tuple[str, Any]],
    overrides: Mapping[str, Any],
) -> LifecycleNode:
    """Return the node; only a checkpoint that is named overrides that of the parameter file."""
    values = {
        **overrides,
        "use_sim_time": ParameterValue(LaunchConfiguration("use_sim_time"), value_type=bool),
    }
    checkpoint = LaunchConfiguration("checkpoint").perform(context)
    if checkpoint:
        values["checkpoint_path"] = ParameterValue(checkpoint, value_type=str)
    return LifecycleNode(
        package=PACKAGE,
        executable=name,
        name=name,
        namespace="",
        output="screen",
        emulate_tty=True,
        respawn=LaunchConfiguration("respawn"),
        respawn_delay=2.0,
        parameters=[LaunchConfiguration("params"), values],
        remappings=list(remappings),
    )
