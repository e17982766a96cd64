"""The weights that did best on dev, kept beside the run's checkpoints, and when to stop waiting for better.

best/weights.safetensors    the weights, in our names
best/history.json           every evaluation: step, score; the best one's step
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bertsmith.files import flush, read_json, tensors_written_to, write_json
from bertsmith.training.log import json_value
from bertsmith.training.sharding import whole_tensors

WORST = -math.inf  # in place of a score that is no number: a constant output has no correlation


@dataclass
class Best:
    """Keeps the best of a run's evaluations by a metric of which more is better.

    `patience` is how many evaluations without a better one end the run; None waits to the end.
    """

    folder: Path
    metric: str
    patience: int | None = None
    history: list[tuple[int, float]] = field(default_factory=list)

    def resume(self, step: int) -> None:
        """Takes up the history of a run that goes on from `step`; later evaluations will come again."""
        path = self.folder / "history.json"
        if path.exists():
            scores = [(at, WORST if score is None else score) for at, score in read_json(path)["history"]]
            self.history = [(at, score) for at, score in scores if at <= step]

    @property
    def score(self) -> float | None:
        return max((score for _, score in self.history), default=None)

    def has(self, step: int) -> bool:
        """Whether this step is the last one that was evaluated."""
        return bool(self.history) and self.history[-1][0] == step

    @property
    def step(self) -> int:
        """The first step of the best score. Raises ValueError before any evaluation."""
        return max(self.history, key=lambda each: each[1])[0]

    @property
    def stopped(self) -> bool:
        """Whether the last `patience` evaluations brought nothing better."""
        if self.patience is None or len(self.history) <= self.patience:
            return False
        scores = [score for _, score in self.history]
        return max(scores[-self.patience :]) <= max(scores[: -self.patience])

    def consider(self, step: int, metrics: dict[str, float], model: nn.Module, write: bool = True) -> None:
        """Adds an evaluation, and keeps the weights if it is the best so far; of equals the first.

        All ranks call this, since a divided model is gathered by all; one of them is to `write`.
        """
        score, best = metrics[self.metric], self.score
        if math.isnan(score):
            score = WORST
        if self.has(step):
            return
        self.history.append((step, score))
        if best is None or score > best:
            weights = whole_tensors(model.state_dict(), keep=write)
            if write:
                self._write_weights(weights)
        if write:
            self._write_history()

    def keep(self, step: int, model: nn.Module, write: bool = True) -> None:
        """Keeps the weights of a run that nothing measured on the way: those of its last step."""
        self.history = [(step, WORST)]
        weights = whole_tensors(model.state_dict(), keep=write)
        if write:
            self._write_weights(weights)
            self._write_history()

    def restore(self, model: nn.Module) -> None:
        """Puts the best weights into the model."""
        model.load_state_dict(load_file(self.folder / "weights.safetensors"))

    def _write_weights(self, weights: dict[str, Tensor]) -> None:
        """File by file: a folder is for a moment absent while it is replaced, and the history with it.

        A kill before the history is written costs nothing: the evaluation comes again on resuming.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.detach().contiguous() for name, tensor in weights.items()}
        partial = self.folder / ".weights.partial"
        with tensors_written_to(partial):
            save_file(tensors, partial)
        flush(partial)
        partial.replace(self.folder / "weights.safetensors")

    def _write_history(self) -> None:
        value: dict[str, Any] = {"metric": self.metric, "best_step": self.step, "history": self.history}
        write_json(self.folder / "history.json", json_value(value))
