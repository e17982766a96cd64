"""`bertsmith import`: a legacy checkpoint made safe."""

from pathlib import Path

from bertsmith.cli.options import Out


def import_checkpoint(folder: Path, *, out: Out) -> None:
    """Convert an old checkpoint into a model folder that is safe to open.

    It reads pytorch_model.bin, Google's TensorFlow files (bert_model.ckpt.index with its data) and
    flax_model.msgpack, without those frameworks. A pytorch_model.bin is a pickle, which can run code when it
    is opened: only its tensors are read, and everything else is refused. Bertsmith and transformers open the
    result. No weight is lost: the head of a fine-tuned model is kept under its own name, and of an embedding
    model (modules.json) its pooling, last product, longest text and prompts. If the result can't be used for
    its predictions or vectors, a note says why.

    Parameters
    ----------
    folder
        The folder with the weights, config.json (or Google's bert_config.json) and vocab.txt or
        tokenizer.json if there is one. If it holds several TensorFlow checkpoints, name one:
        FOLDER/model.ckpt-1000.
    out
        The folder to write. It must not exist.

    Examples
    --------
    bertsmith import downloads/bert-base-cased --out models/bert-base-cased

    bertsmith import downloads/uncased_L-12_H-768_A-12 --out models/bert-base-uncased

    bertsmith pretrain adapt init=models/bert-base-cased corpus=corpora/law out=runs/law
    """
    from bertsmith.cli.screen import console, print_note
    from bertsmith.inference.importing import import_legacy

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
