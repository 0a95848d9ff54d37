from __future__ import annotations

import hashlib

import torch

from detent.seeding import derive_seed


def test_a_stream_is_63_bits_of_a_hash_of_its_name_and_never_changes() -> None:
    # printf '1/init' | sha256sum | cut -c1-16 gives 9236168ee24e8cfa; another number would make old runs unrepeatable.
    assert derive_seed(1, "init") == 0x9236168EE24E8CFA // 2
    assert derive_seed(7, "act", 12) == int(hashlib.sha256(b"7/act/12").hexdigest()[:16], 16) // 2


def test_other_seeds_names_and_iterations_give_other_streams() -> None:
    names = ["init", "init-critic", "act", "shuffle", "envs", "eval", "warm-up"]
    seeds = {derive_seed(seed, name, iteration) for seed in range(20) for name in names for iteration in range(20)}
    assert len(seeds) == 20 * len(names) * 20
    assert derive_seed(1, "act") != derive_seed(1, "act", 0)


def test_torch_takes_every_stream_as_a_seed() -> None:
    for iteration in range(200):
        seed = derive_seed(1, "act", iteration)
        assert 0 <= seed < 2**63
        torch.Generator().manual_seed(seed)


def test_neighbouring_streams_are_uncorrelated() -> None:
    draws = torch.stack(
        [torch.randn(1000, generator=torch.Generator().manual_seed(derive_seed(seed, "act", 0))) for seed in range(20)]
    )
    correlation = torch.corrcoef(draws) - torch.eye(20)
    # Standard deviation 1 / sqrt(1000) = 0.03 each, the largest of 190.
    assert correlation.abs().max() < 0.15
