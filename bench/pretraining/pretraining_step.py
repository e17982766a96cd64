"""Pre-training steps beside transformers' BertForPreTraining: real tokens per second, and share of the peak.
Last answer (2026-11-24, Zen 4, each side's default): 11.4 times for BERT-mini, 8.1 for BERT-small.

    python bench/pretraining/pretraining_step.py [--rounds 5] [--sizes tiny mini small] [--precisions float32]
                                                 [--modern]

The text is --store with its --tokenizer, or what corpora.py finds. Two kinds of batch, --pairs (32) each:
`full`, every pair 128 tokens long; `natural`, pairs as the loader makes them, up to 128 tokens. Both sides
get the same sequences and the same masks' rate, train with dropout 0.1 everywhere, clip gradients at 1 and
step AdamW: transformers with its default attention (sdpa), padding to the longest of the batch, and torch's
default AdamW. Products are in float32 and, where the processor computes in it, in bfloat16 by autocast, the
same on both sides, and as each side has them by default: ours as `hardware.precision = auto` says, theirs in
float32. The share is of a product in our precision.

With --modern the other side is ours too: rotary positions, gated layers as large as BERT's, and Muon in place
of AdamW. What is compared is operations a second, as `model/flops.py` counts them, Muon's products too:
on 32 pairs these are a sixth of a step of BERT-mini, and a third of BERT-small's.
"""

import argparse
import itertools
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(1, str(Path(__file__).parents[1]))  # harness.py, and what else all folders share

import corpora
from harness import Worker, described, interleave, precisions, ratio, report, serve, spread

_LENGTH, _VOCABULARY = 128, 30_522
_DEFAULT = "default"


def main() -> None:
    """Parses, and is either the parent or a worker."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    corpora.add_options(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=32, help="of a batch")
    parser.add_argument("--sizes", nargs="+", default=["tiny", "mini", "small"])
    parser.add_argument(
        "--precisions", nargs="+", choices=("float32", "bfloat16", _DEFAULT), default=precisions()
    )
    parser.add_argument("--modern", action="store_true", help="beside our own modern layers and Muon")
    parser.add_argument("--worker", choices=("ours", "modern", "transformers"))
    options = parser.parse_args()
    if options.worker:
        side = {"ours": _Ours, "modern": _Modern, "transformers": _Transformers}[options.worker]
        serve(side(options))
        return
    store, tokenizer = corpora.find(options)
    files = ("--store", store, "--tokenizer", tokenizer, "--pairs", str(options.pairs))
    other = "modern" if options.modern else "transformers"
    sides = {name: Worker(__file__, name, *files) for name in ("ours", other)}
    rows = [
        _compare(sides, size, precision, kind, options)
        for size in options.sizes
        for precision in options.precisions
        for kind in ("full", "natural")
    ]
    paragraphs = [" ".join(each.split()) for each in __doc__.split("\n\n")]
    if options.modern:
        report("pretraining-step-modern", "Steps of modern layers", rows, paragraphs[2:4])
    else:
        report("pretraining-step", "Pre-training steps", rows, paragraphs[2:3])


def _compare(
    sides: dict[str, Worker], size: str, precision: str, kind: str, options: argparse.Namespace
) -> dict[str, Any]:
    asked = {"size": size, "precision": precision, "kind": kind, "steps": options.steps}
    answers = interleave(sides, options.rounds, **asked)
    row = {"model": f"BERT-{size}", "precision": described(precision), "pairs": kind}
    if options.modern:
        speed = _speed(answers, "flops")
        return row | {
            "BERT and AdamW, GFLOP/s": f"{statistics.median(speed['ours']) / 1e9:,.0f}",
            "modern and Muon, GFLOP/s": f"{statistics.median(speed['modern']) / 1e9:,.0f}",
            "ratio": spread(ratio(speed["modern"], speed["ours"])),
        }
    speed = _speed(answers, "tokens")
    share = [answer["flops"] / answer["seconds"] / answer["peak"] for answer in answers["ours"]]
    return row | {
        "ours, tokens/s": f"{statistics.median(speed['ours']):,.0f}",
        "transformers, tokens/s": f"{statistics.median(speed['transformers']):,.0f}",
        "ratio": spread(ratio(speed["ours"], speed["transformers"])),
        "ours, share of matrix-product speed": f"{statistics.median(share):.0%}",
    }


def _speed(answers: dict[str, list[dict[str, Any]]], what: str) -> dict[str, list[float]]:
    """Of each side, `what` a second in each round."""
    return {name: [each[what] / each["seconds"] for each in given] for name, given in answers.items()}


def _batches(options: argparse.Namespace, kind: str) -> Any:
    """Endless global batches of so many pairs, the same on both sides."""
    from bertsmith.data.batch import Sequences
    from bertsmith.data.store import TokenStore
    from bertsmith.data.stream import Cursor, GlobalBatch, PretrainingStream
    from bertsmith.text.tokens.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(Path(options.tokenizer))
    store = TokenStore.open(Path(options.store) / "train", tokenizer)
    stream = PretrainingStream(store, tokenizer, 0, True, _LENGTH, max(200, 4 * options.pairs) * _LENGTH)
    for number, large in enumerate(itertools.chain.from_iterable([stream.batches(Cursor())])):
        rows = np.arange(len(large.sequences))
        if kind == "full":
            rows = rows[large.sequences.lengths == _LENGTH]
        for start in range(0, len(rows) - options.pairs + 1, options.pairs):
            sequences: Sequences = large.sequences.take(rows[start : start + options.pairs])
            yield GlobalBatch(sequences, Cursor(offset=number), Cursor(offset=number + 1))


class _Ours:
    """The real loop, one `advance` a step."""

    optimizer = "adamw"

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        from bertsmith.model.cpu.process import keep_freed_memory

        keep_freed_memory()
        torch.set_num_threads(2)
        self.options, self.loops, self.batches = options, {}, {}

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        import torch

        from bertsmith.machine import Hardware, matmul_flops

        size, kind, asked = request["size"], request["kind"], request["precision"]
        precision = Hardware.detect().precision if asked == _DEFAULT else getattr(torch, asked)
        loop = self.loops.get(size) or self.loops.setdefault(size, self._loop(size))
        loop.machine.precision = precision
        batches = self.batches.get(kind) or self.batches.setdefault(kind, _batches(self.options, kind))
        chosen = list(itertools.islice(batches, request["steps"]))
        peak = matmul_flops(precision, seconds=0.3)
        started = time.perf_counter()
        for batch in chosen:
            loop.advance(batch)
        return {
            "seconds": time.perf_counter() - started,
            "tokens": int(sum(batch.sequences.lengths.sum() for batch in chosen)),
            "flops": sum(loop.task.flops(batch.sequences) + self._optimizer_flops(loop) for batch in chosen),
            "peak": peak,
        }

    def _loop(self, size: str) -> Any:
        import torch

        from bertsmith.data.batch import usual_batch_tokens
        from bertsmith.data.masking import Masker, MaskingRates
        from bertsmith.data.store import TokenStore
        from bertsmith.data.stream import PretrainingStream
        from bertsmith.model.config import preset
        from bertsmith.tasks.pretraining.pretraining import PretrainingModel, PretrainingTask
        from bertsmith.text.tokens.tokenizer import Tokenizer
        from bertsmith.training.loop import Loop
        from bertsmith.training.machine import Machine, Ranks
        from bertsmith.training.recipe import check_recipe

        tokenizer = Tokenizer.load(Path(self.options.tokenizer))
        store = TokenStore.open(Path(self.options.store) / "train", tokenizer)
        stream = PretrainingStream(store, tokenizer, 0, True, _LENGTH, self.options.pairs * _LENGTH)
        model = PretrainingModel(self._config(preset(size, vocab_size=tokenizer.vocab_size)))
        model.train()
        task = PretrainingTask(
            model, [stream], Masker(tokenizer, MaskingRates()), None, 0, torch.device("cpu")
        )
        never = {"every": 1_000_000}
        values = {"steps": 1_000_000, "evaluation": never, "checkpoint": never}
        recipe = check_recipe(values | {"optimizer": {"kind": self.optimizer}}, "bench")
        cpu = torch.device("cpu")  # and in the precision that is asked for
        machine = Machine(cpu, torch.float32, 1.0, Ranks(), usual_batch_tokens("cpu"))
        return Loop(task, recipe, machine, None, _Silent())

    def _config(self, bert: Any) -> Any:
        return bert

    def _optimizer_flops(self, loop: Any) -> float:
        return 0.0


class _Modern(_Ours):
    """With rotary positions and gated layers of as many operations, under Muon."""

    optimizer = "muon"

    def _config(self, bert: Any) -> Any:
        from bertsmith.model.config import make_config

        return make_config(
            {
                "model_type": "nomic_bert",
                "vocab_size": bert.vocab_size,
                "hidden_size": bert.hidden_size,
                "num_hidden_layers": bert.num_hidden_layers,
                "num_attention_heads": bert.num_attention_heads,
                "intermediate_size": bert.intermediate_size * 2 // 3 // 16 * 16,
                "hidden_dropout_prob": bert.hidden_dropout_prob,
                "attention_probs_dropout_prob": bert.attention_probs_dropout_prob,
            },
            "bench",
        )

    def _optimizer_flops(self, loop: Any) -> float:
        from bertsmith.model.flops import muon_flops

        return muon_flops(loop.task.model.config)


class _Silent:
    def record(self, kind: str, step: int, **values: Any) -> None:
        """Nothing."""

    def rewind(self, step: int) -> None:
        """Nothing."""


class _Transformers:
    """The plain loop that its users write."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        torch.set_num_threads(2)
        self.options, self.models, self.batches = options, {}, {}

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        import torch

        size, kind, asked = request["size"], request["kind"], request["precision"]
        precision = torch.float32 if asked == _DEFAULT else getattr(torch, asked)
        model, optimizer = self.models.get(size) or self.models.setdefault(size, self._model(size))
        batches = self.batches.get(kind) or self.batches.setdefault(kind, _batches(self.options, kind))
        chosen = [self._padded(batch.sequences) for batch in itertools.islice(batches, request["steps"])]
        started = time.perf_counter()
        for batch in chosen:
            optimizer.zero_grad()
            with torch.autocast("cpu", precision, enabled=precision != torch.float32):
                loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        tokens = sum(int(batch["attention_mask"].sum()) for batch in chosen)
        return {"seconds": time.perf_counter() - started, "tokens": tokens}

    def _model(self, size: str) -> Any:
        import torch
        from transformers import BertConfig, BertForPreTraining

        from bertsmith.model.config import PRESETS

        layers, width = PRESETS[size]
        config = BertConfig(
            vocab_size=_VOCABULARY,
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=width // 64,
            intermediate_size=4 * width,
        )
        model = BertForPreTraining(config).train()
        return model, torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)

    def _padded(self, sequences: Any) -> dict[str, Any]:
        """15 % masked, padded to the longest."""
        import torch

        longest = int(sequences.lengths.max())
        ids = np.zeros((len(sequences), longest), np.int64)
        segments, mask = np.zeros_like(ids), np.zeros_like(ids)
        ends = np.cumsum(sequences.lengths)
        for row, (end, length) in enumerate(zip(ends, sequences.lengths, strict=True)):
            ids[row, :length] = sequences.token_ids[end - length : end]
            segments[row, :length] = sequences.segment_ids[end - length : end]
            mask[row, :length] = 1
        chosen = (np.random.default_rng(0).random(ids.shape) < 0.15) & (mask == 1)
        labels = np.where(chosen, ids, -100)
        batch = {"input_ids": np.where(chosen, 103, ids), "token_type_ids": segments, "attention_mask": mask}
        batch |= {"labels": labels, "next_sentence_label": sequences.labels}
        return {name: torch.from_numpy(value) for name, value in batch.items()}


if __name__ == "__main__":
    main()
