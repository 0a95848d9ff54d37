"""The policy and its parts (heads, networks, critics, normalizer), and loading a policy from a run's checkpoints.

Needs torch, numpy and safetensors; imports config, spec and registry, never a simulator or training code.
"""
