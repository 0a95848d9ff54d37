"""The documents keep up with the code: embedded files, links, flags of commands, names of files."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path

import pytest

from detent.cli import COMMANDS, main
from detent.cli.flags import SYNONYMS
from detent.cli.parsing import parse
from detent.cli.train import parse_train
from detent.errors import ConfigError

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "detent"
PLUGINS = ROOT / "examples" / "plugins"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = ("", "sh", "bash", "console")
PLACEHOLDERS = {"N": "1000", "STEP": "1000", "DIR...": "DIR"}
INLINE = re.compile(r"`([^`]+)`")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*(?:\.[a-z][a-z0-9-]*)*(?![\w.*-])")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def prose(page: Path) -> str:
    return BLOCK.sub("", page.read_text())


def test_embedded_files_are_the_files() -> None:
    """A code block under a line that is just a file's name shows all of that file."""
    headed = re.compile(r"^`([^`\n]+)`\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    embedded = dict(headed.findall((ROOT / "docs" / "extending.md").read_text()))
    for name, text in embedded.items():
        assert text == (ROOT / name).read_text(), name
    modules = {path for path in PLUGINS.rglob("*.py") if path.name != "__init__.py" and "build" not in path.parts}
    assert {ROOT / name for name in embedded} == {PLUGINS / "pyproject.toml", *modules}


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@cache
def flags(command: str) -> frozenset[str]:
    """The flags of `train`, `study run` and the like, from their help."""
    text = StringIO()
    with redirect_stdout(text), pytest.raises(SystemExit):
        main([*command.split(), "--help-all"])
    return frozenset(FLAG.findall(text.getvalue()))


def commands_among(lines: Iterable[str]) -> list[str]:
    pieces = (piece.strip() for line in lines for piece in re.split(r";|&&", line))
    return [piece.removeprefix("detent ") for piece in pieces if piece.startswith("detent ")]


def commands_in_blocks(page: Path) -> list[str]:
    """The `detent` commands in a page's blocks, without their comments."""
    blocks = [text.replace("\\\n", " ") for language, text in BLOCK.findall(page.read_text()) if language in SHELL]
    lines = [re.sub(r"\s#.*|^\$ ", "", line) for block in blocks for line in block.splitlines()]
    # What a directory holds is also shown in blocks.
    return commands_among(line for line in lines if line.startswith(("detent ", "make ", "pip ")))


def shown_commands(page: Path) -> list[str]:
    """The `detent` commands in a page's blocks and inline code."""
    return commands_in_blocks(page) + commands_among(" ".join(text.split()) for text in INLINE.findall(prose(page)))


@each_page
def test_commands_exist_with_their_flags(page: Path) -> None:
    for words in shown_commands(page):
        name, *rest = words.split()
        if not re.fullmatch(r"[a-z]+", name):
            continue
        assert name in COMMANDS, words
        command = f"study {rest[0]}" if name == "study" and rest else name
        assert set(FLAG.findall(words)) <= flags(command), words


def spelled_out(synopsis: str) -> list[list[str]]:
    """The commands that a synopsis stands for: with every optional flag, one for each alternative value."""
    words = shlex.split(re.sub(r"\[(--[^\]]+)\]", r"\1", synopsis))
    choices = [[PLACEHOLDERS.get(choice, choice) for choice in word.split("|")] for word in words]
    return [[options[i % len(options)] for options in choices] for i in range(max(map(len, choices)))]


def test_a_synopsis_is_spelled_out() -> None:
    assert spelled_out("train TASK [--algo ppo|spo|trpo] [--steps N]") == [
        ["train", "TASK", "--algo", algo, "--steps", "1000"] for algo in ("ppo", "spo", "trpo")
    ]
    assert spelled_out("train my:Arm-v0 --env.kwargs joints=[0,1] --log-options 'csv={a=[\"b c\"]}'") == [
        ["train", "my:Arm-v0", "--env.kwargs", "joints=[0,1]", "--log-options", 'csv={a=["b c"]}']
    ]


def parsed(words: list[str]) -> object:
    """What the command line makes of a command, which is not run."""
    name, *rest = words
    if name == "train" and not {"--resume", "--config"} & set(rest):
        return parse_train(rest)
    # Of a run or a file that is not there, the flags alone.
    return parse(COMMANDS[name], rest)


@each_page
def test_commands_in_blocks_are_parsed(page: Path) -> None:
    for line in commands_in_blocks(page):
        for words in spelled_out(line):
            said = StringIO()
            try:
                with redirect_stdout(said), redirect_stderr(said):
                    command = parsed(words)
            except (SystemExit, ConfigError) as error:
                pytest.fail(f"detent {' '.join(words)}: {error}\n{said.getvalue()}")
            assert type(command) is COMMANDS[words[0]]


@pytest.mark.parametrize(
    "line",
    ["train Ant-v4 --no-such-flag 3", "train Ant-v4 --steps many", "train Ant-v4 --variant rn-x", "eval"],
)
def test_wrong_commands_would_be_noticed(line: str) -> None:
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()), pytest.raises((SystemExit, ConfigError)):
        parsed(line.split())


@each_page
def test_flags_named_in_prose_are_flags_of_some_command(page: Path) -> None:
    known = frozenset[str]().union(*(flags(name) for name in (*COMMANDS, "study run", "study status")))
    named = {flag for text in INLINE.findall(prose(page)) if text.startswith("--") for flag in FLAG.findall(text)}
    assert named - known == set()


def test_the_table_of_rooms_names_what_is_there() -> None:
    section = (ROOT / "README.md").read_text().partition("## The code")[2]
    rows = [row.split("|")[1:3] for row in section.splitlines() if row.startswith("| `")]
    assert rows
    for rooms, contents in rows:
        folders = [PACKAGE / name for name in INLINE.findall(rooms)]
        for path in folders:
            assert path.exists(), path
        for name in INLINE.findall(contents):
            if name.endswith(("/", ".py")):
                assert any((folder / name).exists() for folder in folders), name
    shown = {name.rstrip("/") for rooms, _ in rows for name in INLINE.findall(rooms)}
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} <= shown


def test_the_map_is_the_tree() -> None:
    tree = next(text for _, text in BLOCK.findall((ROOT / "docs" / "design.md").read_text()) if "src/detent/" in text)
    shown = set(re.findall(r"^  ([a-z_]+(?:/|\.py)) ", tree, re.MULTILINE))
    rooms = {f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")}
    files = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert shown == rooms | files


@each_page
def test_files_named_in_prose_exist(page: Path) -> None:
    for name in INLINE.findall(prose(page)):
        if re.fullmatch(r"[\w*-]+(/[\w*-]+)+\.(py|toml|csv|sh)", name):
            assert any(any(place.glob(name)) for place in (ROOT, PACKAGE)), name


@cache
def literals() -> tuple[str, ...]:
    """The string literals of the package, adjacent ones joined; a NUL stands for each value that is filled in."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(str(p.value) if isinstance(p, ast.Constant) else "\0" for p in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return tuple(found)


def is_a_message(quoted: str) -> bool:
    """Whether the package has a sentence that reads like this; `...` stands for anything."""
    pattern = re.compile(".*".join(map(re.escape, quoted.split("..."))), re.DOTALL)
    return any(pattern.search(literal) for literal in literals())


def test_quoted_messages_are_messages() -> None:
    """What the page on troubleshooting quotes in bold code, so that people find their message there."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    quoted = [" ".join(message.split()) for message in re.findall(r"\*\*`([^`]+)`\*\*", text)]
    assert len(quoted) > 30
    assert [message for message in quoted if not is_a_message(message)] == []
    assert not is_a_message("the action space is fine")


def test_the_glossary_agrees_with_the_command_line() -> None:
    section = (ROOT / "docs" / "glossary.md").read_text().partition("## Settings under other names")[2]
    checked = 0
    for row in section.splitlines():
        names, _, flags_shown = row.strip("|").rpartition("|")
        for name in INLINE.findall(names):
            synonym = SYNONYMS.get(name.replace("_", "-"), "TASK")
            if synonym != "TASK":
                assert f"--{synonym}" in FLAG.findall(flags_shown), name
                checked += 1
    assert checked > 20
