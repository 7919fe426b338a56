"""Open every page of the built site in a browser, and look for what a reader would miss.

    python docs/site/browse.py [--shots FOLDER] [--only WORDS]

Every page has to load without an error in the console, ask for nothing from elsewhere, show its
pictures, fit a phone, and clip no picture. The search has to find what is looked for. Needs
`pip install playwright` and Chromium: that of playwright, or one on the PATH.
"""

import argparse
import functools
import http.server
import re
import shutil
import sys
import threading
from pathlib import Path

from playwright.sync_api import sync_playwright

SITE = Path(__file__).resolve().parents[2] / "build" / "docs" / "site"
# What readers search for, and a page that is among the first five results.
SEARCHED = {
    "Horovod": "horovod.html",
    "which learning rate": "choosing.html",
    "validation": "training.html",
    "clipnorm": "training.html",
    "steps_per_epoch": "data.html",
    "exit code 75": "troubleshooting.html",
    "out of memory": "troubleshooting.html#tfa-501",
    "error TFA-501": "troubleshooting.html#tfa-501",
    "Kubernetes": "clusters.html",
    "colab": "launching.html",
    "wandb": "trackers.html",
    "custom loop": "custom_loops.html",
}
SIZES = {"phone": (390, 844), "wide": (1400, 1000)}
CLIPPED = """() => [...document.querySelectorAll("article img")].filter(
  image => image.getBoundingClientRect().right > window.innerWidth + 1).length"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the site and prints nothing."""

    def log_message(self, *_):
        """Print no line for a request."""


def serve(folder):
    """Return the address at which a folder is served, until the process ends."""
    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def faults(page, address, own):
    """Open a page, and return what is wrong with it."""
    found = []
    listeners = {
        "console": lambda message: (
            message.type in ("error", "warning") and found.append(message.text)
        ),
        "pageerror": lambda error: found.append(str(error)),
        "request": lambda request: (
            request.url.startswith((own, "data:", "blob:"))
            or found.append(f"asks for {request.url}")
        ),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    page.goto(address, wait_until="networkidle")
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    if broken := page.evaluate("[...document.images].filter(i => !i.naturalWidth).map(i => i.src)"):
        found.append(f"pictures that do not load: {broken}")
    if (wide := page.evaluate("document.documentElement.scrollWidth - window.innerWidth")) > 1:
        found.append(f"{wide} pixels too wide")
    if clipped := page.evaluate(CLIPPED):
        found.append(f"{clipped} pictures are clipped")
    return found


def finds(page, address, words, expected):
    """Search as a reader does, and return what is wrong with the answer."""
    page.goto(f"{address}/index.html", wait_until="networkidle")
    page.keyboard.press("/")
    page.keyboard.type(words)
    page.wait_for_timeout(3000)
    links = page.locator(".md-search-result__link").all()[:5]
    hrefs = [re.sub(r"\?[^#]*", "", each.get_attribute("href") or "") for each in links]
    return [] if any(expected in href for href in hrefs) else [f"search: {hrefs}"]


def main():
    """Check the site and return how many pages have a fault."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shots", type=Path, help="a folder for pictures of the pages")
    parser.add_argument("--only", default="", help="pages that have this in their address")
    arguments = parser.parse_args()
    address, failed = serve(SITE), {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for kind, (width, height) in SIZES.items():
            page = browser.new_page(viewport={"width": width, "height": height})
            for path in sorted(SITE.rglob("*.html")):
                name = str(path.relative_to(SITE))
                if arguments.only not in name or "http-equiv" in path.read_text():
                    continue  # a redirect
                if found := faults(page, f"{address}/{name}", address):
                    failed[name, kind] = found
                if arguments.shots and not name.startswith("repository/"):
                    shot = arguments.shots / f"{name.replace('/', '-')}-{kind}.png"
                    page.screenshot(path=shot)
        for words, expected in {} if arguments.only else SEARCHED.items():
            if found := finds(page, address, words, expected):
                failed[words, "search"] = found
        browser.close()
    for (name, kind), found in failed.items():
        print(f"{name}, {kind}: {'; '.join(found)}")
    return min(len(failed), 125)  # an exit status


if __name__ == "__main__":
    sys.exit(main())
