"""Algorithms of other projects, run and evaluated like Detent's own, to compare with."""
