# SPDX-License-Identifier: Apache-2.0
"""`tidemark completion`: scripts for bash, zsh and fish, and the answers to these scripts.

At each TAB a script starts `tidemark` with the environment variable COMPLETE and the line up to the cursor. Typer finds
the candidates, cli/common/completion.py the candidates of the cluster, and the script reads VALUE<TAB>HELP from each
line.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Final, NoReturn

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]

from tidemark.cli.common.output import print_line

COMPLETE: Final = "_TIDEMARK_COMPLETE"
"""The variable that Typer derives from the name of the program."""
_CALL: Final = f"{COMPLETE}=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args _TYPER_COMPLETE_ARGS"
"""Assignments before the program; Typer's answer to fish has a help text and needs no eval, so all shells read it."""

_BASH: Final = f"""\
_tidemark() {{
    local line="${{COMP_LINE:0:COMP_POINT}}" value help word begun
    word="${{line##*[[:space:]]}}"
    begun="${{word%"${{word##*[:=]}}"}}"
    COMPREPLY=()
    while IFS=$'\\t' read -r value help; do
        [[ -n $value ]] || continue
        COMPREPLY+=("${{value#"$begun"}}")
        [[ $value == *= ]] && compopt -o nospace 2>/dev/null
    done < <({_CALL}="$line" "$1" 2>/dev/null)
    return 0
}}
complete -o bashdefault -o default -F _tidemark tidemark
"""

_ZSH: Final = f"""\
#compdef tidemark
_tidemark() {{
    local -a found begun
    local value help
    while IFS=$'\\t' read -r value help; do
        [[ -n $value ]] || continue
        if [[ $value == *= ]]; then
            begun+=("$value")
        else
            found+=("${{value//:/\\\\:}}${{help:+:$help}}")
        fi
    done < <({_CALL}="${{words[1,$CURRENT]}}" "$words[1]" 2>/dev/null)
    (( $#begun )) && compadd -S '' -a begun
    (( $#found )) && _describe tidemark found
    (( $#begun + $#found )) || _files
}}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _tidemark "$@"
else
    compdef _tidemark tidemark
fi
"""

_FISH: Final = f"""\
function __tidemark_complete
    set -l found (env {_CALL}=(commandline -cp | string collect) tidemark 2>/dev/null)
    if test (count $found) -gt 0
        string join \\n -- $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command tidemark --no-files --arguments '(__tidemark_complete)'
"""


class Shell(StrEnum):
    """A shell for which there is a completion script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


SCRIPTS: Final = {Shell.BASH: _BASH, Shell.ZSH: _ZSH, Shell.FISH: _FISH}


def completion(shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="The shell.")]) -> None:
    """Print a script that completes commands, options and names in a shell.

    \b
    Topics, partitions, groups, brokers and settings come from the cluster of --bootstrap or TIDEMARK_BOOTSTRAP. If the
    cluster does not answer within 1.5 s, the shell shows no names.

    \b
    Examples; the first three are for one session, the others for all later ones:
      source <(tidemark completion bash)
      source <(tidemark completion zsh)
      tidemark completion fish | source
      tidemark completion bash > ~/.local/share/bash-completion/completions/tidemark
      tidemark completion zsh > "${fpath[1]}/_tidemark"
      tidemark completion fish > ~/.config/fish/completions/tidemark.fish
    """
    print_line(SCRIPTS[shell].rstrip("\n"))


def is_asked() -> bool:
    """Whether the script of a shell has started this process."""
    return bool(os.environ.get(COMPLETE))


def answer(run: Callable[[], object]) -> NoReturn:
    """Call `run`, which prints the candidates, and end the process with status 0.

    Write nothing to stderr, which is the user's prompt. The process does not wait for a lookup that is late.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    with contextlib.suppress(BaseException):
        completion_init()
        run()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(0)
