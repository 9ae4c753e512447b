"""Another team's app: its own Celery, nothing of ours. Run as a script; prints JSON.

python stranger.py BROKER_URL
"""

import json
import sys

from celery import Celery
from celery.result import AsyncResult

SECRET = "the stranger's secret"  # what a user says, not a password

app = Celery("billing", broker=sys.argv[1], backend=sys.argv[1])


def ask(name: str, **kwargs: object) -> dict[str, object]:
    sent = app.send_task(f"rejoinder.{name}", kwargs=kwargs, queue="rejoinder.control")
    return sent.get(timeout=30)  # type: ignore[no-any-return]


created = ask("create_chat", content=SECRET, owner="billing", model="scripted:echo")
answer = AsyncResult(str(created["turn_id"]), app=app).get(timeout=30)
sent = ask("send_message", chat_id=created["chat_id"], content="more")
second = AsyncResult(str(sent["turn_id"]), app=app).get(timeout=30)
try:
    ask("send_message", chat_id=created["chat_id"], content="")
except Exception as error:  # noqa: BLE001  # the point: what does a stranger see?
    refusal = [type(error).__name__, [str(each) for each in error.args]]
failing = ask(
    "create_chat",
    content="go",
    owner="billing",
    model="scripted:inline",
    options={"extra": {"script": [{"fail": [{"kind": "auth"}]}]}},
)
try:
    AsyncResult(str(failing["turn_id"]), app=app).get(timeout=30)
except Exception as error:  # noqa: BLE001
    failure = [type(error).__name__, [str(each) for each in error.args]]
print(json.dumps({"answer": answer, "second": second, "refusal": refusal, "failure": failure}))  # noqa: T201
print(json.dumps(sorted(m for m in sys.modules if m.startswith("rejoinder"))))  # noqa: T201
