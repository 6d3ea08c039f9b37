"""Chromium, headless, for pages that must work as they lie on a disk."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu"]


def find_browser() -> str:
    """The browser of this machine: its own, or the one that `playwright install chromium` fetched.

    Raises: RuntimeError: there is none; a report that nobody opened is not tested.
    """
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is not None:
        return found
    with sync_playwright() as started:
        fetched = started.chromium.executable_path
    if not Path(fetched).exists():
        fix = "apt-get install chromium (as .ci/run does), or .venv/bin/playwright install chromium"
        raise RuntimeError(f"no Chromium on PATH ({', '.join(NAMES)}), and reports are tested in one: {fix}")
    return fetched


@contextmanager
def browser() -> Iterator[Browser]:
    path = find_browser()
    with sync_playwright() as started:
        running = started.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield running
        finally:
            running.close()


def until(page: Page, condition: str, *, seconds: float = 20) -> None:
    """Waits for a JavaScript expression; playwright's own wait needs eval, which the page forbids."""
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"never true: {condition}"
        page.wait_for_timeout(30)


class Opened:
    """A page in a window, with what it asked for and what it complained of."""

    def __init__(self, running: Browser, path: Path, *, width: int = 1280, scheme: str = "light", script: bool = True):
        self.context = running.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=script
        )
        self.page: Page = self.context.new_page()
        self.asked: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(path.resolve().as_uri())
        if script:
            until(self.page, "[...document.querySelectorAll('.figure:not(.hidden)')].every(each => each._fullLayout)")

    def close(self) -> None:
        self.context.close()
