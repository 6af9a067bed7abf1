"""ROS 2 nodes: the only modules that import rclpy."""
