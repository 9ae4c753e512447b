"""For tests of your own: scripts for a model that needs no key, and tools outside a worker.

    chat options: {"extra": play([call("weather", city="Bonn"), say("It is {result}.")])}
    run_tool(weather, city="Bonn").content

`scripts.py` builds scripts, `tools.py` runs tools; docs/tools.md shows both.
"""

from rejoinder.providers.scripted import ScriptedProvider
from rejoinder.testing.scripts import call, end, fail, hang, play, say, think, together
from rejoinder.testing.tools import call_tool, run_tool

__all__ = [
    "ScriptedProvider",
    "call",
    "call_tool",
    "end",
    "fail",
    "hang",
    "play",
    "run_tool",
    "say",
    "think",
    "together",
]
