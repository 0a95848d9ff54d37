"""Experience: the rollout buffer and its collection, advantages, and the batch that an update sees.

Imports models and envs; knows nothing of losses, optimizers or logging.
"""
