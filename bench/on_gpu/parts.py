"""The parts of the run: each a generator of rows for its table, given the seconds it may take."""

import itertools
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from bertsmith.machine import matmul_flops
from bertsmith.model.flops import encoder_flops
from bertsmith.planning.plan import memory_bandwidth
from on_gpu import model_checks, ours, theirs, work
from on_gpu.checks import Check, parts
from on_gpu.kernels import largest_kernels, profile_step
from on_gpu.scale import Scale
from on_gpu.timing import Contestant, Work, compare
from on_gpu.waits import waits

Rows = Iterator[Mapping[str, Any]]
_BATCHES = 4  # different ones that the sides go through in turn
_SHARES = (0.46, 0.57, 1.0)  # of the time left for each kind of pairs: most is compiled for the first


class Parts:
    """What the parts share: how large all is, the measured peak, how many checks failed."""

    def __init__(self, scale: Scale, compiled: bool) -> None:
        self.scale, self.compiled = scale, compiled
        self.tokenizer = work.made_up_tokenizer(scale.vocabulary)
        self.peak = float("inf")
        self.failures = 0

    def limits(self, seconds: float) -> Rows:
        """What this machine can do at most."""
        each = self.scale.seconds
        self.peak = matmul_flops(self.scale.precision, each, self.scale.device)
        name = str(self.scale.precision).removeprefix("torch.")
        yield {"limit": f"{name} matrix product, GFLOP/s", "measured": f"{self.peak / 1e9:,.0f}"}
        bandwidth = memory_bandwidth(self.scale.device, each)
        yield {"limit": "memory, read and written, GB/s", "measured": f"{bandwidth / 1e9:,.1f}"}

    def checks(self, seconds: float) -> Rows:
        """Each path against plain definitions and the processor."""
        for check in itertools.chain(parts(), model_checks.whole()):
            row = self._checked(check)
            self.failures += row["result"] != "right"
            yield row
        for name, dtype in (
            ("float32", torch.float32),
            (str(self.scale.precision)[6:], self.scale.precision),
        ):
            differing = model_checks.repeated(self.scale.device, dtype)
            found = "the same to the bit" if not differing else f"{differing:,.0f} weights differ"
            yield {"path": f"three steps done twice, {name}", "deviation": differing, "result": found}

    def _checked(self, check: Check) -> dict[str, Any]:
        row: dict[str, Any] = {"path": check.name, "deviation": "", "allowed": check.allowed}
        try:
            deviation = check.deviation(self.scale.device)
        except Exception as error:  # the next path may work
            traceback.print_exc()
            return row | {"result": f"FAILED: {type(error).__name__}: {error}"[:200]}
        right = deviation <= check.allowed
        return row | {"deviation": f"{deviation:.1e}", "result": "right" if right else "FAILED"}

    def host_waits(self, seconds: float) -> Rows:
        """Where a step makes the host wait for the GPU."""
        if self.scale.device.type != "cuda":
            yield {"step": "none can be seen without a GPU"}
            return
        for name, side, batch in (*self._small_steps(),):
            side.step(batch)  # the first step allocates
            for place, times in waits(partial(side.step, batch)).most_common():
                yield {"step": name, "place": place, "times": times}

    def _small_steps(self) -> Iterator[tuple[str, Any, Any]]:
        size = self.scale.finetuned
        yield "pre-training", ours.Pretraining(self.scale, size, self.tokenizer), self._pairs("mixed", 0)
        examples = self._sentences()
        side = ours.Finetune(self.scale, size, examples)
        yield "fine-tuning", side, ours.global_batches(side.task, 1)[0]
        texts = work.encoded_texts("texts", 64, self.tokenizer, self.scale.longest, every_row=True)
        yield "embedding", ours.Embedding(self.scale, size), texts

    def pretraining(self, seconds: float, size: str) -> Rows:
        """Three kinds of batch, all sides."""
        end = time.monotonic() + seconds
        sides = self._sides(
            partial(ours.Pretraining, self.scale, size, self.tokenizer),
            partial(theirs.Pretraining, self.scale, size),
        )
        task = ours.pretraining_task(self.scale.config(size), self.tokenizer, torch.device("cpu"))
        for kind, share in zip(self._kinds(), _SHARES, strict=True):
            batches = [self._pairs(kind, each) for each in range(_BATCHES)]
            works = [Work(each, int(each.lengths.sum()), task.flops(each)) for each in batches]
            for row in compare(sides, works, self.scale, self.peak, share * (end - time.monotonic())):
                yield {"model": size, "pairs": kind} | row

    def finetuning(self, seconds: float) -> Rows:
        """Batches of 32 sentences of SST-2's lengths."""
        examples, size = self._sentences(), self.scale.finetuned
        sides = self._sides(
            partial(ours.Finetune, self.scale, size, examples),
            partial(theirs.Finetune, self.scale, size, examples),
        )
        task = ours.finetuning_task(self.scale.config(size), examples, torch.device("cpu"))
        batches = ours.global_batches(task, 4 * _BATCHES)
        works = [Work(each, int(each.lengths.sum()), task.flops(each)) for each in batches]
        for row in compare(sides, works, self.scale, self.peak, seconds):
            yield {"model": size} | row

    def embedding(self, seconds: float) -> Rows:
        """Texts of mixed length, tokenised beforehand on both sides."""
        encoded = work.encoded_texts(
            "texts", self.scale.texts, self.tokenizer, self.scale.longest, every_row=True
        )
        lengths = torch.tensor([len(each.windows[0].token_ids) for each in encoded]).numpy()
        for size in self.scale.embedded:
            sides = self._sides(
                partial(ours.Embedding, self.scale, size), partial(theirs.Embedding, self.scale, size)
            )
            flops = encoder_flops(self.scale.config(size), lengths, float(lengths.sum()))
            works = [Work(encoded, int(lengths.sum()), flops)]
            share = seconds / len(self.scale.embedded)
            for row in compare(sides, works, self.scale, self.peak, share):
                yield {"model": size} | row

    def profile(self, seconds: float) -> Rows:
        """A pre-training step by groups of kernels, as the loop does it and with its encoder compiled."""
        size = self.scale.pretrained[0]
        for compiled in (False, True)[: 1 + self.compiled]:
            side = ours.Pretraining(self.scale, size, self.tokenizer, compiled=compiled)
            name = f"{size}, {'compiled' if compiled else 'eager'}"
            for kind in (str(self.scale.length), "mixed"):
                for row in profile_step(side, self._pairs(kind, 0), self.scale):
                    yield {"model": name, "pairs": kind} | row
            for row in largest_kernels(side, self._pairs("mixed", 0), self.scale):
                yield {"model": name, "pairs": "mixed", "group": row["group"], "ms a step": row["ms"]} | {
                    "kernel": row["kernel"]
                }

    def _kinds(self) -> tuple[str, str, str]:
        return str(self.scale.length), str(self.scale.longest), "mixed"

    def _pairs(self, kind: str, number: int) -> Any:
        return work.pairs(kind, self.scale.step_tokens, number, self.tokenizer, self.scale.longest)

    def _sentences(self) -> list[Any]:
        longest = min(self.scale.longest, 64)
        return work.encoded_texts("sst2", 1024, self.tokenizer, longest, every_row=False)

    def _sides(self, our: Callable[..., Any], their: Callable[..., Any]) -> list[Contestant]:
        """Compiled ones last: what their compilers take is taken from nobody else."""
        sides = [Contestant("ours", our), Contestant("transformers", their)]
        if self.compiled:
            sides += [
                Contestant("ours, compiled", partial(our, compiled=True)),
                Contestant("transformers, compiled", partial(their, compiled=True)),
            ]
        return sides
