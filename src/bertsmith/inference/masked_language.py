"""MaskedLanguageModel: fills masks by a pre-trained model, and evaluates it on held-out text."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from bertsmith.argument_checks import check_arguments, check_path, check_text, integer_from, one_of, optional
from bertsmith.data.masking import Masker, MaskingRates
from bertsmith.data.store import TokenStore, is_store
from bertsmith.data.stream import PretrainingStream
from bertsmith.errors import InputError
from bertsmith.inference.engine import start_engine
from bertsmith.model.locate import locate_model
from bertsmith.tasks.forward_passes import require_finite
from bertsmith.tasks.pretraining.fill_mask import MaskCandidate
from bertsmith.tasks.pretraining.fill_mask import fill_mask as fill
from bertsmith.tasks.pretraining.pretraining import PretrainingModel, PretrainingTask
from bertsmith.tasks.pretraining.pretraining_checkpoint import load_pretraining_model
from bertsmith.tasks.pretraining.reconstruction import reconstruction_class
from bertsmith.text.corpus.manifest import Split
from bertsmith.text.tokens.tokenizer import Tokenizer
from bertsmith.text.tokens.value_tokenizers import PatchTokenizer


@dataclass(frozen=True)
class MaskedLanguageModel:
    """A pre-trained model with its tokenizer, prepared for inference.

    >>> model = MaskedLanguageModel.load("runs/law/model")
    >>> model.fill_mask("The court [MASK] the appeal.")
    """

    model: PretrainingModel
    tokenizer: Tokenizer

    @classmethod
    @check_arguments(compute_dtype=optional(one_of(torch.float32, torch.int16, torch.int8)))
    def load(
        cls,
        name: str | Path,
        device: torch.device | str = "auto",
        compute_dtype: torch.dtype | None = None,
    ) -> "MaskedLanguageModel":
        """Opens a model by path, alias or hub name. Computes on a GPU if there is one, unless `device` names
        another device. `compute_dtype` is the precision of the encoder's matrix products: float32, or int16
        by the compiled kernels, the default where these are installed.

        Raises ModelError when the checkpoint has no masked-language head, InputError for int16 without
        kernels and for other precisions.
        """
        folder = locate_model(name).folder
        model, _ = load_pretraining_model(folder)
        engine = start_engine(model, folder, device, compute_dtype)
        return cls(engine.model, engine.tokenizer)

    @check_arguments(text=check_text, top=integer_from(1))
    def fill_mask(self, text: str, top: int = 5) -> list[list[MaskCandidate]]:
        """Returns the `top` candidates for each mask of a text (see
        bertsmith.tasks.pretraining.fill_mask).
        """
        return fill(self.model, self.tokenizer, text, top)

    @check_arguments(data=check_path, max_tokens=integer_from(1), sequence_length=integer_from(8))
    def evaluate(
        self, data: str | Path, max_tokens: int = 1_000_000, sequence_length: int = 128
    ) -> dict[str, float]:
        """Evaluates the model: masked-language loss, perplexity and accuracy, and next-sentence or
        sentence-order accuracy if the model has that head. For series and images, the error of values with
        half of the patches masked.

        The loss of a token depends on the vocabulary. In nats per character, models with different
        vocabularies can be compared: `mlm_loss_per_character` masks single tokens, which may see the rest of
        their word; `whole_word_loss_per_character` masks all tokens of a word.

        `data` is a corpus or a token store, of which the held-out part is used if there is one (see
        `measured_split`). A single document gives no figures of pairs. A table's row is never divided,
        whatever the `sequence_length`. The masks are the same at every call. Raises InputError when there is
        nothing to evaluate, StoreError for a store that is damaged or of another tokenizer.
        """
        path = Path(data)
        split = measured_split(path)
        if is_store(path):
            return self._evaluate_store(path, split, max_tokens, sequence_length)
        # here, since filling a mask needs none of what reads text in all its forms
        from bertsmith.data.tokenizing import tokenize_corpus
        from bertsmith.text.corpus.corpus import Corpus

        with TemporaryDirectory() as folder:
            store = Path(folder) / "store"
            tokenize_corpus(Corpus.open(path), self.tokenizer, store, splits=[split])
            return self._evaluate_store(store, split, max_tokens, sequence_length)

    def _evaluate_store(
        self, path: Path, split: Split, max_tokens: int, sequence_length: int
    ) -> dict[str, float]:
        from bertsmith.data.sequences.codec import table_row_length  # here for the same reason

        store = TokenStore.open(path / split, self.tokenizer)
        if len(store) == 0:
            raise InputError(f"{path} has no text to measure on.")
        store.verify()
        next_sentence = self.model.next_sentence is not None and len(store) > 1
        least_length = max(sequence_length, table_row_length(path) or 0)
        length = min(least_length, self.model.config.max_length)
        stream = PretrainingStream(
            store,
            self.tokenizer,
            0,
            next_sentence,
            length,
            16 * length,
            sentence_order=self.model.sentence_order,
        )
        device = next(self.model.parameters()).device
        if store.values is not None:
            rates = MaskingRates(mask_rate=0.5 if isinstance(self.tokenizer, PatchTokenizer) else 0.15)
            masker, reconstruct = Masker(self.tokenizer, rates, device), reconstruction_class(self.tokenizer)
            values = reconstruct(self.model, [stream], masker, stream, max_tokens, device)
            return values.metrics(values.sum_heldout(0, 1))
        masker = Masker(self.tokenizer, MaskingRates(), device)
        task = PretrainingTask(self.model, [stream], masker, stream, max_tokens, device)
        sums = task.sum_heldout(0, 1)
        words = task.sum_heldout(0, 1, masker=Masker(self.tokenizer, MaskingRates(whole_words=True), device))
        require_finite(torch.tensor([*sums.values(), *words.values()]))
        metrics = task.metrics(sums)
        for name, masked_sums in (("mlm_loss_per_character", sums), ("whole_word_loss_per_character", words)):
            if masked_sums["mlm_characters"]:
                metrics[name] = masked_sums["mlm_loss"] / masked_sums["mlm_characters"]
        return metrics


def measured_split(data: Path) -> Split:
    """The split of a corpus or token store that `evaluate` uses: heldout, or train if heldout is empty."""
    from bertsmith.text.corpus.corpus import Corpus  # here for the same reason

    if is_store(data):
        documents = len(TokenStore.open(data / "heldout"))
    else:
        documents = Corpus.open(data).manifest.splits["heldout"].counts.documents
    return "heldout" if documents else "train"
