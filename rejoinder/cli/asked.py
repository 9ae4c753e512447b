"""What a chat asks of somebody outside, as lines for a person, with what to type."""

from collections.abc import Iterator, Mapping
from typing import Any

from rejoinder.cli.calls import one_line, short
from rejoinder.core.messages import ActionKind

LONGEST = 400


def asked(data: Mapping[str, Any], answer_with: str) -> Iterator[str]:
    """The lines of an `action_required` event; `answer_with` has a place for the verb."""
    if data.get("kind") == ActionKind.BUDGET:
        spent = data.get("spent", {})
        told = f" ({spent['tokens']:,} tokens, ${spent['cost']})" if spent else ""
        yield f"? the budget is used up{told}; the chat goes on when it is raised, with set_budget"
        return
    results = []
    for call in data.get("calls", ()):
        until = f", until {call['deadline'][11:19]} UTC" if call.get("deadline") else ""
        what = short(f"{call['name']}({_arguments(call['arguments'])})", LONGEST)
        if call.get("approval"):
            yield f"? may it call {what} [{call['call_id']}{until}]"
            yield f"    yes: {_say(answer_with, 'approve', call)}"
            yield f"    no:  {_say(answer_with, 'deny', call)} {_why(answer_with)}"
        else:
            yield f"? it wants the result of {what} [{call['call_id']}{until}]"
            results.append(f"{call['call_id']}=VALUE")
    if results:
        yield f"    {answer_with.format('answer')} {' '.join(results)}"


def _say(answer_with: str, verb: str, call: Mapping[str, Any]) -> str:
    return f"{answer_with.format(verb)} {call['call_id']}"


def _why(answer_with: str) -> str:
    return "REASON" if answer_with.startswith("/") else "--reason REASON"


def _arguments(arguments: object) -> str:
    if isinstance(arguments, Mapping):
        return ", ".join(f"{name}={one_line(value)}" for name, value in arguments.items())
    return one_line(arguments)
