"""Reference implementations in plain torch: the CPU path and the oracle of every kernel."""
