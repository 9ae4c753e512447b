"""The front door: what any Celery app can ask for, by task name, with JSON arguments.

Each task checks its arguments, runs one transition, publishes what follows, and returns ids. A
refusal is a `Rejected` that says what to do; nothing is half-done. Reads return plain values. A
command is done once: the task's id is its idempotency key, unless it brings one (`keys.py`). While
the database is away, its caller gets `Unavailable`; if the caller ignores results, the message goes
back to the broker instead.
"""

import logging
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar
from uuid import uuid4

from celery.exceptions import Reject
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from models import accounts, machine, reading
from models.engine import transaction
from models.machine import NewChat, keys
from rejoinder import requests
from rejoinder.core import parts
from rejoinder.core.effects import Effects
from rejoinder.core.errors import Rejected, Unavailable
from rejoinder.core.limits import MOST_KEY
from rejoinder.core.messages import TitleSource, WhenBusy
from rejoinder.core.parts import ToolResult
from rejoinder.providers import named
from tasks import app
from tasks.db_retry import is_transient, retrying
from tasks.dispatch import publish
from tasks.requests import COMMAND
from tasks.runtime import current

log = logging.getLogger(__name__)

R = TypeVar("R", bound=requests.Request)
Act = Callable[[Session, R], Any]


def front_door(name: str, takes: type[R]) -> Callable[[Act[R]], Any]:
    """Make a task `rejoinder.NAME` of a function on a checked request."""

    def decorate(act: Act[R]) -> Any:  # a Celery task has no type
        @app.task(
            name=f"rejoinder.{name}",
            **COMMAND,
            throws=(Rejected, Unavailable),
            typing=False,
            ignore_result=False,
            resultrepr_maxsize=1,  # results hold what users said: logs and Flower show "{, ...}"
        )
        def task(*args: Any, **arguments: Any) -> Any:
            if args:
                raise Rejected("Arguments came without names", "send them as keyword arguments")
            request = requests.check(takes, arguments)
            if not isinstance(request, requests.Command):
                return _run(lambda tx: act(tx, request))
            if (task.request.delivery_info or {}).get("redelivered"):
                _refuse_again(task.request.id)
            key = request.key or _key_of(task.request.id)
            once = partial(_once, key=key, verb=name, ask=request, act=act)
            try:
                done = _run(once)
            except Unavailable as error:
                if task.request.ignore_result:  # nobody would read the answer
                    raise Reject(error, requeue=True) from None
                raise
            for effects in done:
                publish(current(), effects)
            return keys.receipt(done[0])

        task.__doc__ = act.__doc__
        return task

    return decorate


def _run(act: Callable[[Session], Any]) -> Any:
    """Run it; if the database goes away, again: what was committed has its key, and stays once."""

    @retrying
    def run() -> Any:
        with transaction(current().engine) as tx:
            return act(tx)

    try:
        return run()
    except SQLAlchemyError as error:
        if not is_transient(error):
            raise
        log.warning("A front-door call failed: %s", error)
        raise Unavailable(
            "The database does not answer; this may or may not have happened",
            "try again later; with the same `key`, it is done once",
        ) from None


def _once(tx: Session, *, key: str, verb: str, ask: Any, act: Act[Any]) -> tuple[Effects, ...]:
    """Carry out a command, unless it was: by another delivery of its message, or its `key`."""
    new = isinstance(ask, requests.CreateChat)
    owner = ask.owner if new else keys.owner_of(tx, ask.chat_id)
    # Without defaults: they may differ between releases that run side by side.
    said = ask.model_dump(mode="json", exclude={"key"}, exclude_defaults=True)
    return keys.once(tx, owner, key, {"verb": verb, **said}, lambda: act(tx, ask))


def _refuse_again(task_id: str | None) -> None:
    """Refuse a command that was refused: its caller may have read that, and sent another.

    Keys remember what was done (`keys.py`), the result backend what was answered.
    """
    try:
        first = app.backend.get_task_meta(task_id)["result"]
    except Exception as error:  # noqa: BLE001  # nobody can have read it: it is judged anew
        log.info("The first answer to a command is not known: %s", error)
        return
    if isinstance(first, Rejected):
        raise first


def _key_of(task_id: str | None) -> str:
    """The key of a command that came without one; the id is whatever the caller's Celery made."""
    key = f"task:{task_id or uuid4()}"
    return key if len(key) <= MOST_KEY else f"task:{sha256(key.encode()).hexdigest()}"


@front_door("create_chat", requests.CreateChat)
def create_chat(tx: Session, ask: requests.CreateChat) -> Effects:
    """Create a chat with its first message."""
    model = ask.model or current().settings.model
    for each in (model, ask.options.compaction_model or model):
        named(each)  # an unknown model is refused here, not in the first step
    new = NewChat(
        owner=ask.owner,
        content=parts.load(ask.content),
        system=parts.load(ask.system or ()),
        model=model,
        options=ask.options.model_dump(mode="json", exclude_unset=True),
        labels=ask.labels,
        parent_id=ask.parent_id,
        title=ask.title,
        budget=ask.budget.value(),
    )
    return machine.create(tx, new)


@front_door("send_message", requests.SendMessage)
def send_message(tx: Session, ask: requests.SendMessage) -> tuple[Effects, ...]:
    """Send a message: into the chat, into its queue, or instead of what it is doing."""
    if ask.model:
        named(ask.model)
    send = partial(
        machine.send,
        tx,
        ask.chat_id,
        parts.load(ask.content),
        when_busy=ask.when_busy,
        model=ask.model,
    )
    if ask.when_busy is WhenBusy.INTERRUPT:
        return machine.supersede(tx, ask.chat_id, send)
    return (send(),)


@front_door("edit_message", requests.EditMessage)
def edit_message(tx: Session, ask: requests.EditMessage) -> tuple[Effects, ...]:
    """Replace a user's message; what came after it is gone."""
    if ask.model:
        named(ask.model)
    content = parts.load(ask.content)
    edit = partial(machine.edit, tx, ask.chat_id, ask.message_id, content, ask.model)
    return machine.supersede(tx, ask.chat_id, edit)


@front_door("interrupt", requests.Interrupt)
def interrupt(tx: Session, ask: requests.Interrupt) -> tuple[Effects, ...]:
    """Stop the turn (or only the one that is named), and the chat's children's."""
    if ask.children:
        return machine.interrupt_tree(tx, ask.chat_id, turn_id=ask.turn_id)
    return (machine.interrupt(tx, ask.chat_id, turn_id=ask.turn_id),)


@front_door("promote_queued", requests.QueuedMessage)
def promote_queued(tx: Session, ask: requests.QueuedMessage) -> tuple[Effects, ...]:
    """Let a queued message come next, now."""
    promote = partial(machine.promote_queued, tx, ask.chat_id, ask.queued_id)
    return machine.supersede(tx, ask.chat_id, promote)


@front_door("delete_queued", requests.QueuedMessage)
def delete_queued(tx: Session, ask: requests.QueuedMessage) -> Effects:
    """Take a message out of the queue."""
    return machine.delete_queued(tx, ask.chat_id, ask.queued_id)


@front_door("submit_tool_results", requests.SubmitToolResults)
def submit_tool_results(tx: Session, ask: requests.SubmitToolResults) -> Effects:
    """Answer the client-side tool calls of a chat that requires action."""
    results = [ToolResult(r.call_id, r.content, r.is_error) for r in ask.results]
    return machine.submit_results(tx, ask.chat_id, results, turn_id=ask.turn_id)


@front_door("approve", requests.Approve)
def approve(tx: Session, ask: requests.Approve) -> Effects:
    """Allow calls that wait for approval; the model reads the reason with the result."""
    return _decide(tx, ask, approved=True)


@front_door("deny", requests.Approve)
def deny(tx: Session, ask: requests.Approve) -> Effects:
    """Refuse calls that wait for approval; the model is told why."""
    return _decide(tx, ask, approved=False)


def _decide(tx: Session, ask: requests.Approve, *, approved: bool) -> Effects:
    return machine.approve(
        tx, ask.chat_id, ask.call_ids, approved=approved, reason=ask.reason, turn_id=ask.turn_id
    )


@front_door("compact", requests.ChatCommand)
def compact(tx: Session, ask: requests.ChatCommand) -> Effects:
    """Summarise a chat at rest, also one that failed because it was too long."""
    return machine.request_compaction(tx, ask.chat_id)


@front_door("set_title", requests.SetTitle)
def set_title(tx: Session, ask: requests.SetTitle) -> Effects:
    """Name a chat; no model overwrites it."""
    return machine.set_title(tx, ask.chat_id, ask.title, TitleSource.USER)


@front_door("set_labels", requests.SetLabels)
def set_labels(tx: Session, ask: requests.SetLabels) -> Effects:
    """Add, change or remove labels; the others stay."""
    return machine.set_labels(tx, ask.chat_id, ask.labels)


@front_door("set_budget", requests.SetBudget)
def set_budget(tx: Session, ask: requests.SetBudget) -> tuple[Effects, ...]:
    """Say what a chat and its children may use; what waits for more goes on."""
    return machine.set_budget(tx, ask.chat_id, ask.budget.value())


@front_door("retry", requests.ChatCommand)
def retry(tx: Session, ask: requests.ChatCommand) -> Effects:
    """Go on after an error."""
    return machine.retry(tx, ask.chat_id)


@front_door("archive", requests.ChatCommand)
def archive(tx: Session, ask: requests.ChatCommand) -> tuple[Effects, ...]:
    """Archive a chat and its children."""
    return machine.archive(tx, ask.chat_id)


@front_door("unarchive", requests.ChatCommand)
def unarchive(tx: Session, ask: requests.ChatCommand) -> tuple[Effects, ...]:
    """Bring a chat and its children back."""
    return machine.unarchive(tx, ask.chat_id)


@front_door("get_chat", requests.OneChat)
def get_chat(tx: Session, ask: requests.OneChat) -> dict[str, Any]:
    """One chat."""
    return reading.get_chat(tx, ask.chat_id)


@front_door("get_usage", requests.GetUsage)
def get_usage(tx: Session, ask: requests.GetUsage) -> dict[str, Any]:
    """What an owner's chats have used in a period, by model."""
    return accounts.owner_usage(tx, ask.owner, since=ask.since, until=ask.until)


@front_door("list_chats", requests.ListChats)
def list_chats(tx: Session, ask: requests.ListChats) -> dict[str, Any]:
    """An owner's chats."""
    return reading.list_chats(
        tx,
        ask.owner,
        status=ask.status,
        labels=ask.labels,
        archived=ask.archived,
        parent_id=ask.parent_id,
        root_id=ask.root_id,
        roots=ask.roots,
        title=ask.title,
        before=ask.before,
        limit=ask.limit,
    )


@front_door("get_steps", requests.GetSteps)
def get_steps(tx: Session, ask: requests.GetSteps) -> dict[str, Any]:
    """What a chat's steps took."""
    return reading.get_steps(tx, ask.chat_id, before=ask.before, limit=ask.limit)


@front_door("get_messages", requests.GetMessages)
def get_messages(tx: Session, ask: requests.GetMessages) -> dict[str, Any]:
    """A chat's messages."""
    newest_first = ask.before is not None if ask.newest_first is None else ask.newest_first
    return reading.get_messages(
        tx,
        ask.chat_id,
        after=ask.after,
        before=ask.before,
        newest_first=newest_first,
        limit=ask.limit,
    )
