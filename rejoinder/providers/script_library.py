"""Scripts that come with the package: `scripted:echo`, `scripted:weather-demo`, and others.

`demo`, `weather-demo` and `research-demo` use the tools of `rejoinder.tools.examples`;
`agents-demo` has two agents do so, and needs a chat that may have some (docs/agents.md).
"""

from collections.abc import Mapping
from typing import Any

_LONG = " ".join(f"This is sentence {n} of a long answer." for n in range(1, 201))

_WEATHER: Mapping[str, Any] = {
    "turns": [
        [
            {
                "thinking": "Two cities and a difference: I can ask for both at once.",
                "text": "Let me look at both places.",
                "calls": [
                    {"name": "weather", "arguments": {"city": "Bonn"}},
                    {"name": "weather", "arguments": {"city": "Lima"}},
                    {"name": "slow_lookup", "arguments": {"topic": "umbrella", "seconds": 1}},
                ],
                "pace": 0.03,
            },
            {
                "text": "How far apart are they?",
                "calls": [
                    {
                        "name": "calculate",
                        "arguments": {"expression": "{result:0.celsius} - ({result:1.celsius})"},
                    }
                ],
                "pace": 0.03,
            },
            {
                "text": "Between Bonn and Lima there is a difference of {result} degrees"
                " today. Take an umbrella if in doubt.",
                "pace": 0.03,
            },
        ]
    ],
    "repeat": True,
}

LIBRARY: Mapping[str, Any] = {
    # Every message comes back.
    "echo": {"steps": [{"text": "You said: {user}"}], "repeat": True},
    # Three steps, with parallel tools, in every turn.
    "weather-demo": _WEATHER,
    "demo": _WEATHER,  # the default model
    # One slow tool per step: time to stop a worker on the way.
    "research-demo": {
        "turns": [
            [
                {
                    "text": "I look it up.",
                    "calls": [{"name": "slow_lookup", "arguments": {"topic": "{user}"}}],
                    "pace": 0.03,
                },
                {"text": "I found this: {result}", "pace": 0.03},
            ]
        ],
        "repeat": True,
    },
    # Two sub-agents, each with a slow tool; the answer is made of their reports.
    "agents-demo": {
        "turns": [
            [
                {
                    "text": "I have two agents look into it.",
                    "calls": [
                        {
                            "name": "spawn_agent",
                            "arguments": {
                                "prompt": f"{{user}} ({side})",
                                "title": f"What speaks {side}?",
                                "model": "scripted:research-demo",
                            },
                        }
                        for side in ("for", "against")
                    ],
                    "pace": 0.03,
                },
                {
                    "calls": [
                        {
                            "name": "wait_agent",
                            "arguments": {"ids": ["{result:0.chat_id}", "{result:1.chat_id}"]},
                        }
                    ],
                },
                {
                    "text": "One reports: {result:0.agents.0.report}\n"
                    "The other: {result:0.agents.1.report}",
                    "pace": 0.03,
                },
            ]
        ],
        "repeat": True,
    },
    # A long answer, about a minute: time to press stop.
    "long": {"steps": [{"text": _LONG, "pace": 0.04}], "repeat": True},
    # A few words, and then silence.
    "hang": {"steps": [{"text": "One moment, please.", "hang_after": 3}], "repeat": True},
}
