"""Flags as people type them: whole numbers, guesses from other packages, misspellings, and the help that shows them."""

from __future__ import annotations

import re

import pytest

from detent.cli import main
from detent.cli.arguments import annotated_settings
from detent.cli.flags import SYNONYMS, flags_of
from detent.cli.train import Train, parse_train


def refusal(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The sentence with which a command line is refused."""
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"detent {words.split()[0]}: ")
    assert err.count("\n") == 1
    return err.partition(": ")[2].strip()


def help_of(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit, match="0"):
        main(words.split())
    return capsys.readouterr().out


def train_flags() -> dict[str, str]:
    with annotated_settings(short=False):
        return flags_of(Train)


@pytest.mark.parametrize("text", ["100000", "100_000", "1e5", "1E5", "10.0e4"])
def test_whole_numbers_can_be_written_with_an_exponent(text: str) -> None:
    for words in (["--steps", text], [f"--steps={text}"]):
        steps = parse_train(["Hopper-v4", *words]).settings.steps
        assert (steps, type(steps)) == (100_000, int)


@pytest.mark.parametrize("text", ["1.5", "1e-3", "inf", "nan", "many"])
def test_what_is_not_a_whole_number_is_refused_by_the_name_of_its_flag(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    right = f"is {text}; it must be a whole number, such as 100000 or 1e5"
    assert refusal(f"train Hopper-v4 --steps {text}", capsys) == f"--steps {right}"
    assert refusal(f"train Hopper-v4 --update.epochs={text}", capsys) == f"--update.epochs {right}"
    assert refusal(f"eval run --episodes {text}", capsys) == f"--episodes {right}"


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--lr", "--update.learning-rate"),
        ("--lr=1e-3", "--update.learning-rate"),
        ("--learning-rate", "--update.learning-rate"),
        ("--learning_rate", "--update.learning-rate"),
        ("--total-timesteps", "--steps"),
        ("--total_timesteps", "--steps"),
        ("--n-envs", "--envs"),
        ("--num-envs", "--envs"),
        ("--gamma", "--advantage.gamma"),
        ("--n-steps", "--rollout-steps"),
        ("--ent-coef", "--update.entropy-coef"),
        ("--gae-lambda", "--advantage.gae-lambda"),
        ("--minibatches", "--update.minibatches"),
        ("--no-anneal", "--update.no-anneal"),
        ("--clip", "--normalize.clip or --ppo.clip"),
        ("--ppo.clp", "--ppo.clip"),
        ("--update.learning-rat", "--update.learning-rate"),
        ("--update.learning_rat", "--update.learning-rate"),
        ("--learning-rat", "--update.learning-rate or --td3.learning-rate"),
        ("--binz", "--bins"),
        ("--wdth", "--width"),
    ],
)
def test_a_guessed_or_misspelt_flag_of_train_is_told_which_one_is_meant(
    flag: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = f"there is no flag {flag.partition('=')[0]}; did you mean {meant}?"
    assert refusal(f"train Hopper-v4 {flag} 1", capsys) == expected


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("eval run --num-episodes 3", "there is no flag --num-episodes; did you mean --episodes?"),
        ("eval run --num-envs 3", "there is no flag --num-envs; did you mean --envs?"),
        ("video run --max-step 3", "there is no flag --max-step; did you mean --max-steps?"),
        ("video run --fpss 3", "there is no flag --fpss; `detent video --help-all` shows those there are"),
        ("diagnose run --rolouts 3", "there is no flag --rolouts; did you mean --rollouts?"),
        ("bench --tsk Hopper-v4", "there is no flag --tsk; did you mean --task?"),
        ("study run gym-main --workrs 3", "there is no flag --workrs; did you mean --workers?"),
        ("study status here --jsn", "there is no flag --jsn; did you mean --json?"),
        ("report here --ot there", "there is no flag --ot; did you mean --out?"),
        ("doctor --jsn", "there is no flag --jsn; did you mean --json?"),
        ("doctor now", "'now' is one word too many; `detent doctor --help` shows what the command takes"),
        ("train --env-id Hopper-v4", "there is no flag --env-id; TASK is given without one: detent train TASK"),
        ("train --lr 1e-3 Hopper-v4", "there is no flag --lr; did you mean --update.learning-rate?"),
        ("list --jsn", "there is no flag --jsn; did you mean --json?"),
        ("train Hopper-v4 -n 3", "there is no flag -n; `detent train --help-all` shows those there are"),
        ("train Hopper-v4 --xyzzy 3", "there is no flag --xyzzy; `detent train --help-all` shows those there are"),
    ],
)
def test_every_command_refuses_an_unknown_flag_in_one_sentence(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refusal(words, capsys) == sentence


def test_synonyms_lead_to_flags_and_hide_none() -> None:
    flags = train_flags()
    assert set(SYNONYMS.values()) <= set(flags)
    assert not set(SYNONYMS) & set(flags)


def test_underscores_and_hyphens_are_the_same() -> None:
    hyphens, underscores = "--update.learning-rate 0.5 --init-from a", "--update.learning_rate 0.5 --init_from a"
    assert parse_train(["A", *hyphens.split()]) == parse_train(["A", *underscores.split()])


def test_the_short_help_of_train_shows_what_most_runs_need_and_names_the_long_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, everything = help_of("train --help", capsys), help_of("train --help-all", capsys)
    often = "task preset variant algo steps seed envs threads device out config resume init-from bins width obs"
    often += " env.kwargs env.wrappers action-low action-high log tensorboard eval.interval update.learning-rate"
    for name in (*often.split(), "trust", "exact"):
        assert (name.upper() if name == "task" else f"--{name}") in short
    assert "--help-all" in short
    assert "--ppo.clip" not in short
    assert max(map(len, short.splitlines()[4:])) <= 80
    # A flag begins its line, or follows a comma (its long or negated form).
    flags = set(re.findall(r"(?:^\W |, )--([a-z][\w.-]*)", everything, re.MULTILINE)) - {"help", "help-all"}
    assert flags == {flag for flag in train_flags() if not flag.isupper()}


def test_help_leaves_no_trace_in_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    help_of("train --help", capsys)
    assert parse_train(["A", "--ppo.clip", "0.4"]).settings.ppo.clip == 0.4


def test_help_all_works_for_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert help_of("eval --help-all", capsys) == help_of("eval --help", capsys)
