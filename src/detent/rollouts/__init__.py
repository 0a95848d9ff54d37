"""Experience: collecting rollouts, estimating advantages, and the batch that an update sees."""
