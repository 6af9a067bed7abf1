"""driveRT_ros: ROS 2 perception nodes with a sparse-convolution LiDAR detector."""

__version__ = "0.1.0"
