"""Expected scores are read by eye from the paper's figures (two digits), references from its table."""

import tomllib
from importlib.resources import files

import pytest

from detent.paper.scores import normalized, paper_score, paper_task

MEAN = "gym-locomotion (mean of 5)"


@pytest.mark.parametrize(
    ("task", "variant", "steps", "score"),
    [
        ("Ant-v4", "rn-d", 1_000_000, 0.20),
        ("Ant-v4", "rn-d", 2_000_000, 0.45),
        ("Ant-v4", "rn-d", 5_000_000, 0.81),
        ("Ant-v4", "rn-c", 1_000_000, 0.03),
        ("Ant-v4", "mlp-d", 2_000_000, 0.32),
        ("Ant-v4", "mlp-c", 1_000_000, 0.01),
        ("Ant-v4", "mlp-c", 5_000_000, 0.21),
        ("Humanoid-v4", "rn-d", 5_000_000, 0.78),
        ("Humanoid-v4", "mlp-c", 2_000_000, 0.17),
        ("Hopper-v4", "rn-d", 1_000_000, 0.49),
        ("Hopper-v4", "mlp-c", 1_000_000, 0.26),
        (MEAN, "rn-d", 1_000_000, 0.31),
        (MEAN, "mlp-c", 5_000_000, 0.40),
        ("maniskill-state (mean of 10)", "rn-d", 50_000_000, 0.89),
        ("maniskill-rgb (mean of 5)", "mlp-c", 50_000_000, 0.96),
    ],
)
def test_ppo_scores_are_the_figures(task: str, variant: str, steps: int, score: float) -> None:
    assert paper_score("ppo", task, variant, steps) == pytest.approx(score, abs=0.02)


@pytest.mark.parametrize(("algorithm", "last"), [("trpo", 0.998), ("spo", 0.195)])
def test_trpo_and_spo_end_with_the_last_point_of_their_figures(algorithm: str, last: float) -> None:
    # Those figures stop at 4.9M of 5M steps.
    assert paper_score(algorithm, "Ant-v4", "rn-d", 5_000_000) == pytest.approx(last)


def test_between_two_points_the_score_is_on_the_line() -> None:
    left, right = paper_score("ppo", "Ant-v4", "rn-d", 1_000_000), paper_score("ppo", "Ant-v4", "rn-d", 1_500_000)
    assert left is not None
    assert right is not None
    assert paper_score("ppo", "Ant-v4", "rn-d", 1_100_000) == pytest.approx(0.8 * left + 0.2 * right)


def test_what_the_paper_does_not_show_is_none() -> None:
    assert paper_score("ppo", "Ant-v4", "rn-d", 5_000_001) is None
    assert paper_score("ppo", "Ant-v4", "rn-d", -1) is None
    assert paper_score("ppo", "Ant-v5", "rn-d", 1_000_000) is None
    assert paper_score("ppo", "Ant-v4", "beta", 1_000_000) is None
    assert paper_score("ppo", "Humanoid-v4", "mlp-c", 1_000_000) is None, "hidden behind another curve"
    assert paper_score("ppo", "Humanoid-v4", "mlp-c", 1_200_000) is None, "between a hidden point and a visible one"


def test_random_is_zero_and_td3_is_one() -> None:
    assert normalized("Ant-v4", -70.288) == 0
    assert normalized("Ant-v4", 3942) == 1
    # (1622.3955 - 18.791) / (3226 - 18.791) = 1603.6045 / 3207.209 = 0.5
    assert normalized("Hopper-v4", 1622.3955) == pytest.approx(0.5)
    assert normalized("Hopper-v5", 1622.3955) is None


def test_tasks_of_a_family_have_the_same_keys() -> None:
    tasks = tomllib.loads((files("detent") / "config" / "presets" / "tasks.toml").read_text())
    keys = {
        "gym": {"family", "description", "random_score", "td3_score"},
        "maniskill": {"family", "description"},
    }
    families = [task["family"] for task in tasks.values()]
    assert (families.count("gym"), families.count("maniskill")) == (5, 10)
    for task in tasks.values():
        assert set(task) == keys[task["family"]]


def test_success_is_not_normalized_and_images_have_scores_of_their_own() -> None:
    assert normalized("PickCube-v1", 1.0) is None
    state, images = (paper_task("PickCube-v1", obs) for obs in ("state", "rgb+state"))
    # From the figure, at a twentieth of the budget.
    assert paper_score("ppo", state, "rn-d", 2_500_000) == pytest.approx(0.52, abs=0.02)
    assert paper_score("ppo", images, "rn-d", 2_500_000) == pytest.approx(0.20, abs=0.02)
    assert paper_score("ppo", paper_task("PickCube-v1", "rgb"), "rn-d", 50_000_000) is None, "the paper has no such run"
