"""A view of live parts: what is being written, and when it is void.

The rest is in the tests of random histories, which compare views with rows.
"""

from typing import Any

from rejoinder.streams import StreamEvent
from rejoinder.view import ChatView, LivePart


def part(seq: int, text: str, of: str = "text", **more: Any) -> StreamEvent:
    told = {"of": of, "index": 0, "text": text, "history_version": 3, "attempt": 0}
    return StreamEvent("", "part", {**told, "seq": seq, "n": 1, **more})


def event(kind: str, /, **data: Any) -> StreamEvent:
    return StreamEvent("", kind, data)


def message(message_id: int, version: int, **more: Any) -> StreamEvent:
    said = {"id": message_id, "role": "assistant", "parts": [], "version": version}
    return event("message", **said, **more)


def seen(*events: StreamEvent) -> ChatView:
    view = ChatView()
    for each in events:
        view.apply(each)
    return view


def test_parts_are_put_together() -> None:
    view = seen(
        part(1, "Let me ", index=1),
        part(4, "see.", index=1, n=3),
        part(5, "Hm.", "reasoning", index=0),
        part(6, '{"a"', "tool_call", index=2, call_id="c", name="add"),
        part(7, ": 1}", "tool_call", index=2, call_id="c", name="add"),
        event("part", of="end", index=2, history_version=3, attempt=0, seq=8, n=1),
    )
    assert view.live == [
        LivePart("reasoning", "Hm."),
        LivePart("text", "Let me see."),
        LivePart("tool_call", '{"a": 1}', "c", "add", done=True),
    ]
    assert view.live_text == "Let me see."


def test_what_comes_after_a_hole_is_not_shown() -> None:
    assert seen(part(1, "One "), part(3, "three")).live_text == "One "
    assert seen(part(2, "two")).live == []


def test_a_stored_message_replaces_them() -> None:
    assert seen(part(1, "One"), message(7, 4)).live == []


def test_a_message_that_they_follow_does_not() -> None:
    """A message of another process may come late."""
    assert seen(part(1, "One"), message(6, 3)).live_text == "One"


def test_a_message_that_only_the_model_sees_replaces_them_too() -> None:
    view = seen(part(1, "One"), message(7, 4, visibility="model"))
    assert (view.live, view.messages) == ([], [])


def test_another_attempt_begins_anew() -> None:
    assert seen(part(1, "One"), part(1, "Two", attempt=1)).live_text == "Two"
    assert seen(part(1, "One"), part(1, "Two")).live_text == "Two", "another worker, same attempt"
    assert seen(part(1, "Two", attempt=1), part(1, "One")).live_text == "Two", "told late"


def test_what_makes_them_void() -> None:
    for end in (
        event("preview_reset", history_version=3, attempt=0),
        event("gap", after="1-0"),
        event("history_reset", **{"from": 2}, version=4),
        event("status", status="pending", turn_id="t", version=4),
        event("status", status="waiting", turn_id=None, version=4),
    ):
        assert seen(part(1, "One"), end).live == [], end


def test_what_does_not() -> None:
    for other in (
        event("status", status="interrupting", turn_id="t", version=4),
        event("queue", length=0, ids=[], added=[], version=4),
        event("title", title="A name", source="user", version=4),
        event("tool", call_id="c", state="progress"),
        event("a kind that is not known yet", version=4),
    ):
        assert seen(part(1, "One"), other).live_text == "One", other


def test_a_late_status_does_not_undo_a_newer_one() -> None:
    view = seen(
        event("status", status="running", turn_id="t", run_after=None, version=5),
        event("status", status="pending", turn_id="t", run_after="soon", attempt=1, version=4),
    )
    assert (view.status, view.state["run_after"], view.state["attempt"]) == ("running", None, 1)
    assert view.busy


def test_a_message_that_was_edited_away_does_not_come_back() -> None:
    reset = event("history_reset", **{"from": 6}, version=5)
    view = seen(message(5, 2), reset, message(8, 5), message(6, 3), message(7, 4))
    assert [each["id"] for each in view.messages] == [5, 8]


def test_what_is_asked_is_shown_as_long_as_it_is() -> None:
    parked = event("status", status="requires_action", turn_id="t", version=5)
    asks = event("action_required", kind="calls", calls=[], version=5)
    assert seen(parked, asks).asked == {"kind": "calls", "calls": []}
    assert seen(asks, parked).asked == {"kind": "calls", "calls": []}
    goes_on = event("status", status="pending", turn_id="t", version=6)
    assert seen(parked, asks, goes_on).asked is None
    again = event("status", status="requires_action", turn_id="t", version=8)
    assert seen(parked, asks, goes_on, again).asked is None, "what is asked now is not known yet"
