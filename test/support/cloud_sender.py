"""A process that publishes large clouds until it is told to end, over transports of its own."""

from __future__ import annotations

import sys
import time

import rclpy
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import PointCloud2

from test.support.lidar_messages import make_cloud
from test.support.live_node import CLOUDS, S
from test.support.ros_client import profile


def main() -> None:
    rclpy.init(args=sys.argv, signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node("cloud_sender")
    publisher = node.create_publisher(PointCloud2, CLOUDS, profile(5, best_effort=True))
    cloud = make_cloud(S, count=200_000)
    while True:
        publisher.publish(cloud)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
