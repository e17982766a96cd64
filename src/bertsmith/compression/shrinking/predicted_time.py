"""How long a candidate will take, from some of its own steps: so that what doesn't fit is never begun."""

import time
from collections.abc import Sequence

from bertsmith.compression.distilling.distil_recipe import DistilRecipe
from bertsmith.compression.distilling.distil_session import DistilSession
from bertsmith.data.batch import PackedBatch
from bertsmith.tasks.examples.encoding import Encoded, Layout, pack_examples
from bertsmith.tasks.task_model import TaskModel, outputs_of

_TRIALS = 3  # steps, of which the first warms up
_BESIDE = 1.15  # the optimiser, the log and the checkpoints, beside forward and backward passes


def predicted_seconds(recipe: DistilRecipe, session: DistilSession) -> float:
    """Of a training by this recipe, measured on its first examples: forward and backward passes per token,
    times its tokens; and the evaluations on dev.
    """
    model = session.empty(recipe).to(session.machine.device).train()
    encoded = session.train.encoded
    some = encoded[: recipe.batch_size]
    seconds = min(_step(model, some, session) for _ in range(_TRIALS))
    tokens = sum(each.tokens for each in encoded)
    training = seconds / max(sum(each.tokens for each in some), 1) * tokens * recipe.epochs
    begun = time.perf_counter()
    outputs_of(model, some)
    a_text = (time.perf_counter() - begun) / max(len(some), 1)
    evaluations = recipe.evaluations * recipe.epochs + 3  # before the first step, and the last weights twice
    return _BESIDE * training + a_text * len(session.data.dev) * evaluations


def _step(model: TaskModel, some: Sequence[Encoded], session: DistilSession) -> float:
    begun = time.perf_counter()
    device = session.machine.device
    batch = PackedBatch.of(pack_examples(some, range(len(some))), device)
    model(batch, Layout(some, device)).float().square().sum().backward()
    model.zero_grad()
    return time.perf_counter() - begun
