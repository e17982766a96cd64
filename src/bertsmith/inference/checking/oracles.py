"""Answers of other tools, transformers and sentence-transformers, to the same folder and texts.

Only this module imports them, and only when a check against them is asked for.

N tokens, H hidden size, R rows that a head reads, T texts of an example, D width of a vector.
"""

import unicodedata
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from bertsmith.errors import InputError
from bertsmith.model.bert import Bert
from bertsmith.model.untrusted import plain_file, read_settings
from bertsmith.tasks.examples.encoding import EncodedExample, Window, special_tokens
from bertsmith.tasks.golden.records import GoldenRecord, ModelAnswers, record_of
from bertsmith.tasks.golden.subject import GoldenSubject, Item, TaskSubject, VectorSubject
from bertsmith.text.tokens.tokenizer import Tokenizer

Oracle = Literal["transformers", "sentence-transformers"]


def their_answers(
    oracle: Oracle, folder: Path, subject: GoldenSubject, inputs: Sequence[Any]
) -> ModelAnswers:
    """The other tool's answers to the inputs that fit into one window. Skips inputs that spell a special
    token, which Bertsmith reads as text. Raises InputError if no input is left, and if the tool isn't
    installed or doesn't open the folder.
    """
    declared = subject.encoder.config.family.declared if isinstance(subject.encoder, Bert) else {}
    if declared:
        raise InputError(
            f"There is nothing to compare {folder} with: {oracle} would take it for a "
            f"{declared['model_type']}. Only its authors' code opens it, which Bertsmith never runs."
        )
    try:
        package = import_module(oracle.replace("-", "_"))
    except ModuleNotFoundError as error:
        raise InputError(f"Comparing with {oracle} needs it installed: pip install {oracle}") from error
    special = [subject.tokenizer.id_to_token(number) for number in subject.tokenizer.special_ids]
    items = []
    for item_input in inputs:
        if (item := subject.item(item_input)) is None:
            continue
        text_numbers = [window.text for window in item.encoded.windows]
        in_one_piece = len(text_numbers) == len(set(text_numbers))
        spells_special = any(token.lower() in text.lower() for text in item.texts for token in special)
        if not in_one_piece or spells_special:
            continue
        if not _reads_words(subject) or _is_read_word_by_word(item, subject.tokenizer):
            items.append(item)
    if not items:
        raise InputError(
            f"There is nothing to compare: {folder} reads none of the texts as {oracle} does. A tagger with "
            "a byte-level vocabulary reads each word with a blank before it (docs/files.md)."
        )
    try:
        with torch.inference_mode():
            if oracle == "transformers":
                return _TransformersOracle(package, folder, subject).answers(items)
            return _SentenceTransformersOracle(package, folder, subject).answers(items)
    except (OSError, ValueError, LookupError, AttributeError, RuntimeError) as error:
        first_line = str(error).partition("\n")[0][:300]
        raise InputError(f"{oracle} doesn't open {folder}, or can't answer: {first_line}") from error


def _reads_words(subject: GoldenSubject) -> bool:
    return isinstance(subject, TaskSubject) and subject.task.is_pretokenized


def _is_read_word_by_word(item: Item, tokenizer: Tokenizer) -> bool:
    """Whether Bertsmith reads each word as its tokens, as transformers does. To Bertsmith a word without
    tokens is [UNK], and a word that is [UNK] alone may be read letter by letter.
    """
    pieces = [tokenizer.encode(word).ids for word in item.texts]
    return all(pieces) and sum(map(len, pieces)) == item.encoded.tokens - special_tokens(tokenizer, 1)


def _read_sentencepiece(folder: Path, subject: GoldenSubject) -> Any:
    """transformers' tokenizer that follows a tokenizer.json, if that is SentencePiece's, else None. The
    classes for XLM-RoBERTa, CamemBERT, DeBERTa, ALBERT and Gemma take the pieces from it, and build other
    rules around them.
    """
    if not subject.tokenizer.is_sentencepiece:
        return None
    return import_module("transformers").PreTrainedTokenizerFast.from_pretrained(folder)


def _read_past_nul(tokenizer: Any) -> None:
    """Lets transformers' Japanese tokenizer read a NUL as a blank: MeCab leaves out all that follows it."""
    words: Any = getattr(tokenizer, "word_tokenizer", None)
    if hasattr(words, "mecab"):
        read = words.mecab
        words.mecab = lambda text: read(text.replace("\0", " "))


class _OracleTokenizer:
    """Wraps the other tool's tokenizer with the methods that `record_of` calls."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def normalise(self, text: str) -> str:
        if not hasattr(self.tokenizer, "backend_tokenizer"):  # Japanese, with MeCab
            text = unicodedata.normalize("NFKC", text)
            return text.lower() if self.tokenizer.do_lower_case else text
        normalizer = self.tokenizer.backend_tokenizer.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def id_to_token(self, number: int) -> str:
        return str(self.tokenizer.convert_ids_to_tokens(number))


def _make_record(
    item: Item, tokenizer: Any, batches: Sequence[Any], states: Any, outputs: Any
) -> GoldenRecord:
    """A golden record of the other tool's answer. `batches` are its inputs, one for each text that is encoded
    apart.
    """
    windows = []
    for number, batch in enumerate(batches):
        ids = batch["input_ids"][0].numpy()
        segments = batch["token_type_ids"][0].numpy() if "token_type_ids" in batch else np.zeros_like(ids)
        windows.append(Window(ids, segments, np.zeros(0, np.int64), number))
    theirs = Item(item.input, item.texts, EncodedExample(tuple(windows)))
    return record_of(theirs, _OracleTokenizer(tokenizer), states, outputs)  # type: ignore[arg-type]


def _named_stages(all_states: Sequence[Any]) -> dict[str, Any]:
    """Hidden states of each text, a tuple over layers -> by our names of stages, with texts end to end."""
    names = ["embeddings", *(f"layer {number}" for number in range(1, len(all_states[0])))]
    return {
        name: np.concatenate([states[number][0].float().numpy() for states in all_states])
        for number, name in enumerate(names)
    }


class _TransformersOracle:
    def __init__(self, package: Any, folder: Path, subject: GoldenSubject) -> None:
        self.subject = subject
        self.tokenizer = _read_sentencepiece(folder, subject) or package.AutoTokenizer.from_pretrained(folder)
        _read_past_nul(self.tokenizer)
        names = read_settings(plain_file(folder, "config.json")).get("architectures") or ["AutoModel"]
        model = getattr(package, names[0]).from_pretrained(folder, attn_implementation="eager")
        self.model = model.eval().float()  # from_pretrained keeps the precision of the file
        segments = ["token_type_ids"] if getattr(model.config, "type_vocab_size", 0) else []
        self.inputs = ["input_ids", "attention_mask", *segments]

    def answers(self, items: Sequence[Item]) -> ModelAnswers:
        stages: tuple[str, ...] = ()
        records = []
        for item in items:
            batches = self._make_batches(item)
            inputs = [{name: batch[name] for name in self.inputs if name in batch} for batch in batches]
            outputs = [self.model(**kwargs, output_hidden_states=True) for kwargs in inputs]
            states = _named_stages([output.hidden_states for output in outputs])
            stages = tuple(states)
            records.append(
                _make_record(item, self.tokenizer, batches, states, self._head_outputs(item, outputs[0]))
            )
        return ModelAnswers(stages, tuple(records))

    def _make_batches(self, item: Item) -> list[Any]:
        """The other tool's inputs: one batch for texts that are read together, else one for each text."""
        are_words = _reads_words(self.subject)
        apart = len(item.encoded.windows) == len(item.texts) > 1 and not are_words
        together: Sequence[Any] = (list(item.texts),) if are_words else item.texts
        batches = [
            self.tokenizer(
                *texts,
                truncation=True,
                max_length=self.subject.max_length,
                is_split_into_words=are_words,
                return_tensors="pt",
            )
            for texts in ([(text,) for text in item.texts] if apart else [together])
        ]
        if self.subject.kind == "masked-language":
            (window,), ids = item.encoded.windows, batches[0]["input_ids"]
            if len(window.token_ids) == ids.shape[1]:
                ids[0, int(window.rows[0])] = self.tokenizer.mask_token_id
        return batches

    def _head_outputs(self, item: Item, output: Any) -> Any:
        """The other model's head outputs in the shape of ours; empty if it has no head."""
        rows = item.encoded.windows[0].rows
        if "start_logits" in output:
            start_end = torch.stack([output.start_logits[0], output.end_logits[0]], -1)
            return start_end[rows].numpy() if int(rows.max(initial=0)) < len(start_end) else ()
        logits = output.get("prediction_logits", output.get("logits"))
        if logits is None:
            return ()
        logits = logits[0].numpy()
        if logits.ndim == 2:  # of tokens
            logits = logits[rows] if int(rows.max(initial=0)) < len(logits) else logits[:0]
        if self.subject.kind == "masked-language":
            logits = logits[:, : self.subject.tokenizer.vocab_size]
        return logits


class _SentenceTransformersOracle:
    def __init__(self, package: Any, folder: Path, subject: GoldenSubject) -> None:
        if not isinstance(subject, VectorSubject):
            raise InputError(
                f"{folder} is a fine-tuned or a masked language model: compare it with transformers. "
                "sentence-transformers is for models of vectors."
            )
        self.model = package.SentenceTransformer(str(folder), device="cpu").float()
        if (tokenizer := _read_sentencepiece(folder, subject)) is not None:
            longest = self.model.max_seq_length  # as sentence_bert_config.json says
            self.model[0].processor = tokenizer
            self.model.max_seq_length = longest
        self.tokenizer = self.model.tokenizer
        _read_past_nul(self.tokenizer)

    def answers(self, items: Sequence[Item]) -> ModelAnswers:
        stages: tuple[str, ...] = ()
        records = []
        for item in items:
            input_texts, prompts = (
                item.input.given,
                self.model.prompts,
            )  # as encode_query and encode_document put them
            if isinstance(input_texts, str):
                texts = [(prompts.get("document") or "") + input_texts]
            else:
                texts = [
                    (prompts.get("query") or "") + input_texts[0],
                    (prompts.get("document") or "") + input_texts[1],
                ]
            longest = self.model.max_seq_length
            batches = [
                self.tokenizer([text], truncation=True, max_length=longest, return_tensors="pt")
                for text in texts
            ]
            encoder = self.model[0].auto_model
            outputs = [encoder(**batch, output_hidden_states=True) for batch in batches]
            states = _named_stages([output.hidden_states for output in outputs])
            pooled = [
                self.model[1]({"token_embeddings": output[0], "attention_mask": batch["attention_mask"]})
                for output, batch in zip(outputs, batches, strict=True)
            ]
            states["pooled"] = np.concatenate([features["sentence_embedding"].numpy() for features in pooled])
            stages = tuple(states)
            vectors = self.model.encode(texts, prompt="", batch_size=1, normalize_embeddings=True)
            prefixed_item = item._replace(texts=tuple(texts))
            records.append(_make_record(prefixed_item, self.tokenizer, batches, states, vectors))
        return ModelAnswers(stages, tuple(records))
