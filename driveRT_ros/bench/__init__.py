"""Check, then time: the sparse engine beside its peers, on any machine."""
