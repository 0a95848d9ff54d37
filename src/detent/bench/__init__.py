"""The benchmark: Detent, its peers and the machine's limit, measured in one run on the same work."""
