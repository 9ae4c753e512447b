"""The rules that hold for all rows after every transaction, whoever wrote them.

Each rule is a query for the chats that break it. `assert_invariants` runs them all over the whole
database as one statement and names what it finds. The rules are written from the design, not from
the code: conditions of the tables that say the same are repeated here on purpose, so that a rule
that moves from a guard into code (or back) is still watched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Engine

RULES: Mapping[str, str] = {
    "a waiting chat has no queue": """
        SELECT c.id FROM chats c JOIN queued_messages q ON q.chat_id = c.id
         WHERE c.status = 'waiting'
    """,
    "queue_length counts the queue": """
        SELECT c.id FROM chats c
         WHERE c.queue_length <> (SELECT count(*) FROM queued_messages q WHERE q.chat_id = c.id)
            OR c.queue_length NOT BETWEEN 0 AND 20
    """,
    "a lease iff running or interrupting": """
        SELECT c.id FROM chats c
         WHERE (c.lease_id IS NOT NULL) <> (c.status IN ('running', 'interrupting'))
            OR (c.lease_id IS NULL) <> (c.worker_id IS NULL)
    """,
    "a lease is unique": """
        SELECT min(c.id::text)::uuid FROM chats c
         WHERE c.lease_id IS NOT NULL GROUP BY c.lease_id HAVING count(*) > 1
    """,
    "one open turn iff busy, and it is the chat's": """
        SELECT c.id FROM chats c
         WHERE coalesce((SELECT array_agg(t.id) FROM turns t
                          WHERE t.chat_id = c.id AND t.state = 'open'), '{}')
            <> CASE WHEN c.status IN ('waiting', 'error') THEN '{}' ELSE ARRAY[c.turn_id] END
    """,
    "at rest no turn is the chat's": """
        SELECT c.id FROM chats c
         WHERE (c.turn_id IS NULL) <> (c.status IN ('waiting', 'error'))
    """,
    "queued messages and queued turns are pairs": """
        SELECT coalesce(q.chat_id, t.chat_id)
          FROM queued_messages q
          FULL JOIN (SELECT * FROM turns WHERE state = 'queued') t
            ON t.id = q.turn_id AND t.chat_id = q.chat_id
         WHERE q.id IS NULL OR t.id IS NULL OR t.message_id IS NOT NULL
    """,
    "the message of an open turn is the user's, and in history": """
        SELECT t.chat_id FROM turns t LEFT JOIN messages m ON m.id = t.message_id
         WHERE t.state = 'open' AND t.kind = 'message'
           AND (m.id IS NULL OR m.deleted OR m.role <> 'user' OR m.turn_id <> t.id)
    """,
    "an answer is an assistant's message of its turn": """
        SELECT t.chat_id FROM turns t LEFT JOIN messages m ON m.id = t.answer_id
         WHERE t.answer_id IS NOT NULL
           AND (m.id IS NULL OR m.role <> 'assistant'
                OR m.turn_id <> coalesce(t.joined_id, t.id))
    """,
    "a waiting chat has no open call": """
        SELECT c.id FROM chats c JOIN tool_calls k ON k.chat_id = c.id
         WHERE c.status = 'waiting' AND NOT k.settled
    """,
    "the calls of an assistant's message are stored, in order, in the message's chat": """
        SELECT m.chat_id FROM messages m
          LEFT JOIN calls k ON k.message_id = m.id AND k.chat_id = m.chat_id
         WHERE coalesce(k.ids, '[]') <> jsonb_path_query_array(
            m.parts::jsonb,
            '$[*] ? (@.type == "tool_call" && @.provider_executed == false).call_id')
    """,
    "open calls belong to one message, and nothing was said since": """
        SELECT k.chat_id FROM calls k LEFT JOIN said m ON m.id = k.message_id
         WHERE NOT k.settled
           AND (m.role IS DISTINCT FROM 'assistant' OR m.next_role IS NOT NULL)
    """,
    "all calls of a message are settled together": """
        SELECT k.chat_id FROM calls k WHERE k.torn
    """,
    "results follow their calls at once, in call order, before anybody speaks": """
        SELECT m.chat_id FROM said m JOIN calls k ON k.message_id = m.id
         WHERE k.settled
           AND (m.next_role IS DISTINCT FROM 'tool' OR m.next_parts::jsonb <> k.results)
    """,
    "no result without its calls right before it": """
        SELECT m.chat_id FROM said m
         WHERE m.role = 'tool'
           AND (m.previous_role IS DISTINCT FROM 'assistant'
                OR NOT EXISTS (SELECT FROM calls k WHERE k.message_id = m.previous_id))
    """,
    "ids are the order of history": """
        SELECT m.chat_id FROM said m WHERE m.revision < m.previous_revision
    """,
    "history_version is the newest revision": """
        SELECT c.id FROM chats c
         WHERE c.history_version
            <> (SELECT max(m.revision) FROM messages m WHERE m.chat_id = c.id)
    """,
    "snapshot_version is never behind the others": """
        SELECT c.id FROM chats c
         WHERE c.snapshot_version < greatest(c.history_version, c.queue_version)
            OR least(c.history_version, c.queue_version) < 1
    """,
    "a chat that requires action has a call that somebody outside is asked about": """
        SELECT c.id FROM chats c
         WHERE c.status = 'requires_action' AND c.action = 'calls' AND NOT EXISTS (
            SELECT FROM tool_calls k
             WHERE k.chat_id = c.id AND (k.kind = 'client' OR k.approval = 'wanted')
               AND NOT k.settled AND k.state IN ('requested', 'started'))
    """,
    "a chat that waits for its budget has no open call": """
        SELECT c.id FROM chats c JOIN tool_calls k ON k.chat_id = c.id
         WHERE c.status = 'requires_action' AND c.action = 'budget' AND NOT k.settled
    """,
    "what a chat that requires action waits for is known": """
        SELECT c.id FROM chats c
         WHERE (c.action IS NOT NULL) <> (c.status = 'requires_action')
    """,
    "a sleeping chat has an unanswered call to others": """
        SELECT c.id FROM chats c
         WHERE c.status = 'sleeping' AND NOT EXISTS (
            SELECT FROM tool_calls k
             WHERE k.chat_id = c.id AND k.kind IN ('external', 'children') AND NOT k.settled
               AND k.state IN ('requested', 'started'))
    """,
    "a call that waits for approval has not begun": """
        SELECT k.chat_id FROM tool_calls k WHERE k.approval = 'wanted' AND k.state = 'started'
    """,
    "a call names the children it waits for": """
        SELECT k.chat_id FROM tool_calls k
         WHERE (k.kind = 'children') <> (k.waits_for IS NOT NULL)
    """,
    "a turn that joined another ends with it": """
        SELECT t.chat_id FROM turns t LEFT JOIN turns o ON o.id = t.joined_id
         WHERE (t.state = 'joined' AND (o.state IS DISTINCT FROM 'open' OR o.chat_id <> t.chat_id))
            OR (t.joined_id IS NOT NULL AND t.state <> 'joined'
                AND (t.state, t.answer_id) IS DISTINCT FROM (o.state, o.answer_id))
    """,
    "a budget is its root's": """
        SELECT c.id FROM chats c
         WHERE c.parent_id IS NOT NULL AND num_nonnulls(c.budget_tokens, c.budget_micros) > 0
    """,
    "last_error iff error": """
        SELECT c.id FROM chats c WHERE (c.last_error IS NOT NULL) <> (c.status = 'error')
    """,
    "a deadline iff parked": """
        SELECT c.id FROM chats c
         WHERE (c.deadline IS NOT NULL) <> (c.status IN ('requires_action', 'sleeping'))
    """,
    "a time to look again iff pending": """
        SELECT c.id FROM chats c
         WHERE (c.redispatch_at IS NOT NULL) <> (c.status = 'pending')
            OR (c.run_after IS NOT NULL AND c.status <> 'pending')
    """,
    "a wake-up is kept only for a turn that goes on": """
        SELECT c.id FROM chats c WHERE c.woken AND c.status IN ('waiting', 'error', 'sleeping')
    """,
    "archived only at rest": """
        SELECT c.id FROM chats c WHERE c.archived AND c.status NOT IN ('waiting', 'error')
    """,
    "a tree is archived as a whole": """
        SELECT c.id FROM chats c JOIN chats r ON r.id = c.root_id WHERE c.archived <> r.archived
    """,
    "a retry has a reason, and an attempt a retry": """
        SELECT c.id FROM chats c
         WHERE (c.attempt > 0) <> (c.retry_state IS NOT NULL)
    """,
}

# What the rules share: history as readers see it, each message with its neighbours, and the calls
# of each message. Materialised: each is computed once, however many rules look at it.
_SHARED = """
    said AS MATERIALIZED (
        SELECT m.*, lag(m.id) OVER w AS previous_id, lag(m.role) OVER w AS previous_role,
               lag(m.revision) OVER w AS previous_revision,
               lead(m.role) OVER w AS next_role, lead(m.parts) OVER w AS next_parts
          FROM messages m
         WHERE NOT m.deleted AND m.role <> 'system'
        WINDOW w AS (PARTITION BY m.chat_id ORDER BY m.id)
    ),
    calls AS MATERIALIZED (
        SELECT k.message_id, k.chat_id, bool_or(k.settled) AS settled,
               bool_or(k.settled) <> bool_and(k.settled) AS torn,
               jsonb_agg(k.call_id ORDER BY k.id) AS ids,
               jsonb_agg(k.result::jsonb ORDER BY k.id) AS results
          FROM tool_calls k
         GROUP BY k.message_id, k.chat_id
    )
"""
_EVERYTHING = text(
    f"WITH {_SHARED} "  # noqa: S608  the queries are ours
    + " UNION ALL ".join(
        f"SELECT $${rule}$$ AS rule, broken.* FROM ({query}) AS broken (chat)"  # noqa: S608
        for rule, query in RULES.items()
    )
)


def broken_rules(engine: Engine) -> list[str]:
    """Every rule that some chat breaks, with the chat."""
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL search_path = rejoinder"))
        return [f"{row.rule}: chat {row.chat}" for row in connection.execute(_EVERYTHING)]


def assert_invariants(engine: Engine) -> None:
    """Fail if any row of the database breaks a rule."""
    if broken := broken_rules(engine):
        raise AssertionError("Broken: " + "; ".join(broken))
