"""`bertsmith check`."""

from typing import TYPE_CHECKING, Any, Literal

from bertsmith.cli.options import Flag

if TYPE_CHECKING:
    from bertsmith.inference.checking.check import Check

_SHOWN = 8  # differences of each kind; there may be one a text


def check(
    model: str,
    *,
    against: Literal["transformers", "sentence-transformers"] | None = None,
    write: Flag = False,
    task: str | None = None,
    json: Flag = False,
) -> int:
    """Check that a model answers as it did when it was written.

    A model's folder holds golden answers: what the model made of some twenty fixed texts, at every stage, in
    float32. They are asked for again, in float32 and in the precision that is used on this machine. So a
    changed file or setting shows, and a damaged kernel, or another tokenizer, torch or processor. What
    differs is shown with the first stage at which it does: pieces, embeddings, a layer, the head or the
    answer. The status is 1 if anything differs.

    Parameters
    ----------
    model
        A folder such as runs/NAME/model, minilm, a model's name on the hub, the folder of an exported
        graph, or an index.
    against
        Compare it with what transformers or sentence-transformers make of the same folder, if they are
        installed, instead of with its golden answers.
    write
        First keep what the model answers now as its golden answers. The folder must have a bertsmith.json.
    task
        For a model with a task of your own: package.module:Class.
    json
        Print JSON instead of sentences.

    Examples
    --------
    bertsmith check runs/intents/model

    bertsmith check minilm --against sentence-transformers

    bertsmith check models/bert-base-uncased --write
    """
    from bertsmith.cli.screen import print_json
    from bertsmith.inference.checking.check import check_model
    from bertsmith.tasks.registry import find_task

    found = check_model(model, find_task(task) if task else None, against=against, write=write)
    if json:
        print_json(_plain(found))
    else:
        _show(model, found)
    return 0 if found.agrees else 1


def _plain(found: "Check") -> dict[str, Any]:
    from dataclasses import asdict

    return {"agrees": found.agrees, **asdict(found), "folder": str(found.folder)}


def _show(model: str, found: "Check") -> None:
    from bertsmith.cli.screen import console, print_facts, print_warning

    facts = {}
    for name, each in found.comparisons.items():
        largest = f"largest difference: {each.largest}" if each.largest.size else "no difference of numbers"
        agreeing = f"{each.texts - len(each.differences)} of {each.texts} texts agree"
        facts[name] = f"{agreeing}; {largest} (tolerated: {each.tolerance:.0e})"
    print_facts(f"{model} beside {found.beside}", facts)
    console.print()
    lists = [found.settings, *(each.differences for each in found.comparisons.values())]
    for differences in lists:
        for difference in differences[:_SHOWN]:
            print_warning(str(difference))
        if len(differences) > _SHOWN:
            print_warning(f"and {len(differences) - _SHOWN} more")
