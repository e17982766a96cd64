"""`bertsmith pretrain`."""

from bertsmith.cli.options import Flag


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
    from bertsmith.cli.screen import console, print_paths, print_table
    from bertsmith.training.pretrain import pretrain as run
    from bertsmith.training.run_report import gains_and_losses

    result = run(recipe, *overrides, resume=resume, console=console)
    if rows := gains_and_losses(result.before, result.metrics):
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    print_paths(model=result.model, report=result.report)
