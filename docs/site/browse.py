"""Open every page of the built site in a browser, and look for what a reader would miss.

    python docs/site/browse.py [--shots FOLDER]

Every page has to load without an error in the console, ask for nothing from elsewhere, show its
pictures, have its first text without scripts, fit a phone, and weigh less than 1 MB without
pictures. At three widths, light and dark, no picture is clipped and no code scrolls sideways. The
search has to find what is looked for. Needs `pip install playwright` and Chromium: that of
playwright, or one on the PATH.
"""

import argparse
import contextlib
import functools
import http.server
import itertools
import re
import shutil
import sys
import threading
from collections import Counter
from pathlib import Path

from playwright.sync_api import TimeoutError, sync_playwright

SITE = Path(__file__).resolve().parents[2] / "build" / "docs" / "site"
# What readers search for, and a page that is among the first five results.
SEARCHED = {
    "AdaScale": "optimizers.html",
    "Horovod": "migration/horovod.html",
    "must be created before TensorFlow runs its first operation": "troubleshooting.html",
    "which learning rate": "choosing.html",
    "resume": "how_to/checkpoints.html",
    "job dies after 24 h": "how_to/checkpoints.html",
    "my job dies on Slurm": "troubleshooting.html#a-job-dies",
    "preemption": "reliability/preemption.html",
    "exit code 75": "reliability/preemption.html",
    "loss is NaN": "reliability/nan.html",
    "out of memory": "reliability/killed_workers.html",
    "OOM": "reliability/killed_workers.html",
    "error TFA-501": "troubleshooting.html#tfa-501",
    "TFA-103": "troubleshooting.html#tfa-103",
    "two GPUs one machine": "launcher.html",
    "GPU status": "install.html",
    "colab": "how_to/notebooks.html",
    "Kubernetes": "clusters.html#kubernetes",
    "checkpoints": "how_to/checkpoints.html",
    "mixed precision": "how_to/mixed_precision.html",
    "sparse embeddings": "how_to/embeddings.html",
    "custom loop": "tutorials/custom_loop.html",
    "Weights & Biases": "how_to/trackers.html",
    "wandb": "how_to/trackers.html",
    "timeline": "how_to/profiling.html",
    "is it faster": "scaling.html#will-it-pay-on-my-cluster",
    "does it work with Keras 2": "versions.html",
    "write my own rule": "rules.html#your-own-rule",
    "faster on CPUs": "transport.html",
}
PHONE = {"width": 390, "height": 844}
WIDTHS = (390, 1400, 1920)
SCHEMES = ("light", "dark")
COUNTED = ("clipped", "pictures", "scrolling", "blocks of code")
# Pictures that reach out of a box that cuts them off, and blocks of code wider than their box.
CUT_OFF = """() => {
  const isClipped = image => {
    const right = image.getBoundingClientRect().right - 1;
    for (let box = image.parentElement; box; box = box.parentElement) {
      const cuts = getComputedStyle(box).overflowX !== "visible";
      if (cuts && right > box.getBoundingClientRect().right) return true;
    }
    return right > window.innerWidth;
  };
  const isScrolled = code => [code, code.parentElement].some(
    box => box.scrollWidth - box.clientWidth > 1 && getComputedStyle(box).overflowX !== "visible");
  const pictures = [...document.querySelectorAll("article img")];
  const blocks = [...document.querySelectorAll("article pre > code")];
  return [pictures.filter(isClipped).length, pictures.length,
          blocks.filter(isScrolled).length, blocks.length];
}"""
MOST_BYTES = 1_000_000
SECONDS = 60  # for the first answer of the search


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the site and says nothing."""

    def log_message(self, *_):
        """Print no line for a request."""


def serve(folder):
    """Return the address at which a folder is served, until the process ends."""
    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def faults(page, address):
    """Open a page, and return what is wrong with it."""
    found, weight = [], 0

    def weigh(response):
        nonlocal weight
        kind = response.headers.get("content-type", "")
        if not kind.startswith("image/"):
            weight += int(response.headers.get("content-length", 0))

    own = address.partition("/")[0] + "//" + address.split("/")[2]
    listeners = {
        "console": lambda message: (
            message.type in ("error", "warning") and found.append(message.text)
        ),
        "pageerror": lambda error: found.append(str(error)),
        "request": lambda request: (
            request.url.startswith((own, "data:", "blob:"))
            or found.append(f"asks for {request.url}")
        ),
        "response": weigh,
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    page.goto(address, wait_until="networkidle")
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    if weight > MOST_BYTES:
        found.append(f"weighs {weight} bytes")
    if broken := page.evaluate("[...document.images].filter(i => !i.naturalWidth).map(i => i.src)"):
        found.append(f"pictures that do not load: {broken}")
    too_wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    if too_wide > 1:
        found.append(f"{too_wide} pixels wider than a phone")
    return found


def cut_off(page, address, totals):
    """Return what is cut off on a page: clipped pictures, and code that scrolls.

    Args:
        page: of the browser.
        address: of the page.
        totals: a Counter of what is found and what there is, by width and scheme.
    """
    page.goto(address)  # until its pictures are there
    found = []
    for width, scheme in itertools.product(WIDTHS, SCHEMES):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        counts = dict(zip(COUNTED, page.evaluate(CUT_OFF), strict=True))
        totals.update({(width, scheme, name): count for name, count in counts.items()})
        for name in ("clipped", "scrolling"):
            if counts[name]:
                found.append(f"{counts[name]} {name} at {width} pixels, {scheme}")
    return found


def finds(page, address, words, expected):
    """Search as a reader does, and return what is wrong with the answer."""
    page.goto(f"{address}/index.html", wait_until="networkidle")
    page.keyboard.press("/")
    page.keyboard.type(words)
    link = page.locator(".md-search-result__link")
    with contextlib.suppress(TimeoutError):  # nothing is found
        link.first.wait_for(state="attached", timeout=SECONDS * 1000)
    page.wait_for_timeout(2000)  # of what was typed so far; the rest follows
    hrefs = [each.get_attribute("href") or "" for each in link.all()[:5]]
    hrefs = [re.sub(r"\?[^#]*", "", href) for href in hrefs]  # the words to mark
    return [] if any(expected in href for href in hrefs) else [f"search for {words}: {hrefs}"]


def main():
    """Check the site and return how many pages have a fault."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shots", type=Path, help="a folder for pictures of the pages")
    parser.add_argument("--only", default="", help="pages that have this in their address")
    shots, only = vars(parser.parse_args()).values()
    address, failed = serve(SITE), {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        phone, resized, totals = browser.new_page(viewport=PHONE), browser.new_page(), Counter()
        scriptless = browser.new_context(java_script_enabled=False).new_page()
        for path in sorted(SITE.rglob("*.html")):
            name = str(path.relative_to(SITE))
            if only not in name:
                continue
            found = faults(phone, f"{address}/{name}")
            scriptless.goto(f"{address}/{name}")
            if len(scriptless.inner_text("article")) < 30 and name != "404.html":
                found.append("has no text without scripts")
            found += cut_off(resized, f"{address}/{name}", totals)
            if found:
                failed[name] = found
        desktop = browser.new_page(viewport={"width": 1300, "height": 900})
        for words, expected in () if only else SEARCHED.items():
            if found := finds(desktop, address, words, expected):
                failed[words] = found
        if shots:
            take(browser, address, shots, only)
        browser.close()
    for width, scheme in itertools.product(WIDTHS, SCHEMES):
        counts = (f"{totals[width, scheme, name]} {name}" for name in COUNTED)
        print(f"{width} pixels, {scheme}: {', '.join(counts)}")
    for name, found in failed.items():
        print(f"{name}: {'; '.join(found)}")
    return min(len(failed), 125)  # an exit status


def take(browser, address, folder, only):
    """Save pictures of the pages of the navigation: wide, dark, and on a phone."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = {
        "wide": {"viewport": {"width": 1300, "height": 1600}},
        "dark": {"viewport": {"width": 1300, "height": 1600}, "color_scheme": "dark"},
        "phone": {"viewport": PHONE},
    }
    for kind, options in kinds.items():
        page = browser.new_page(**options)
        for path in sorted(SITE.rglob("*.html")):
            name = str(path.relative_to(SITE))
            if only in name and not name.startswith("repository/"):
                page.goto(f"{address}/{name}", wait_until="networkidle")
                page.screenshot(path=folder / f"{name.replace('/', '-')}-{kind}.png")


if __name__ == "__main__":
    sys.exit(main())
