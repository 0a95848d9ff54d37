"""Algorithms from other projects, run and evaluated like Detent's own for comparison."""
