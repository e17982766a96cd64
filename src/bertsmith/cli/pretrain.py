"""`bertsmith plan` estimates what a pre-training run will take; `bertsmith pretrain` runs it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bertsmith.cli.options import Flag, takes_settings
from bertsmith.cli.screen import (
    console,
    print_facts,
    print_json,
    print_note,
    print_paths,
    print_table,
    print_warning,
)
from bertsmith.reporting import formatting

if TYPE_CHECKING:
    from bertsmith.planning.plan import Plan


def _recipe_setting_names(words: Sequence[str]) -> list[str]:
    from bertsmith.training.recipe import Recipe
    from bertsmith.validation import setting_names

    return setting_names(Recipe)


@takes_settings(_recipe_setting_names)
def plan(
    recipe: str,
    *overrides: str,
    hardware: str = "here",
    gpus: int = 1,
    price_per_hour: float | None = None,
    tokens: float | None = None,
    json: Flag = False,
) -> None:
    """Estimate what a pre-training run will take: hours, cost, memory, tokens, checkpoints.

    Nothing is trained or written. The data need not exist; a token store or a tokenizer that exists is read.
    docs/plan.md explains the cost model, and how far it was off for published runs.

    Parameters
    ----------
    recipe
        quickstart, budget, adapt, modern-base, bert-base, bert-large, roberta-base, electra-small, or a TOML
        file of your own.
    overrides
        Settings as key=value, as for `bertsmith pretrain`.
    hardware
        The hardware to estimate for: h100, h200, a100-80, l4, rtx-4090 and others. `here` measures this
        machine for a few seconds.
    gpus
        The number of GPUs.
    price_per_hour
        The price of one GPU for an hour, in any currency.
    tokens
        Tokens to train on, such as 3e9, instead of the recipe's steps or hours.
    json
        Print everything as JSON.

    Examples
    --------
    bertsmith plan bert-base --hardware h100 --gpus 8 --price-per-hour 2.50

    bertsmith plan budget hours=4 corpus=stores/law tokenizer=tokenizers/law

    bertsmith plan bert-base model.size=small --tokens 3e9 --hardware rtx-4090
    """
    from bertsmith.planning.plan import plan as make_plan

    made = make_plan(
        recipe, *overrides, hardware=hardware, gpus=gpus, price_per_hour=price_per_hour, tokens=tokens
    )
    if json:
        print_json(as_json(made))
        return
    print_facts("The run", _describe_run(made))
    print_facts("What it takes", _describe_needs(made))
    console.print("\n[bold]Where the hours go[/bold]")
    rows = [
        (
            part.name,
            f"{part.flops:.2e}" if part.flops else "",
            formatting.bytes(part.bytes) if part.bytes else "",
            f"{part.seconds / 3600:,.3f}",
            f"{part.seconds / (made.hours * 3600):.1%}",
        )
        for part in made.parts
        if part.flops or part.bytes
    ]
    print_table(("part", "FLOP", "bytes moved", "hours", "of all"), rows)
    machine = made.hardware
    grounds = {
        "peak": f"{formatting.flops(machine.peak)} in {machine.precision} ({machine.source})",
        "share of it": f"{made.share:.0%} ({machine.share_source})",
    }
    print_facts("What this rests on", grounds)
    for note in made.notes:
        print_note(note)
    for warning in made.warnings:
        print_warning(warning)


def as_json(plan: "Plan") -> dict[str, Any]:
    """The plan as plain values for JSON, with the totals that its properties compute."""
    from dataclasses import asdict
    from json import loads

    values = asdict(plan)
    values["recipe"] = loads(plan.recipe.model_dump_json())
    values["memory"]["total"] = plan.memory.total
    values["flops"] = plan.flops
    return values


def _describe_run(plan: "Plan") -> dict[str, str]:
    phases = [
        f"{formatting.count(phase.steps)} of {phase.sequence_length} tokens"
        for phase in plan.phases
        if phase.steps
    ]
    means = {round(phase.step.mean_length) for phase in plan.phases}
    epochs = "" if plan.epochs is None else f", {plan.epochs:.3g} times the store's"
    tokens = formatting.large(plan.tokens)
    if plan.in_time:
        tokens += _format_range(plan, plan.tokens, formatting.large)
    return {
        "weights": formatting.large(plan.weights),
        "steps": f"{formatting.count(plan.steps)}: {', '.join(phases)}",
        "sequences": f"{' and '.join(str(mean) for mean in sorted(means))} tokens long on average",
        "tokens": f"{tokens}{epochs}",
        "products": f"{plan.flops:.2e} FLOP",
    }


def _describe_needs(plan: "Plan") -> dict[str, str]:
    memory, time = plan.memory, formatting.hours(plan.hours)
    time += ", as asked for" if plan.in_time else _format_range(plan, plan.hours, formatting.hours)
    copy = f"a checkpoint's copy {formatting.bytes(memory.copy)}, " if memory.copy else ""
    needs = {"time": time}
    if plan.cost is not None:
        needs["cost"] = _format_money(plan.cost) + (
            "" if plan.in_time else _format_range(plan, plan.cost, _format_money)
        )
    return needs | {
        "hardware": f"{plan.gpus} x {plan.hardware.title}",
        "speed": f"{formatting.count(plan.tokens_per_second)} tokens per second",
        "memory": f"{formatting.bytes(memory.total)} of {formatting.bytes(plan.hardware.memory)} each: "
        f"weights {formatting.bytes(memory.weights)}, gradients {formatting.bytes(memory.gradients)}, "
        f"moments {formatting.bytes(memory.moments)}, {copy}at most {formatting.bytes(memory.activations)} "
        f"for {formatting.count(plan.micro_batch_tokens)} tokens at a time",
        "checkpoints": f"{formatting.bytes(plan.checkpoint_bytes)} each, {plan.recipe.checkpoint.keep} kept; "
        f"{formatting.bytes(plan.disk_bytes)} of disk at most, the model with them",
    }


def _format_range(plan: "Plan", value: float, form: Callable[[float], str]) -> str:
    """Formats the range in which the true value probably is, in brackets: the estimate ± the plan's error."""
    return f" ({form((1 - plan.error) * value)} to {form((1 + plan.error) * value)})"


def _format_money(value: float) -> str:
    return f"{value:,.2f}"


@takes_settings(_recipe_setting_names)
def pretrain(
    recipe: str,
    *overrides: str,
    resume: Flag = False,
) -> None:
    """Pre-train a BERT by a recipe, or go on from a checkpoint with text of your own.

    The run's folder, out=, holds the resolved recipe, the log, checkpoints, report.html and, at the end,
    model/, which transformers opens too. Ctrl-C saves a checkpoint before the run ends.

    Parameters
    ----------
    recipe
        quickstart, budget, adapt, modern-base, bert-base, bert-large, roberta-base, electra-small, or a TOML
        file of your own.
    overrides
        Settings as key=value, for instance steps=1000 or optimizer.learning_rate=3e-4. The most used ones:
        corpus, general (a corpus of what must not be forgotten), tokenizer, init (a checkpoint, or minilm),
        decay_from (a run with optimizer.schedule=wsd), out, steps, hours, seed.
    resume
        Resume from the last checkpoint in out=: bit for bit with steps=; with hours= the learning rate
        follows the clock. If there is no checkpoint yet, begin the run.

    Examples
    --------
    bertsmith pretrain budget hours=4 corpus=corpora/law tokenizer=tokenizers/law out=runs/law

    bertsmith pretrain budget hours=4 corpus=corpora/law tokenizer=tokenizers/law out=runs/law --resume

    bertsmith pretrain adapt hours=1 init=minilm corpus=corpora/law out=runs/law-minilm

    bertsmith pretrain adapt init=models/mine corpus=corpora/law general=corpora/wiki out=runs/law-mine

    bertsmith pretrain runs/long/recipe.toml decay_from=runs/long hours=1 out=runs/long-decayed

    bertsmith pretrain electra-small hours=12 optimizer.warmup=0.05 corpus=corpora/law \
              tokenizer=tokenizers/law out=runs/law-electra

    torchrun --nproc-per-node 8 -m bertsmith pretrain bert-base corpus=corpora/wiki \
              tokenizer=tokenizers/wiki out=runs/base
    """
    from bertsmith.training.pretrain import pretrain as run
    from bertsmith.training.pretraining_report import compare_with_start

    result = run(recipe, *overrides, resume=resume, console=console)
    if rows := compare_with_start(result.before, result.metrics):
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    print_paths(model=result.model, report=result.report)
