"""Peers whose needs contradict ours or each other's: their environments, and a model exported for them.

    make peers                                                    makes runs/peers/onnx, openvino, infinity …
    runs/peers/onnx/bin/python bench/peers.py onnx MODEL FOLDER   exports

Exporting is a process of its own, so that what it takes is no part of the memory of one that is measured.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

from labelled import KEPT

PLACE = KEPT.parent / "peers"
_IMPORTS = {
    "onnx": "optimum.onnxruntime, sentence_transformers",
    "openvino": "optimum.intel.openvino, sentence_transformers",
    "infinity": "infinity_emb",
    "tracer": "tracer",
    "stuntd": "stuntd.train.pooled",
}
_KIND = "avx512_vnni" if "avx512_vnni" in Path("/proc/cpuinfo").read_text() else "avx2"
# below the folder
FLOAT = "onnx/model.onnx"
INT8 = {"avx2": "onnx/model_quint8_avx2.onnx", "avx512_vnni": "onnx/model_qint8_avx512_vnni.onnx"}[_KIND]


def main() -> None:
    """Exported and quantised as sentence-transformers' documentation says."""
    from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

    backend, model, folder = sys.argv[1:]
    SentenceTransformer(model, backend=backend).save_pretrained(folder)
    if backend == "onnx":
        export_dynamic_quantized_onnx_model(SentenceTransformer(folder, backend="onnx"), _KIND, folder)


def interpreter(peer: str, place: Path) -> str | None:
    """The peer's own, if it is there and finds what it needs."""
    python = place / peer / "bin" / "python"
    found = (
        python.exists()
        and not subprocess.run(
            [str(python), "-c", f"import {_IMPORTS[peer]}"], capture_output=True
        ).returncode
    )
    return str(python) if found else None


def export(python: str, backend: str, model: str, folder: Path) -> str:
    """Runs this script by an interpreter; returns the folder, which sentence-transformers opens."""
    made = folder / backend
    subprocess.run([python, __file__, backend, model, str(made)], check=True, stdout=sys.stderr)
    return str(made)


def session_settings(threads: int) -> dict[str, Any]:
    """For sentence-transformers: ONNX Runtime on so many threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return {"session_options": options, "provider": "CPUExecutionProvider"}


if __name__ == "__main__":
    main()
