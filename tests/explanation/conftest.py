"""Weights that these tests draw are cached for the session alone."""

from tests.models.tiny import porter_cache  # noqa: F401
