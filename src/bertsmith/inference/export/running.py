"""Sequences through a graph: padded batches of any company, on the left or on the right.

B sequences, L tokens of the longest.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertsmith.errors import ModelError
from bertsmith.inference.export.arrangements import Arrangement
from bertsmith.inference.export.source import Answer, Source
from bertsmith.tasks.examples.encoding import Window

if TYPE_CHECKING:
    from onnx import ModelProto

Feed = Mapping[str, npt.NDArray[np.int64]]
Run = Callable[[Feed], Sequence[npt.NDArray[Any]]]


def onnx_run(graph: "ModelProto | Path") -> Run:
    """By ONNX Runtime on the processor, with its usual optimisations."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = False  # it would keep what the longest batch took
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # others may want the core
    session = onnxruntime.InferenceSession(
        str(graph) if isinstance(graph, Path) else graph.SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )
    names = [output.name for output in session.get_outputs()]
    return lambda feed: session.run(names, dict(feed))


def openvino_run(path: Path, names: Sequence[str]) -> Run:
    """By OpenVINO on the processor, in float32: left alone it takes bfloat16 where the processor has it."""
    import openvino  # type: ignore[import-untyped]

    compiled = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(feed: Feed) -> list[npt.NDArray[Any]]:
        found = compiled(dict(feed))
        return [np.array(found[name]) for name in names]

    return run


def run_sequences(
    run: Run, source: Source, windows: Sequence[Window], arrangement: Arrangement
) -> list[Answer]:
    """What the graph says of each, in their order. Raises ModelError for values that are not finite."""
    found: list[Answer | None] = [None] * len(windows)
    for numbers in arrangement.batches:
        some = [windows[number] for number in numbers]
        feed, starts = padded_feed(some, source, left=arrangement.left)
        outputs = run(feed)
        for row, (number, window, start) in enumerate(zip(numbers, some, starts, strict=True)):
            answer = source.padded.head.of_sequence(outputs, row, start + window.rows)
            found[number] = answer
            if not np.isfinite(answer).all():
                raise ModelError(
                    f"The graph gives values that are not finite for a sequence of {len(window.token_ids)} "
                    f"tokens ({arrangement.name}): its model can't be exported."
                )
    return [each for each in found if each is not None]


def padded_feed(
    windows: Sequence[Window], source: Source, *, left: bool
) -> tuple[dict[str, npt.NDArray[np.int64]], list[int]]:
    """(B, L) of each input, and where each sequence begins."""
    longest = max(len(window.token_ids) for window in windows)
    ids = np.full((len(windows), longest), source.tokenizer.pad_id, np.int64)
    mask, segments = np.zeros_like(ids), np.zeros_like(ids)
    starts = []
    for row, window in enumerate(windows):
        length = len(window.token_ids)
        start = longest - length if left else 0
        place = slice(start, start + length)
        ids[row, place], mask[row, place], segments[row, place] = window.token_ids, 1, window.segment_ids
        starts.append(start)
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
    return {name: inputs[name] for name in source.padded.inputs}, starts
