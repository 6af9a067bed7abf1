"""driveRT_ros: ROS 2 perception nodes for LiDAR and cameras."""

import os

__version__ = "0.1.0"

# Idle OpenMP threads spin by default and take the cores of the nodes next door: on two cores that
# made one test suite 20 times slower. Read by OpenMP when torch loads it, so it is set before.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
