"""A page as a PNG, drawn by a browser that is on this machine already: Chromium or Chrome, headless, offline.

plotly's own way, kaleido, starts the same browser through a package more, once a figure, and gives figures without the
page around them.
"""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from porter.errors import UsageError

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
WIDTH = 1180  # pixels, as the pictures of the gallery
_TIMEOUT_S = 120
_MEASURE = """<script>
const measuring = setInterval(function () {
  if (![...document.querySelectorAll(".figure")].every(function (place) { return place._fullLayout; })) { return; }
  clearInterval(measuring);
  document.title = "height=" + Math.ceil(document.documentElement.getBoundingClientRect().height);
}, 50);
</script>"""


def photograph(page: str) -> bytes:
    """The whole page as PNG, 1180 pixels wide at one and a half to a point.

    Raises:
        UsageError: there is no browser, or it could not draw the page.
    """
    browser = find_browser()
    with tempfile.TemporaryDirectory() as place:
        path, picture = Path(place) / "page.html", Path(place) / "page.png"
        path.write_text(page.replace("</body>", f"{_MEASURE}</body>"), encoding="utf-8", errors="replace")
        dumped = _run(browser, place, f"--window-size={WIDTH},900", "--dump-dom", path.as_uri())
        found = re.search(r"<title>height=(\d+)</title>", dumped)
        height = int(found[1]) if found else 2000
        _run(browser, place, f"--window-size={WIDTH},{height}", f"--screenshot={picture}", path.as_uri())
        if not picture.is_file():
            raise UsageError(f"{browser} drew no picture", "a PNG of the page", "Open the HTML page instead (--html).")
        return picture.read_bytes()


def find_browser() -> str:
    """The browser's path.

    Raises:
        UsageError: there is none.
    """
    found = next(filter(None, map(shutil.which, (*NAMES, *PLACES))), None)
    if found is None:
        raise UsageError(
            f"--png needs a browser, and there is no {', '.join(NAMES[:3])} on PATH",
            "Chromium or Chrome, which draws the picture headless and offline",
            "Install one (apt-get install chromium), or write the page with --html.",
        )
    return found


def _run(browser: str, profile: str, *arguments: str) -> str:
    """What the browser prints, in a profile of its own."""
    fixed = [
        "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1.5",
        f"--user-data-dir={profile}/profile", "--virtual-time-budget=8000",
    ]  # fmt: skip
    try:
        ran = subprocess.run(
            [browser, *fixed, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise UsageError(
            f"{browser} could not draw the page: {str(said).strip()[-300:]}",
            "a browser that runs headless",
            "Try it by hand (--headless --screenshot), or write the page with --html.",
        ) from error
    return ran.stdout
