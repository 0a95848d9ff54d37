"""The benchmark: Detent, its peers and the machine's limit, measured together on the same work."""
