"""A comparison as a folder: results.json, report.html, and a TREC run file of each system under runs/."""

from pathlib import Path

from bertsmith.files import atomic_folder, write_json
from bertsmith.inference.ranking.report import render_comparison
from bertsmith.inference.ranking.results import Comparison
from bertsmith.text.retrieval.trec_run import write_run


def write_comparison(out: Path, found: Comparison, command: str) -> None:
    """`command` is what to type to get it again.

    Raises InputError when `out` exists, ResourceError when the disk is full; then nothing is left behind.
    """
    with atomic_folder(out) as folder:
        (folder / "runs").mkdir()
        for figures in found.figures:
            system = figures.system
            write_run(folder / "runs" / f"{system.name.lower()}.run", system.rankings, system.name)
        write_json(folder / "results.json", found.to_json())
        (folder / "report.html").write_text(render_comparison(found, command), encoding="utf-8")
