"""Update rules: the losses of PPO and SPO, the minibatch loop that runs them, and TRPO; all with plain autograd.

Uses tensors, batches and the policy; never environments, logging or `acceleration`.
"""
