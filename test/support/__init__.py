"""Builders of test inputs."""
