"""The unit tier's own rule holds: no connection leaves a unit test."""

from __future__ import annotations

import socket

import psycopg2
import pytest


def test_a_unit_test_that_connects_fails_with_what_to_do() -> None:
    with socket.socket() as opened, pytest.raises(pytest.fail.Exception, match="move the test"):
        opened.connect(("127.0.0.1", 9))


def test_a_unit_test_that_connects_to_postgres_fails_too() -> None:
    with pytest.raises(pytest.fail.Exception, match="move the test"):
        psycopg2.connect("host=/nowhere")
