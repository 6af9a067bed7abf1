"""Seeded driving-scene simulator: LiDAR sweeps with ground truth for demo, training and tests."""
