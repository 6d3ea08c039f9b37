"""Keeps transformers' notes and progress bars out of porter's output."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Within it, transformers logs errors only and draws no bars."""
    from transformers.utils import logging as hf_logging

    logging: Any = hf_logging  # its functions have no types
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
