"""Tests of driveRT_ros, one folder for each folder of the package."""
