"""Training runs: the loop, run directories, checkpoints, evaluation, progress."""
