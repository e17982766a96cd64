"""A model as ONNX graphs, in float32 and in this processor's int8, for the sides that ONNX Runtime computes.

    onnx/bin/python bench/onnx_export.py MODEL FOLDER

A process of its own, so that what exporting takes is no part of the memory of one that is measured. It needs
an environment with sentence-transformers and optimum-onnx; bench/embedding.py says how to make one.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

_KIND = "avx512_vnni" if "avx512_vnni" in Path("/proc/cpuinfo").read_text() else "avx2"
# below the folder
FLOAT = "onnx/model.onnx"
INT8 = {"avx2": "onnx/model_quint8_avx2.onnx", "avx512_vnni": "onnx/model_qint8_avx512_vnni.onnx"}[_KIND]


def main() -> None:
    """Exported and quantised as sentence-transformers' documentation says."""
    from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

    model, folder = sys.argv[1:]
    SentenceTransformer(model, backend="onnx").save_pretrained(folder)
    export_dynamic_quantized_onnx_model(SentenceTransformer(folder, backend="onnx"), _KIND, folder)


def has_onnx(python: str) -> bool:
    """Whether the interpreter finds what the ONNX sides need."""
    command = [python, "-c", "import optimum.onnxruntime, sentence_transformers"]
    return subprocess.run(command, capture_output=True).returncode == 0


def export(python: str, model: str, folder: Path) -> str:
    """Runs this script by an interpreter; returns the folder, which sentence-transformers opens."""
    subprocess.run([python, __file__, model, str(folder)], check=True, stdout=sys.stderr)
    return str(folder)


def session_settings(threads: int) -> dict[str, Any]:
    """For sentence-transformers: ONNX Runtime on so many threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return {"session_options": options, "provider": "CPUExecutionProvider"}


if __name__ == "__main__":
    main()
