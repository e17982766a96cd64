"""Held-out accuracy for equal time, beside a plain transformers loop.

    python bench/pretraining_quality.py [--minutes 10] [--rows ours ...]

The text is --store with its --tokenizer, or what material.py finds. Every row trains for
the same time on the same pairs, from the same vocabulary, one after the other, and is measured by the same
held-out sequences and masks:

    ours                 bertsmith pretrain budget
    transformers         BertForPreTraining of the same shape and the usual loop: pairs in random order,
                         padded to the longest of a batch of 32, 15 % masked anew for each batch, dropout
                         0.1, AdamW at 1e-4 with decay 0.01, warm-up over a tenth of the time and linear
                         decay, gradients clipped at 1
    transformers-tuned   the same at our learning rate, initialisation and beta2, without dropout
    minilm               bertsmith pretrain budget init=minilm: the encoder goes on, the heads are new
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import material
from harness import report

_PAIRS, _LENGTH = 32, 128
_ROWS = ["ours", "transformers", "minilm", "transformers-tuned"]


def main() -> None:
    """Parses and runs the rows in turn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    material.add_options(parser)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rows", nargs="+", default=_ROWS)
    options = parser.parse_args()
    options.store, options.tokenizer = material.find(options)
    rows = []
    for name in options.rows:
        rows.append(_row(name, options))
        report("pretraining-quality", "Pre-training quality for equal time", rows)


def _row(name: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        if name in ("ours", "minilm"):
            tokens = _train_ours(name, out, options)
        else:
            tokens = _train_transformers(name, out, options)
        metrics = _measure(out / "model", options)
    return {
        "row": name,
        "minutes": options.minutes,
        "million tokens": f"{tokens / 1e6:.2f}",
        "held-out MLM accuracy": f"{metrics['mlm_accuracy']:.2%}",
        "most frequent piece": f"{metrics['mlm_majority']:.2%}",
        "perplexity": f"{metrics['mlm_perplexity']:.0f}",
        "NSP accuracy": f"{metrics['nsp_accuracy']:.1%}",
    }


def _train_ours(name: str, out: Path, options: argparse.Namespace) -> int:
    from bertsmith.training.log import RunLog
    from bertsmith.training.pretrain import pretrain

    settings = [f"corpus={options.store}", f"tokenizer={options.tokenizer}", f"out={out}"]
    settings += [f"hours={options.minutes / 60}"] + (["init=minilm"] if name == "minilm" else [])
    if name == "minilm":  # a trained encoder wants less than its new head
        settings += ["optimizer.learning_rate=1e-3", "optimizer.layer_decay=0.7"]
    pretrain("budget", *settings)
    steps = [record for record in RunLog.read(out) if record["kind"] == "step"]
    return int(steps[-1]["tokens"])


def _train_transformers(name: str, out: Path, options: argparse.Namespace) -> int:
    import torch
    from transformers import BertConfig, BertForPreTraining

    from bertsmith.text.tokens.tokenizer import Tokenizer
    from bertsmith.training.recipe import read_recipe

    ours = read_recipe("budget", [])
    shape = ours.model.config(Tokenizer.load(Path(options.tokenizer)).vocab_size, 0)
    tuned = name == "transformers-tuned"
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        intermediate_size=shape.intermediate_size,
        hidden_dropout_prob=0.0 if tuned else 0.1,
        attention_probs_dropout_prob=0.0 if tuned else 0.1,
        initializer_range=shape.initializer_range if tuned else 0.02,
    )
    model = BertForPreTraining(config).train()
    peak = ours.optimizer.learning_rate if tuned else 1e-4
    betas = (0.9, ours.optimizer.beta2 if tuned else 0.999)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=betas, weight_decay=0.01)
    seconds, started, tokens = options.minutes * 60, time.monotonic(), 0
    for batch in _padded_batches(options):
        progress = (time.monotonic() - started) / seconds
        if progress >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = peak * min(progress / 0.1, (1 - progress) / 0.9)
        optimizer.zero_grad()
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        tokens += int(batch["attention_mask"].sum())
    model.save_pretrained(out / "model")
    return tokens


def _padded_batches(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """32 pairs at a time, masked as transformers' collator does: 80 % [MASK], 10 % random, 10 % kept."""
    import numpy as np
    import torch

    from bertsmith.data.store import TokenStore
    from bertsmith.data.stream import Cursor, PretrainingStream
    from bertsmith.text.tokens.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(Path(options.tokenizer))
    store = TokenStore.open(Path(options.store) / "train", tokenizer)
    stream = PretrainingStream(store, tokenizer, 0, True, _LENGTH, _PAIRS * _LENGTH)
    special = np.array(tokenizer.special_ids)
    random = np.random.default_rng(0)
    for global_batch in stream.batches(Cursor()):
        sequences = global_batch.sequences
        count, longest = len(sequences), int(sequences.lengths.max())
        filled = np.arange(longest) < sequences.lengths[:, None]
        ids, segments = np.zeros((count, longest), np.int64), np.zeros((count, longest), np.int64)
        ids[filled], segments[filled] = sequences.token_ids, sequences.segment_ids
        chosen = (random.random(ids.shape) < 0.15) & filled & ~np.isin(ids, special)
        labels = np.where(chosen, ids, -100)
        draw = random.random(ids.shape)
        ids = np.where(chosen & (draw < 0.8), tokenizer.mask_id, ids)
        swapped = chosen & (draw >= 0.8) & (draw < 0.9)
        ids = np.where(swapped, random.integers(0, tokenizer.vocab_size, ids.shape), ids)
        batch = {"input_ids": ids, "token_type_ids": segments, "attention_mask": filled.astype(np.int64)}
        batch |= {"labels": labels, "next_sentence_label": sequences.labels}
        yield {key: torch.from_numpy(value) for key, value in batch.items()}


def _measure(model: Path, options: argparse.Namespace) -> dict[str, float]:
    from bertsmith.inference.masked_language import MaskedLanguageModel
    from bertsmith.tasks.pretraining_checkpoint import load_pretraining_model
    from bertsmith.text.tokens.tokenizer import Tokenizer

    loaded, _ = load_pretraining_model(model)
    judge = MaskedLanguageModel(loaded, Tokenizer.load(Path(options.tokenizer)))
    return judge.evaluate(options.store, max_tokens=150_000)


if __name__ == "__main__":
    main()
