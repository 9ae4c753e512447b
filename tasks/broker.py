"""What is known of the broker, and how task events go to it."""

import logging
from typing import Any

from celery import bootsteps
from celery.worker.consumer.events import Events
from kombu.common import ignore_errors
from kombu.transport.redis import Channel

from tasks import app

log = logging.getLogger(__name__)

STEPS = "rejoinder.steps"
EVENTS_SECONDS = 0.2
MOST_EVENTS = 1000
"""That are gathered: beyond that, whoever adds one sends them."""


def waiting_steps() -> int:
    """How many step messages wait in the broker; 0 if it cannot say."""
    try:
        with app.connection_or_acquire() as connection:
            channel = connection.default_channel
            if isinstance(channel, Channel):
                # To kombu 5.7 a queue under a prefix does not exist; and an empty one never does.
                return int(channel._size(STEPS))  # type: ignore[no-untyped-call]  # noqa: SLF001
            return int(channel.queue_declare(queue=STEPS, passive=True).message_count)
    except Exception as error:  # noqa: BLE001  # every transport has errors of its own
        log.info("The length of %s is not known: %s", STEPS, error)
        return 0


class GatheredEvents(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
    """Sends task events, for Flower and others who watch, a few times a second.

    Celery 5.7 publishes them in every round of the main loop, and each publication takes longer
    than many a step's own work there. Nobody who watches sees the difference.
    """

    requires = (Events,)

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        """Begin, each time the loop does."""
        dispatcher = consumer.event_dispatcher
        if dispatcher is not None:
            dispatcher.on_send_buffered = None
            dispatcher.buffer_limit = MOST_EVENTS
            hub.timer.call_repeatedly(EVENTS_SECONDS, self.flush, (consumer,))

    def flush(self, consumer: Any) -> None:
        """Send what there is."""
        if consumer.event_dispatcher is not None:
            consumer.event_dispatcher.flush()

    def stop(self, consumer: Any) -> None:
        """Send the rest, while there is a connection."""
        ignore_errors(consumer, self.flush, consumer)  # type: ignore[no-untyped-call]
