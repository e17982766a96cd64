"""The page at /: every model tried in a browser, with what its answer rests on. Read page.py first.

In: the service. Out: the files of static/, what the page has to know of each model, and explanations, which
are computed beside the queue.

Here stands how a page's files are sent, this one's and the mirror's: nothing comes from another machine, and
a browser that obeys the policy below would not fetch it either.
"""

from pathlib import Path

from bertsmith.reporting.page import WEB

FOLDERS = (WEB, Path(__file__).parent / "static")
PAGE_FILES = "/page/static/"  # what is there, and at /, is in the package
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
