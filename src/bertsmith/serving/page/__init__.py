"""The page at /, where every model can be tried in a browser and its answers are explained. Read page.py
first.

page.py serves the files in static/, a description of each model, and explanations, which don't go through the
queue.

This file defines how the files of a page are sent, for this page and the mirror's. They contain nothing from
other machines, and the policy below forbids a browser to fetch anything from there.
"""

from pathlib import Path

from bertsmith.reporting.page import WEB

FOLDERS = (WEB, Path(__file__).parent / "static")
PAGE_FILES = "/page/static/"  # served without a key, like /: these files are part of the package
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "content-security-policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # the next version of the service has other files
}
