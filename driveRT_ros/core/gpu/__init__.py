"""The sparse engine on the GPU: structures in device memory and launches bound once."""
