"""A client without an SDK, to see what the model server can do: asks, and throws answers away.

`python -m scripts.bench_parts.raw_client URL calls 16 2`: 16 connections, call after call, for two
seconds. `… words 1000 2`: 1,000 paced streams at once for about as long. Prints the seconds.
"""

import asyncio
import json
import sys
import time
from urllib.parse import urlsplit

from scripts.bench_parts.task import Task

PACE = 0.02


async def main(url: str, kind: str, size: int, seconds: float) -> None:
    """Ask on so many connections."""
    address = urlsplit(url)
    until = time.monotonic() + seconds
    words = int(seconds / PACE)

    async def one(number: int) -> tuple[float, float]:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        paced = Task(f"raw{number}", calls=1, tokens=words, pace=PACE, crowd=size)
        task = paced if kind == "words" else Task(f"raw{number}")
        asks = {"stream": True, "messages": [{"role": "user", "content": task.text}]}
        body = json.dumps(asks).encode()
        request = b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        began = 0.0
        while True:
            writer.write(request)
            seen = b""
            while b"message_stop" not in seen:
                seen = seen[-20:] + await reader.read(2**16)
                began = began or time.monotonic()
            if kind == "words" or time.monotonic() > until:
                writer.close()
                return began, time.monotonic()

    times = await asyncio.gather(*(one(number) for number in range(size)))
    print(max(end for _, end in times) - min(began for began, _ in times))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
