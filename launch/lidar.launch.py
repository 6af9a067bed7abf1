"""Start the LiDAR node on a live cloud topic.

ros2 launch driveRT_ros lidar.launch.py input:=/sensing/lidar/pointcloud rviz:=true
"""

from launch.actions import DeclareLaunchArgument
from launch.substitutions import LaunchConfiguration

from driveRT_ros.nodes.launching import sensor_launch


def generate_launch_description():
    return sensor_launch(
        "lidar",
        arguments=[DeclareLaunchArgument("input", default_value="/sensing/lidar/pointcloud")],
        remappings=[("~/input/pointcloud", LaunchConfiguration("input"))],
    )
