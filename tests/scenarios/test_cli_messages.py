"""The commands for messages, as a person types them, against a real worker."""

import json
from typing import Any

from rejoinder.core.state import Status
from tests.programs import program
from tests.scenarios.test_cli import Shell
from tests.scenarios.test_cli import shell as shell  # a fixture
from tests.waiting import wait_until


def busy(shell: Shell) -> str:
    """A chat that writes a long story."""
    chat = shell.send("a story", "--model", "scripted:long", "--owner", "poe")
    wait_until(lambda: shell.client.get_chat(chat)["status"] == Status.RUNNING, 30)
    return chat


def waiting(shell: Shell, chat: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(shell.run("queue", "list", chat, "--json"))
    return found


def test_the_queue_is_listed_deleted_from_and_promoted(shell: Shell) -> None:
    chat = busy(shell)
    assert shell.run("queue", "list", chat) == "Nothing waits.\n"
    for text, when in (("first", "queue"), ("second", "queue"), ("third", "steer")):
        shell.run("send", text, "--chat", chat, "--when-busy", when)
    ids = [each["id"] for each in waiting(shell, chat)]
    assert shell.run("queue", "list", chat) == (
        f"{ids[0]}: first\n{ids[1]}: second\n{ids[2]} (joins the turn): third\n"
    )
    assert f"  steers ({ids[2]}): third" in shell.run("show", chat)
    assert shell.run("queue", "delete", chat, str(ids[0])) == "running\n"
    assert shell.run("queue", "promote", chat, str(ids[2])).strip() in ("interrupting", "pending")
    assert "is not in the queue" in shell.run("queue", "delete", chat, str(ids[0]), code=1)
    wait_until(lambda: [q["id"] for q in waiting(shell, chat)] == [ids[1]], 30)
    shell.run("queue", "delete", chat, str(ids[1]))
    assert shell.run("interrupt", chat, "--wait") == "waiting\n"


def test_messages_are_shown_by_pages_and_edited_by_id(shell: Shell) -> None:
    chat = shell.send("hello", "--owner", "poe")
    wait_until(lambda: shell.client.get_chat(chat)["status"] == Status.WAITING, 30)
    page = shell.run("messages", chat, "--limit", "1")
    (first,) = json.loads(shell.run("messages", chat, "--limit", "1", "--json"))["messages"]
    assert page.startswith(f"{first['id']} user ")
    assert f"More: rejoinder messages {chat} --after {first['id']}" in page
    newest = json.loads(shell.run("messages", chat, "--newest", "--json"))["messages"]
    assert [each["role"] for each in newest] == ["assistant", "user"]
    older = json.loads(shell.run("messages", chat, "--before", str(newest[0]["id"]), "--json"))
    assert older == {"messages": [first], "next": None}
    assert "leave it out" in shell.run("messages", chat, "--after", "1", "--newest", code=1)
    assert shell.run("edit", chat, str(first["id"]), "bye", "--wait") == "You said: bye\n"
    assert "not in the history" in shell.run("edit", chat, str(first["id"]), "no", code=1)
    assert "choose one" in shell.run("edit", chat, "1", "x", "--wait", "--follow", code=1)


def test_a_failed_chat_is_tried_again(shell: Shell) -> None:
    chat = shell.send("x", "--model", "scripted:env:FAILS")
    wait_until(lambda: shell.client.get_chat(chat)["status"] == Status.ERROR, 30)
    assert shell.run("retry", chat, "--wait", code=1) == "Error: The key is bad. (auth)\n"
    assert "✗ The key is bad." in shell.run("retry", chat, "--follow", code=1)


def test_chats_are_labelled_put_away_and_found(shell: Shell) -> None:
    chats = [shell.send(text, "--owner", "eve") for text in ("about cats", "about dogs")]
    for chat in chats:
        wait_until(lambda: shell.client.get_chat(chat)["status"] == Status.WAITING, 30)  # noqa: B023

    def ls(*options: str) -> list[str]:
        found = json.loads(shell.run("ls", "--owner", "eve", "--json", *options))
        return [each["id"] for each in found["chats"]]

    assert json.loads(shell.run("label", chats[0], "kind=pet", "size=small")) == {
        "kind": "pet",
        "size": "small",
    }
    assert json.loads(shell.run("label", chats[0], "size=")) == {"kind": "pet"}
    assert "is no label" in shell.run("label", chats[0], "size", code=1)
    assert ls("--label", "kind=pet") == [chats[0]]
    assert ls("--title", "DOGS") == [chats[1]]
    assert "about dogs" in shell.run("ls", "--owner", "eve")
    assert f"--before {chats[1]}" in shell.run("ls", "--owner", "eve", "--limit", "1")
    assert ls("--before", chats[1]) == [chats[0]]
    assert ls("--tree", chats[0]) == [chats[0]]
    assert ls("--parent", chats[0]) == []
    assert shell.run("archive", chats[0]) == "archived\n"
    assert shell.run("archive", chats[0]) == "it was archived already\n"
    assert (ls(), ls("--archived"), ls("--all")) == ([chats[1]], [chats[0]], chats[::-1])
    assert shell.run("unarchive", chats[0]) == "unarchived\n"
    assert ls("--roots") == chats[::-1]


def test_slash_commands_on_a_pipe(shell: Shell) -> None:
    typed = (
        "/title x\none\n/title My chat\n/queue\n/edit two\n/nonsense\n/delete x\n//slash\n/help\n"
    )
    said = shell.run("chat", "--model", "scripted:echo", typed=typed)
    in_order = [
        "✗ Nothing was said yet: begin with a message",
        "You said: one",
        "· My chat",
        "· nothing waits",
        "You said: two",
        "✗ There is no command /nonsense: /help lists them",
        "✗ 'x' is no id: /queue shows the ids",
        "You said: /slash",
        "  /steer TEXT      say it to the turn that runs",
    ]
    places = [said.index(words) for words in in_order]
    assert places == sorted(places)


def test_slash_commands_on_a_terminal(shell: Shell) -> None:
    arguments = ("-m", "rejoinder", "chat", "--model", "scripted:long")
    with program(*arguments, env=shell.env, terminal=True) as chat:
        chat.wait_for("/help says more")
        chat.type("a story\r")
        chat.wait_for("This is sentence 1")
        chat.type("/steer shorter\r")
        chat.wait_for("1 queued")
        chat.type("/queue\r")
        chat.wait_for("shorter (steers)")
        chat.type("/nonsense\r")
        chat.wait_for("There is no command /nonsense")
        chat.type("/stop\r")
        chat.wait_for("stopped; what was written stays")
        chat.type("\x03")
        chat.wait_for("stopped; what was written stays", times=2)
        chat.type("\x04")
        assert chat.end() == 0
        assert "Traceback" not in chat.text
