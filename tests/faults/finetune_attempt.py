"""Fine-tuning runs in processes of their own, and everything that two of them are compared by."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nursery
import torch
from nursery import CONTEXT, Attempt, Settings

from bertsmith.files import read_json, sha256
from bertsmith.model.bert import Bert
from bertsmith.model.checkpoint import save_checkpoint
from bertsmith.model.config import make_config
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.training.log import RunLog

# What depends on the clock.
_TIMES = {"elapsed", "tokens_per_second", "mfu", "time", "seconds"}
# Imported before the fork, or every process would take seconds for it.
nursery.IMPORTED += [
    "bertsmith.training.finetuning.finetune",
    "sklearn.linear_model",
    "sklearn.feature_extraction.text",
]

NewFinetuning = Callable[..., Settings]


def tiny_model(folder: Path, words: list[str], dropout: float = 0.1) -> Path:
    """A BERT of random weights that knows these words."""
    tokenizer = Tokenizer.from_pieces(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *words], lowercase=True
    )
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = make_config(
        {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 32} | shape | rates, "test"
    )
    torch.manual_seed(5)
    tensors = {f"encoder.{name}": tensor for name, tensor in Bert(config).state_dict().items()}
    save_checkpoint(folder, tensors, config, "BertModel", task="encoder", tokenizer=tokenizer)
    return folder


class FinetuneAttempt(Attempt):
    """One start of a fine-tuning run, which goes on where an earlier one ended."""

    def __init__(self, settings: Settings, *faults: nursery.Change, ranks: int = 1) -> None:
        self.out = Path(settings["out"])
        self.began, began = CONTEXT.Pipe(duplex=False)
        port = nursery._free_port() if ranks > 1 else 0
        self.processes = [
            CONTEXT.Process(target=finetune_in_child, args=(settings, faults, began, rank, ranks, port))
            for rank in range(ranks)
        ]
        for process in self.processes:
            process.start()
        began.close()


def finish_finetuning(settings: Settings, *faults: nursery.Change, ranks: int = 1) -> None:
    """Runs, or goes on, to the end."""
    attempt = FinetuneAttempt(settings, *faults, ranks=ranks)
    assert attempt.wait() == [0] * ranks, [attempt.complaint(rank) for rank in range(ranks)]


def finetune_in_child(
    settings: Settings, faults: tuple[nursery.Change, ...], began: Any, rank: int, ranks: int, port: int
) -> None:
    """What a forked process does."""
    from bertsmith.training import machine
    from bertsmith.training.finetuning import finetune

    nursery._be_quiet()
    nursery._be_rank(rank, ranks, port)
    machine.matmul_flops = lambda *_, **__: 1e11  # measuring the machine takes a second
    finetune.write_finetune_report = lambda *_: None  # and drawing pictures two
    for fault in faults:
        fault.install()
    began.send_bytes(b"now")
    try:
        changes = settings["changes"]
        given = {name: value for name, value in settings.items() if name not in ("task", "changes")}
        finetune.finetune(settings["task"], *changes, **given, resume=True)
    except BaseException as error:
        complaint = nursery._complaint_file(Path(settings["out"]), rank)
        complaint.write_text(f"{type(error).__name__}: {error}")
        os._exit(1)


def finetune_evidence(out: Path) -> dict[str, Any]:
    """Of a finished run: each step of each restart, the model and all that was said of it, to the bit."""
    restarts = sorted((out / "restarts").iterdir())
    return {
        "steps": [_records(folder, "step") for folder in restarts],
        "evaluations": [
            {record["step"]: record for record in _records(folder, "evaluation")} for folder in restarts
        ],
        "histories": [read_json(folder / "best" / "history.json") for folder in restarts],
        "kept": {str(p.relative_to(out)): sha256(p) for p in out.glob("restarts/*/best/weights.safetensors")},
        "model": sha256(out / "model" / "model.safetensors"),
        "results": _without_times(read_json(out / "results.json")),
        "predictions": (out / "predictions" / "dev.jsonl").read_text(),
        "checkpoints": [str(path.relative_to(out)) for path in out.glob("restarts/*/checkpoints")],
    }


def write_labelled(path: Path, words: list[str], count: int) -> Path:
    """Rows whose label is decided by their first word; which words follow repeats with the row's number."""
    rows = []
    for number in range(count):
        text = " ".join(words[(number * step + 3) % len(words)] for step in (1, 5, 7, 11))
        rows.append(json.dumps({"text": text, "label": "even" if number % 2 else "odd"}))
    path.write_text("\n".join(rows) + "\n")
    return path


def _records(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [_without_times(record) for record in RunLog.read(folder) if record["kind"] == kind]


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(each) for key, each in value.items() if key not in _TIMES}
    return [_without_times(each) for each in value] if isinstance(value, list) else value
