"""The Ray engine on real clusters: the same bits as the local engine, also when a node is lost."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from studying import finish, in_the_middle, info, results, start, wait_until, write

from detent.cli import main

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'detent[ray]'")


def test_ray_and_local_give_the_same_bits(tmp_path: Path) -> None:
    file = write(tmp_path / "one.toml", variants=["mlp-c"], steps=1000)
    local = start("run", file, "--out", tmp_path / "local")
    out = finish(start("run", file, "--out", tmp_path / "ray", "--engine", "ray", "--workers", 1))
    finish(local)
    assert f"{tmp_path / 'ray'}: 1 finished" in out
    assert results(tmp_path / "ray") == results(tmp_path / "local")


@pytest.mark.slow
def test_a_node_lost_in_the_middle_costs_only_time(tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    local, lost = tmp_path / "local", tmp_path / "lost"
    file = write(tmp_path / "pair.toml", steps=20_000)
    finish(start("run", file, "--out", local, "--workers", 2))
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        cluster.wait_for_nodes()
        process = start("run", file, "--out", lost, "--engine", "ray", "--address", cluster.address)
        wait_until(lambda: len(in_the_middle(lost)) == 2, process)
        cluster.remove_node(nodes[0], allow_graceful=False)
        out = finish(process)
    finally:
        cluster.shutdown()
    assert "its node or worker was lost" in out
    assert results(lost) == results(local)
    interrupted = [run for run in results(lost) if info(lost, run)["interruptions"]]
    assert len(interrupted) == 1
    assert all(entry["exact"] for entry in info(lost, interrupted[0])["interruptions"])


def test_an_address_where_nothing_listens_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        began = time.monotonic()
        assert (
            main(["study", "run", "gym-main", "--out", str(tmp_path / "out"), "--engine", "ray", "--address", address])
            == 2
        )
        assert time.monotonic() - began < 20
    assert f"no Ray cluster answers at {address}" in capsys.readouterr().err
    words = ["study", "run", "gym-main", "--out", str(tmp_path / "out"), "--engine", "ray"]
    for more, sentence in (
        (["--address", "nonsense"], "--address is 'nonsense'; it must be HOST:PORT or auto, on a machine of"),
        (["--address", "ray://there:1"], "--address is 'ray://there:1'; it must be HOST:PORT or auto"),
        (["--gpus", "-1"], "--gpus is -1.0; it must not be negative"),
        (["--address", "a:1", "--workers", "2"], "--workers is for this machine"),
    ):
        assert main([*words, *more]) == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_ray_the_engine_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["study", "run", "gym-main", "--out", str(tmp_path / "out"), "--engine", "ray"]) == 2
    assert "Ray is not installed: pip install 'detent[ray]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
