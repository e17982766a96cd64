"""`bertsmith import`: a legacy checkpoint made safe."""

from pathlib import Path

from bertsmith.cli.options import Out


def import_checkpoint(folder: Path, *, out: Out) -> None:
    """Turn a folder with pytorch_model.bin into a model folder that is safe to open.

    A pytorch_model.bin is a pickle, which can run code when it is opened. This reads its tensors and refuses
    everything else. What it writes opens here and in transformers. No tensor is lost: the head of a
    fine-tuned model is kept under its own name.

    Parameters
    ----------
    folder
        Holds pytorch_model.bin and config.json, and vocab.txt or tokenizer.json if there is one.
    out
        The folder to write; it must not exist.

    Examples
    --------
    bertsmith import downloads/bert-base-cased --out models/bert-base-cased

    bertsmith pretrain adapt init=models/bert-base-cased corpus=corpora/law out=runs/law
    """
    from bertsmith.cli.screen import console, print_note
    from bertsmith.model.legacy import import_legacy

    imported = import_legacy(folder, out)
    config = imported.checkpoint.config
    tensors = [*imported.checkpoint.tensors.values(), *imported.checkpoint.carried.values()]
    console.print(
        f"{out}: {imported.checkpoint.architecture}, layers {config.num_hidden_layers}, "
        f"width {config.hidden_size}, {sum(tensor.numel() for tensor in tensors):,} weights, "
        f"vocabulary of {config.vocab_size:,}",
        markup=False,
        soft_wrap=True,
    )
    for note in imported.notes:
        print_note(note)
