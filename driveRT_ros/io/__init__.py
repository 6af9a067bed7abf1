"""Bytes to arrays and back: messages, bags, data sets and pictures. Nothing here imports ROS."""
