"""The policy and its parts: heads, networks, critics, normalizer; everything that acting needs."""
