"""The command line: each command is a dataclass whose fields are its flags and whose `run` returns the exit code.

Exit codes: 0 success, 2 wrong usage or configuration, 3 stopped on request with a checkpoint saved, 1 anything else.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from detent import __version__
from detent.cli import stdout
from detent.cli.about import Doctor, List
from detent.cli.bench import Bench
from detent.cli.draw import Draw
from detent.cli.inspect import Diagnose, Eval, Proposition, Video
from detent.cli.parsing import parse
from detent.cli.report import Report
from detent.cli.study import Study
from detent.cli.train import Train, parse_train
from detent.errors import ConfigError, nearest
from detent.threads import prepare_threads

COMMANDS: dict[
    str, type[Train | Eval | Video | Diagnose | Draw | Proposition | Study | Report | Bench | List | Doctor]
] = {
    "train": Train,
    "eval": Eval,
    "video": Video,
    "diagnose": Diagnose,
    "draw": Draw,
    "proposition": Proposition,
    "study": Study,
    "report": Report,
    "bench": Bench,
    "list": List,
    "doctor": Doctor,
}


def usage() -> str:
    lines = [f"detent {__version__}: on-policy reinforcement learning with discretized categorical actors", ""]
    width = max(map(len, COMMANDS)) + 2
    for name, command in COMMANDS.items():
        lines.append(f"  detent {name:{width}}{(command.__doc__ or '').splitlines()[0]}")
    return "\n".join([*lines, "", "Run detent COMMAND --help for the flags of a command."])


def _from_elsewhere(error: BaseException) -> bool:
    """Whether code outside Detent raised the error."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return not Path(last.filename).is_relative_to(Path(__file__).parents[1])


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code."""
    words = list(sys.argv[1:] if words is None else words)
    prog = " ".join(["detent", *words[:1]])
    stdout.spell_out_missing_characters()
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        return _guarded(words, prog)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning as one line; those for programmers stay with their place."""
    place = "" if issubclass(category, UserWarning) else f"{filename}:{lineno}: {category.__name__}: "
    print(f"detent: {place}{message}", file=sys.stderr)


def _guarded(words: list[str], prog: str) -> int:
    """Run a command; turn its errors into sentences and exit codes."""
    try:
        return _run(words)
    except ConfigError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    except (RuntimeError, OSError) as error:
        if isinstance(error, BrokenPipeError) and stdout.reader_is_gone():
            # `head`, for instance, has what it wanted.
            return 0
        if isinstance(error, RuntimeError) and _from_elsewhere(error):
            # Raised in a plug-in or a library: only the traceback tells where.
            traceback.print_exc()
        print(f"{prog}: {error}", file=sys.stderr)
        return 1
    except SystemExit as exit:
        if "rich" in Path(traceback.extract_tb(exit.__traceback__)[-1].filename).parts:
            # rich exits with code 1 if the reader of a table is gone.
            return 0
        raise
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return 1
    finally:
        stdout.flush()


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else 2
    if words[0] == "--version":
        print(__version__)
        return 0
    name, *rest = words
    if name not in COMMANDS:
        print(f"detent: there is no command '{name}'; {nearest(name, COMMANDS)}", file=sys.stderr)
        return 2
    prepare_threads()
    if os.getcwd() not in sys.path:
        # As with `python -m`: the user's own environments may be in the current directory.
        sys.path.insert(0, os.getcwd())
    command = parse_train(rest) if name == "train" else parse(COMMANDS[name], rest)
    return command.run()
