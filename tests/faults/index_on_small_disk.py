"""A script: an index on a disk of one megabyte, and more documents than that has room for."""

import ctypes
import json
import subprocess
import sys
from pathlib import Path

from index_documents import SETTINGS, Counting, rows_of, write_documents

from bertsmith.errors import ResourceError
from bertsmith.inference.index.index import Index

_NEW_NAMESPACE = 0x00020000


def main(disk: Path, docs: Path) -> dict[str, object]:
    """A namespace is a thread's own: the disk has to be there before LanceDB starts its threads."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if (
        ctypes.CDLL(None).unshare(_NEW_NAMESPACE) != 0
        or subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True).returncode != 0
        or subprocess.run(mount, capture_output=True).returncode != 0
    ):
        return {"permitted": False}
    index = disk / "index"
    build(docs, index)
    before = rows_of(index)
    large = [f"big{number}.txt" for number in range(30)]
    try:
        build(write_documents(docs, 2, large), index)
    except ResourceError as error:
        kept = before.items() <= rows_of(index).items()
        for name in large:
            (docs / name).unlink()
        return {"permitted": True, "message": str(error), "kept": kept}
    return {"permitted": True, "message": "there was room", "kept": False}


def build(docs: Path, index: Path) -> None:
    Index.build([docs], index, embedder=Counting(), passages=SETTINGS)


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))))
