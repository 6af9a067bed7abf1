"""The perception core: points in, detections out. Nothing here imports ROS."""
