"""Durable agent chats on the Celery you already run."""

__version__ = "0.1.0"
