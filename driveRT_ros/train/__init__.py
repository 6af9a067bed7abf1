"""Training and evaluation of the shipped weights."""
