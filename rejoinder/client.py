"""The client for other apps: the front door's verbs, typed, and a chat's live events.

It needs Celery and Redis, not Rejoinder's application: with an app of your own
(`Client(app=celery_app)`) or just a broker (`Client(broker_url=…)`). Requests are checked here and
again by the tasks; a refusal raises `Rejected` with what to do.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self
from uuid import UUID

import redis
from celery import Celery
from celery.exceptions import TimeoutError as NoAnswer
from celery.result import AsyncResult

from rejoinder import requests, streams
from rejoinder.core.messages import WhenBusy
from rejoinder.core.state import BUSY, Status
from rejoinder.discreet import shown
from rejoinder.following import Follower
from rejoinder.results import TurnFailed
from rejoinder.streams import StreamEvent

__all__ = ["Client", "StreamEvent", "Turn", "TurnFailed"]

Content = str | Sequence[Mapping[str, Any]]
Id = str | UUID
ASK_AGAIN_SECONDS = 5.0
"""A question that only reads is sent again after so long: Redis may have forgotten it."""


@dataclass(frozen=True)
class Turn:
    """A message on its way to an answer."""

    chat_id: str
    turn_id: str
    status: str
    queued_id: int | None
    client: "Client"

    def get(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the answer: state, text, message id. Raises `TurnFailed` if it failed."""
        value: dict[str, Any] = self.client.result(self.turn_id).get(timeout=timeout)
        return value


class Client:
    """Talks to Rejoinder's workers."""

    def __init__(
        self,
        app: Celery | None = None,
        *,
        broker_url: str | None = None,
        redis_url: str | None = None,
        prefix: str = "rejoinder:",
        timeout: float = 10.0,
    ) -> None:
        """Use your app, or a broker; `redis_url` if results and streams are elsewhere."""
        if (app is None) == (broker_url is None):
            raise ValueError("give either app=… or broker_url=…")
        if app is None:
            app = Celery("rejoinder-client", broker=broker_url, backend=redis_url or broker_url)
            app.conf.update(task_serializer="json", accept_content=["json"])
        self.app = app
        self._redis_url = redis_url or app.conf.result_backend or app.conf.broker_url
        self._prefix = prefix
        self._timeout = timeout
        self._redis: redis.Redis | None = None

    def __enter__(self) -> Self:
        """Use as a context manager to close connections."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Close the connection that streams use."""
        if self._redis is not None:
            self._redis.close()

    # -- verbs ------------------------------------------------------------------------------

    def create_chat(  # noqa: PLR0913  # what a chat begins with
        self,
        content: Content,
        *,
        owner: str,
        system: Content | None = None,
        model: str = "",
        options: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        parent_id: Id | None = None,
        title: str | None = None,
        budget: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Turn:
        """Create a chat with its first message. `budget`: tokens, cost (in dollars), or both."""
        return self._turn(
            "create_chat",
            requests.CreateChat,
            content=content,
            owner=owner,
            system=system,
            model=model,
            options=options or {},
            labels=labels or {},
            parent_id=parent_id,
            title=title,
            budget=budget,
            key=key,
        )

    def send_message(
        self,
        chat_id: Id,
        content: Content,
        *,
        when_busy: WhenBusy | str = WhenBusy.QUEUE,
        model: str | None = None,
        key: str | None = None,
    ) -> Turn:
        """Send a message; `when_busy` is queue, steer, interrupt or reject."""
        return self._turn(
            "send_message",
            requests.SendMessage,
            chat_id=chat_id,
            content=content,
            when_busy=when_busy,
            model=model,
            key=key,
        )

    def edit_message(
        self,
        chat_id: Id,
        message_id: int,
        content: Content,
        *,
        model: str | None = None,
        key: str | None = None,
    ) -> Turn:
        """Replace a user's message; what came after it is gone."""
        given = {"chat_id": chat_id, "message_id": message_id, "content": content, "model": model}
        return self._turn("edit_message", requests.EditMessage, **given, key=key)

    def retry(self, chat_id: Id, *, key: str | None = None) -> Turn:
        """Go on after an error."""
        return self._turn("retry", requests.ChatCommand, chat_id=chat_id, key=key)

    def interrupt(  # noqa: PLR0913  # what to stop, and how long to wait for it
        self,
        chat_id: Id,
        *,
        turn_id: Id | None = None,
        children: bool = True,
        key: str | None = None,
        wait: bool = False,
        timeout: float = 30.0,
    ) -> Status:
        """Stop the turn; what was written stays. With `wait`, until the chat has come to rest.

        With `turn_id`, only that turn: a late click does not stop the answer to the next message.
        Its sub-agents are stopped too, unless `children` is False.
        """
        which = {"chat_id": chat_id, "turn_id": turn_id, "children": children}
        answer = self.call("interrupt", requests.Interrupt, **which, key=key)
        end = time.monotonic() + timeout
        status = Status(answer["status"])
        while wait and status in BUSY and time.monotonic() < end:
            time.sleep(0.05)
            status = Status(self.get_chat(chat_id)["status"])
        return status

    def promote_queued(
        self, chat_id: Id, queued_id: int, *, key: str | None = None
    ) -> dict[str, Any]:
        """Let a queued message come next, now."""
        which = {"chat_id": chat_id, "queued_id": queued_id}
        return self.call("promote_queued", requests.QueuedMessage, **which, key=key)

    def delete_queued(
        self, chat_id: Id, queued_id: int, *, key: str | None = None
    ) -> dict[str, Any]:
        """Take a message out of the queue."""
        which = {"chat_id": chat_id, "queued_id": queued_id}
        return self.call("delete_queued", requests.QueuedMessage, **which, key=key)

    def submit_tool_results(
        self,
        chat_id: Id,
        results: Sequence[Mapping[str, Any]],
        *,
        turn_id: Id | None = None,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Answer the client-side tool calls of a chat that requires action."""
        given = {"chat_id": chat_id, "results": results, "turn_id": turn_id}
        return self.call("submit_tool_results", requests.SubmitToolResults, **given, key=key)

    def approve(
        self,
        chat_id: Id,
        call_ids: Sequence[str] | None = None,
        *,
        reason: str | None = None,
        turn_id: Id | None = None,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Allow calls that wait for approval: these, or all. The model reads the reason."""
        given = {"chat_id": chat_id, "call_ids": call_ids, "reason": reason, "turn_id": turn_id}
        return self.call("approve", requests.Approve, **given, key=key)

    def deny(
        self,
        chat_id: Id,
        call_ids: Sequence[str] | None = None,
        *,
        reason: str | None = None,
        turn_id: Id | None = None,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Refuse calls that wait for approval: these, or all. The model is told why."""
        given = {"chat_id": chat_id, "call_ids": call_ids, "reason": reason, "turn_id": turn_id}
        return self.call("deny", requests.Approve, **given, key=key)

    def compact(self, chat_id: Id, *, key: str | None = None) -> Turn:
        """Have a chat at rest summarised, also one that failed because it was too long."""
        return self._turn("compact", requests.ChatCommand, chat_id=chat_id, key=key)

    def set_title(self, chat_id: Id, title: str, *, key: str | None = None) -> dict[str, Any]:
        """Name a chat; no model overwrites it."""
        return self.call("set_title", requests.SetTitle, chat_id=chat_id, title=title, key=key)

    def set_labels(
        self, chat_id: Id, labels: Mapping[str, str | None], *, key: str | None = None
    ) -> dict[str, Any]:
        """Add or change labels, or remove those that are None; the others stay."""
        return self.call("set_labels", requests.SetLabels, chat_id=chat_id, labels=labels, key=key)

    def set_budget(
        self,
        chat_id: Id,
        *,
        tokens: int | None = None,
        cost: float | str | None = None,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Say what a chat and its children may use together; what is left out has no limit."""
        given = {"tokens": tokens, "cost": None if cost is None else str(cost)}
        budget = {name: value for name, value in given.items() if value is not None}
        return self.call("set_budget", requests.SetBudget, chat_id=chat_id, budget=budget, key=key)

    def archive(self, chat_id: Id, *, key: str | None = None) -> dict[str, Any]:
        """Archive a chat and its children."""
        return self.call("archive", requests.ChatCommand, chat_id=chat_id, key=key)

    def unarchive(self, chat_id: Id, *, key: str | None = None) -> dict[str, Any]:
        """Bring a chat and its children back."""
        return self.call("unarchive", requests.ChatCommand, chat_id=chat_id, key=key)

    def get_chat(self, chat_id: Id) -> dict[str, Any]:
        """One chat: status, queue, open calls, error, usage and budget."""
        return self.call("get_chat", requests.OneChat, chat_id=chat_id)

    def get_usage(
        self, owner: str, *, since: datetime | None = None, until: datetime | None = None
    ) -> dict[str, Any]:
        """What an owner's chats used, by model: from `since`, to before `until`, with time zone."""
        return self.call("get_usage", requests.GetUsage, owner=owner, since=since, until=until)

    def list_chats(self, owner: str, **filters: Any) -> dict[str, Any]:
        """A page of an owner's chats, newest first; `next` goes into `before` for the one after.

        Filters: `status`, `labels` (all of them), `archived` (False, unless you say True or None
        for both), `roots` (no children), `parent_id`, `root_id` (a whole tree), `title` (a piece
        of it), `before`, `limit`.
        """
        return self.call("list_chats", requests.ListChats, owner=owner, **filters)

    def get_steps(
        self, chat_id: Id, *, before: int | None = None, limit: int = 100
    ) -> dict[str, Any]:
        """What a chat's steps took, newest first; `next` goes into `before` for the page after.

        Each says which worker ran it, how it ended, its tokens, and where its milliseconds went.
        """
        return self.call(
            "get_steps", requests.GetSteps, chat_id=chat_id, before=before, limit=limit
        )

    def get_messages(
        self,
        chat_id: Id,
        *,
        after: int = 0,
        before: int | None = None,
        newest_first: bool | None = None,
        limit: int = 100,
    ) -> dict[str, Any]:
        """A page of a chat's messages: oldest first after one, or newest first before one.

        `next` goes into `after` or `before` for the page behind it; None: there is none. With
        `newest_first`, and without `before`, it begins with the last message.
        """
        return self.call(
            "get_messages",
            requests.GetMessages,
            chat_id=chat_id,
            after=after,
            before=before,
            newest_first=newest_first,
            limit=limit,
        )

    # -- streams ----------------------------------------------------------------------------

    def stream(
        self, chat_id: Id, *, after: str | None = None, idle_seconds: float = 5.0
    ) -> Iterator[StreamEvent | None]:
        """Follow a chat's events after a cursor, for ever; None when nothing came for a while.

        Every event has a `cursor` to go on from later, in any process. A `gap` event says that
        something was missed: read `get_messages` again.
        """
        name = streams.key_of(self._prefix, chat_id)
        return streams.read(self._connect(), name, after=after, block_seconds=idle_seconds)

    def follow(
        self, chat_id: Id, *, after: str | None = None, idle_seconds: float = 5.0
    ) -> Iterator[StreamEvent | None]:
        """Give a chat's messages so far as `message` events, its status, then events as `stream`.

        Nothing is missed or doubled in between, nor when events were lost: the messages are read
        again then. With a cursor it goes on from there, without what came before.
        """
        return Follower(self, chat_id, idle_seconds).events(after)

    def cursor(self, chat_id: Id) -> str:
        """The cursor behind all events so far. Take it before you read messages, then `stream`."""
        return streams.latest(self._connect(), streams.key_of(self._prefix, chat_id))

    def result(self, turn_id: Id) -> AsyncResult:
        """A turn's result."""
        return AsyncResult(str(turn_id), app=self.app)

    # -- plumbing ---------------------------------------------------------------------------

    def call(self, verb: str, kind: type[requests.Request], **arguments: Any) -> dict[str, Any]:
        """Run a front-door task and wait for what it says."""
        # None stands for "not said", but for `archived`: whether archived or not.
        given = {
            name: value
            for name, value in arguments.items()
            if value is not None or name == "archived"
        }
        checked = requests.check(kind, given).model_dump(mode="json", exclude_unset=True)
        left = self._timeout
        while verb.startswith(("get_", "list_")) and left > ASK_AGAIN_SECONDS:
            with suppress(NoAnswer):
                return self._ask(verb, checked, ASK_AGAIN_SECONDS)
            left -= ASK_AGAIN_SECONDS
        return self._ask(verb, checked, left)

    def _ask(self, verb: str, arguments: dict[str, Any], timeout: float) -> dict[str, Any]:
        sent = self.app.send_task(
            f"rejoinder.{verb}",
            kwargs=arguments,
            queue="rejoinder.control",
            argsrepr="()",
            kwargsrepr=shown(arguments),
        )
        try:
            answer: dict[str, Any] = sent.get(timeout=timeout, disable_sync_subtasks=False)
        except NoAnswer:
            # Now, rather than when Python frees it: Celery tries for 20 s if Redis is gone by then.
            sent.backend.remove_pending_result(sent)
            raise
        return answer

    def _turn(self, verb: str, kind: type[requests.Request], **arguments: Any) -> Turn:
        answer = self.call(verb, kind, **arguments)
        return Turn(
            answer["chat_id"], answer["turn_id"], answer["status"], answer["queued_id"], self
        )

    def _connect(self) -> "redis.Redis":
        if self._redis is None:
            self._redis = redis.Redis.from_url(self._redis_url, health_check_interval=30)
        return self._redis
