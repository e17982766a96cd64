"""Whatever a service says, as lines of JSON on the standard error."""

import logging
import sys
from datetime import UTC, datetime

import orjson

LOG = logging.getLogger("bertsmith.serving")


class JsonLines(logging.Formatter):
    """Whatever is logged, as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        facts = getattr(record, "facts", None) or {"message": record.getMessage()}
        line = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            **facts,
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_UTC_Z).decode()


def log_to_stderr() -> None:
    """All that the service and its server say."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("bertsmith.serving", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
    LOG.setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
