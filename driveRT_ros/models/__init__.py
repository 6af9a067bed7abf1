"""Network graphs and the importers of their weights."""
