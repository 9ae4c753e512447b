"""The state machine: the only writer of status, versions and history.

One function per transition of the table in `rejoinder/core/state.py`, sorted by who asks for it.
Each runs in the caller's transaction (`models.engine.transaction`), locks one chat, and returns
`Effects` for the caller to publish after the commit. `claim` is in `claim.py`.
"""

from models.machine.agents import Caller, Errand, Limits, message_agent, spawn
from models.machine.answers import approve, submit_results
from models.machine.by_app import (
    NewChat,
    create,
    delete_queued,
    edit,
    interrupt,
    promote_queued,
    request_compaction,
    retry,
    send,
    set_labels,
    set_title,
)
from models.machine.by_sweeper import expire, recover, wake
from models.machine.by_worker import (
    commit,
    exceed_budget,
    fail,
    finish_interrupt,
    finish_turn,
    give_up,
    record,
    release,
    require_action,
    retry_later,
    sleep,
    start_tools,
    store_compaction,
)
from models.machine.reconcile import reconcile
from models.machine.trees import archive, interrupt_tree, set_budget, supersede, unarchive

__all__ = [
    "Caller",
    "Errand",
    "Limits",
    "NewChat",
    "approve",
    "archive",
    "commit",
    "create",
    "delete_queued",
    "edit",
    "exceed_budget",
    "expire",
    "fail",
    "finish_interrupt",
    "finish_turn",
    "give_up",
    "interrupt",
    "interrupt_tree",
    "message_agent",
    "promote_queued",
    "reconcile",
    "record",
    "recover",
    "release",
    "request_compaction",
    "require_action",
    "retry",
    "retry_later",
    "send",
    "set_budget",
    "set_labels",
    "set_title",
    "sleep",
    "spawn",
    "start_tools",
    "store_compaction",
    "submit_results",
    "supersede",
    "unarchive",
    "wake",
]
