"""`bdl completion`: a script that lets bash complete commands, groups, choices, keys and files.

Hydra's own script completes a command of one word, and would call `bdl` without the name of a command. This one asks
Hydra's query by `bdl COMMAND`, and leaves COMP_WORDBREAKS as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

SCRIPT = """_bdl_completion() {{
    local line="${{COMP_LINE:0:COMP_POINT}}" words word command choices prefix
    read -ra words <<< "$line"
    word="${{words[-1]}}"
    [[ "$line" == *[[:space:]] ]] && {{ words+=(""); word=""; }}
    command="${{words[1]}}"
    if (( ${{#words[@]}} <= 2 )); then
        choices="{commands}"
    else
        choices="$(COMP_LINE="bdl ${{words[*]:2}}" bdl "$command" -sc query=bash 2> /dev/null)"
    fi
    COMPREPLY=($(compgen -W "$choices" -- "$word"))
    prefix="${{word%"${{word##*=}}"}}"
    [[ "$COMP_WORDBREAKS" == *=* ]] && COMPREPLY=("${{COMPREPLY[@]#"$prefix"}}")
    if (( ${{#COMPREPLY[@]}} == 1 )) && [[ "${{COMPREPLY[0]}}" != *[=./] ]]; then COMPREPLY=("${{COMPREPLY[0]}} "); fi
}}
complete -o nospace -o default -F _bdl_completion bdl
"""


def completion_script(commands: Sequence[str]) -> str:
    """The script for `eval "$(bdl completion)"`. commands: those that bash completes after `bdl`."""
    return SCRIPT.format(commands=" ".join(commands))


def asks_for_completion(words: Sequence[str]) -> bool:
    """Whether a command line asks Hydra to install its completion of bash, in whose place comes that of bdl."""
    asked = {"-sc", "--shell-completion"}
    return any(a in asked and b == "install=bash" for a, b in zip(words, words[1:], strict=False))
