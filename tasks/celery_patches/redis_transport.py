"""kombu's way to Redis."""

from kombu.transport.redis import Channel
from redis.exceptions import ConnectionError as LostConnection

from tasks.celery_patches.replacing import Replace


def survive_lost_connections(replace: Replace) -> None:
    """Let a worker outlive the loss of its connection while it holds a message.

    kombu 5.7 with celery 5.7; the same error in celery/kombu#582 and #970. After the loss, Celery
    collects the connection (its transport then has no client) and closes it, and the channel
    restores its unacknowledged messages through that client. The AttributeError is none of the
    errors that Celery expects there, so the worker exits. The same happens to a late
    acknowledgement on the dead channel. Say what it is: a lost connection.
    """
    original = Channel._connparams  # noqa: SLF001

    def parameters(self: Channel, *args: object, **options: object) -> object:
        if getattr(self.connection, "client", None) is None:
            raise LostConnection("This channel's connection is gone")
        return original(self, *args, **options)  # type: ignore[no-untyped-call]

    replace(Channel, "_connparams", parameters)
