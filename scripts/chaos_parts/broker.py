"""Which messages are in the broker: what it loses, if it loses everything now."""

import re

import redis

_MESSAGES = """
local held = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
    local kind, got = redis.call('TYPE', key).ok, {}
    if kind == 'list' then got = redis.call('LRANGE', key, 0, -1) end
    if kind == 'hash' and string.find(key, 'unacked') then got = redis.call('HVALS', key) end
    for _, raw in ipairs(got) do table.insert(held, raw) end
end
redis.call(ARGV[1])
return held
"""
_TASK_ID = re.compile(r'"correlation_id": ?"([^"]+)"')


def task_ids_in(url: str, then: str = "PING") -> frozenset[str]:
    """The tasks whose messages wait there or are unacknowledged; and `then`, in the same moment."""
    with redis.Redis.from_url(url) as server:
        held: list[bytes] = server.eval(_MESSAGES, 0, then)
    return frozenset(found for raw in held for found in _TASK_ID.findall(raw.decode()))
