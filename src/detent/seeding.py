"""Everything random comes from one seed through named streams."""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *names: str | int) -> int:
    """Derive a 63-bit seed for the stream `names` of the run `seed`, unrelated to those of all other names and seeds.

    Streams are named down to the iteration (`derive_seed(seed, "act", iteration)`), so a resumed run draws the same
    numbers as an uninterrupted one without saved generator state.
    """
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
