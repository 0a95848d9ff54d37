"""Studies: many runs from one TOML file, on one machine or a Ray cluster, and their progress."""
