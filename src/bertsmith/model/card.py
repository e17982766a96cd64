"""README.md of a model folder, for whoever gets it: what the model is, how to use it, how good it is, and
what it learned from. The hub shows it as the model's page.

Its figures are those of bertsmith.json, among them which test files its corpus was compared with. It isn't
hashed: whoever publishes the model completes it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertsmith.files import read_json, sha256
from bertsmith.model.locate import ALIASES, is_hub_name
from bertsmith.model.manifest import Manifest, read_manifest, stated_manifest

CARD = "README.md"
_MOST_LABELS = 30
_VECTORS = ("encoder", "similarity", "retrieval")  # tasks whose answers are cosines
_UNTRAINED = ("linear", "self-training")  # methods of fine-tuning that leave the encoder alone
_ROLES = {"train": "Labelled rows", "texts": "Texts without labels", "unlabelled": "Texts without labels"}
_METRICS = {  # of a pre-training, where the names of the log say little
    "mlm_accuracy": "masked tokens guessed right",
    "mlm_majority": "the same by always guessing the commonest",
    "mlm_loss": "loss of a masked token",
    "mlm_perplexity": "perplexity of a masked token",
}
_TODO = """## Before you publish it

Replace these lines:

- Licence: of this model, and of the texts that it learned from.
- Languages, and kinds of text.
- What it is for, what it is not for, and whom its errors could harm."""
_PREDICTOR = 'from bertsmith import Predictor\n\nPredictor.load("{folder}").predict([{input}])'
_EMBEDDER = 'from bertsmith import Embedder\n\nEmbedder("{folder}").documents(["A text."])  # a vector each'
_BY_CLASS = {  # of transformers, where another tool made the model
    "ForMaskedLM": "pretraining",
    "ForPreTraining": "pretraining",
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "tagging",
    "ForQuestionAnswering": "question-answering",
    "Model": "encoder",
}
_KEY, _ROW_LENGTH = "corpus_checked_against", "table_row_length"  # in a provenance


class _ModelKind(NamedTuple):
    """The hub's name of what a model does, ours, and a line of Python that has it do that."""

    pipeline: str
    title: str
    example: str


def _predictor(what: str) -> str:
    return _PREDICTOR.replace("{input}", what)


_KINDS = {
    "pretraining": _ModelKind(
        "fill-mask",
        "A language model for masked words",
        "from bertsmith import MaskedLanguageModel\n\n"
        'MaskedLanguageModel.load("{folder}").fill_mask("A text with a {mask}.")',
    ),
    "encoder": _ModelKind("feature-extraction", "An encoder of texts", _EMBEDDER),
    "classification": _ModelKind("text-classification", "A classifier of texts", _PREDICTOR),
    "multi-label": _ModelKind(
        "text-classification", "A classifier of texts, with several labels for each", _PREDICTOR
    ),
    "regression": _ModelKind("text-classification", "A model that gives texts a number", _PREDICTOR),
    "tagging": _ModelKind(
        "token-classification", "A tagger of words", _predictor('["A", "sentence\'s", "words"]')
    ),
    "question-answering": _ModelKind(
        "question-answering",
        "A model that finds answers in passages",
        _predictor('("A question?", "A passage.")'),
    ),
    "similarity": _ModelKind(
        "sentence-similarity", "A model of how similar texts are", _predictor('("A text.", "Another.")')
    ),
    "retrieval": _ModelKind("sentence-similarity", "A model for search", _EMBEDDER),
    "reranking": _ModelKind(
        "text-ranking", "A re-ranker of search results", _predictor('("A query", "A document.")')
    ),
}
_ANY = _ModelKind("feature-extraction", "A model for texts", _PREDICTOR)
_BEGINNING = _ModelKind(
    "feature-extraction",
    "A pre-trained encoder, to be fine-tuned",
    "from bertsmith import finetune\n\n"
    'finetune("classification", model="{folder}", train="rows.csv", out="runs/mine")',
)


def write_card(folder: Path, manifest: Manifest, shape: str) -> None:
    """Beside the model's files, once they are there. `shape` says how large the model is."""
    text = "\n\n".join(_parts(folder, manifest, shape)) + "\n"
    (folder / CARD).write_text(text, encoding="utf-8")


def _parts(folder: Path, manifest: Manifest, shape: str) -> Iterator[str]:
    kind, origin = _kind(folder, manifest), manifest.provenance
    recipe = _section(origin, "recipe")
    base = recipe.get("init") or recipe.get("student") or recipe.get("model")
    yield _front_matter(folder, manifest, kind, base)
    yield f"# {kind.title}\n\n{shape}. Made with Bertsmith {manifest.bertsmith}."
    tokenizer = folder / "tokenizer_config.json"  # ours
    mask = str((read_json(tokenizer) if tokenizer.exists() else {}).get("mask_token") or "[MASK]")
    example = kind.example.format(folder="FOLDER", mask=mask, input=_input(folder, manifest))
    yield f"## How to use it\n\n```python\n{example}\n```\n\n{_others(folder, manifest)}"
    labels = manifest.settings.get("labels")
    if isinstance(labels, list | tuple) and labels:
        shown = ", ".join(_code(label) for label in labels[:_MOST_LABELS])
        more = (
            f" and {len(labels) - _MOST_LABELS} more, in bertsmith.json" if len(labels) > _MOST_LABELS else ""
        )
        yield f"Its {len(labels):,} labels: {shown}{more}."
    if figures := _figures(origin):
        yield f"## How good it is\n\n{figures}"
    yield "## How it was made\n\n" + "\n".join(f"- {each}" for each in _history(origin, recipe, base))
    yield _TODO


def _kind(folder: Path, manifest: Manifest) -> _ModelKind:
    task = manifest.task
    if task in ("imported", "extended"):
        ends = (name for name in _BY_CLASS if manifest.architecture.endswith(name))
        task = _BY_CLASS.get(next(ends, ""), "")
    # Rows of numbers have no mask to write, and ELECTRA's discriminator fills none.
    if task == "pretraining" and (_reads_numbers(folder) or manifest.architecture == "ElectraForPreTraining"):
        return _BEGINNING
    return _KINDS.get(task, _ANY)


def _reads_numbers(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("patches.json", "numbers.json"))


def _input(folder: Path, manifest: Manifest) -> str:
    """What a model of texts, of pairs, of columns beside them or of rows of numbers is asked, as Python."""
    if _reads_numbers(folder):
        return "row"
    pair = _section(manifest.settings, "settings").get("text_pair") or manifest.settings.get("pairs") is True
    if columns := _columns(manifest):
        texts = {"text": "A text."} | ({"text_pair": "Another."} if pair else {})
        return json.dumps(texts | {str(column.get("name")): _cell(column) for column in columns})
    return '("A text.", "Another.")' if pair else '"A text."'


def _columns(manifest: Manifest) -> list[Mapping[str, Any]]:
    """Beside the text, as training saw them."""
    found = manifest.settings.get("columns")
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list | tuple) else []


def _cell(column: Mapping[str, Any]) -> object:
    """A value that the column may have."""
    mean, values = column.get("mean"), column.get("values")
    if isinstance(mean, int | float):
        return round(mean, 1)
    return next((str(value) for value in values if value), "") if isinstance(values, list | tuple) else ""


def _front_matter(folder: Path, manifest: Manifest, kind: _ModelKind, base: object) -> str:
    library = "bertsmith" if _is_bare(manifest) else "transformers"
    if (folder / "modules.json").exists():
        library = "sentence-transformers"
    lines = {"library_name": library, "pipeline_tag": kind.pipeline, "tags": ["bertsmith"]}
    if isinstance(base, str) and (named := _on_the_hub(base)):
        lines["base_model"] = named
    return "\n".join(["---", *(f"{name}: {json.dumps(value)}" for name, value in lines.items()), "---"])


def _is_bare(manifest: Manifest) -> bool:
    return manifest.architecture.endswith("Model")


def _others(folder: Path, manifest: Manifest) -> str:
    """Which other libraries open the folder, and what they see of it."""
    if not _is_bare(manifest):
        said = f"`transformers` opens it as `{manifest.architecture}`."
    elif _reads_numbers(folder):
        said = "A `row` is numbers with blanks between them, as `bertsmith sequences encode` writes it."
        said += " Other libraries can't read such rows."
    elif not (folder / "modules.json").exists():
        said = "`transformers` opens its encoder."
    elif _columns(manifest):
        said = "`sentence-transformers` opens its encoder, without the head and the columns."
    elif manifest.task in _VECTORS:
        said = "`sentence-transformers` opens it."
    else:
        said = "`sentence-transformers` opens it: its vectors are the head's outputs."
    if manifest.settings.get("confidence"):
        said += " Other libraries don't know the temperature and the thresholds in bertsmith.json."
    return said


def _figures(origin: Mapping[str, Any]) -> str:
    """A table: of a pre-training a column, of a task one for each part that was measured."""
    metrics = _section(origin, "metrics")
    parts = {name: each for name, each in metrics.items() if isinstance(each, Mapping)}
    if not parts:
        parts = {"held-out text": {name: each for name, each in metrics.items() if _is_number(each)}}
    names = list(dict.fromkeys(name for part in parts.values() for name in part))
    if not names:
        return ""
    numbers = {name: " | ".join(_number(part.get(name)) for part in parts.values()) for name in names}
    rows = [f"| {_METRICS.get(name, _plain(name))} | {shown} |" for name, shown in numbers.items()]
    head = f"| | {' | '.join(map(_plain, parts))} |\n| --- |{' --- |' * len(parts)}"
    said = {
        "dev": "dev chose the settings",
        "cross-validation": "cross-validation is of the training rows, each by a model that didn't have it",
        "test": "test was measured once, and chose nothing",
    }
    notes = [text for name, text in said.items() if name in parts]
    after = f"\n\n{'; '.join(notes).capitalize()}." if notes else ""
    return "\n".join([head, *rows]) + after


def _history(origin: Mapping[str, Any], recipe: Mapping[str, Any], base: object) -> Iterator[str]:
    if base and isinstance(base, str):
        yield f"It began from {_code(_name(base))}."
    elif begun := recipe.get("decay_from"):
        yield f"It began from {_checkpoint(str(begun))}; steps and tokens below are those of the decay alone."
    elif "corpus" in recipe:
        yield "It began from random weights."
    teachers = recipe.get("teacher")
    if teachers and isinstance(teachers, str | list | tuple):
        every = [teachers] if isinstance(teachers, str) else list(teachers)
        names = ", ".join(_code(_name(str(each))) for each in every)
        yield f"Its teacher{'s' if len(every) > 1 else ''}: {names}."
    if imported := origin.get("imported_from"):
        yield f"Imported from {_code(imported)}."
    if text := _section(origin, "text"):
        checked = origin.get("corpus_checked_against")
        yield _text(text, len(checked) if isinstance(checked, list | tuple) else 0)
    for role, said in _ROLES.items():
        given = recipe.get(role)
        if given and isinstance(given, str | list | tuple):
            files = [given] if isinstance(given, str) else list(given)
            rows = origin.get("rows") if role == "train" else None
            counted = f", {rows:,} rows" if isinstance(rows, int) else ""
            yield f"{said}: {', '.join(_code(Path(str(file)).name) for file in files)}{counted}."
    facts = {
        "objective": recipe.get("objective"),
        "method": origin.get("method"),
        "steps": origin.get("steps"),
        "tokens": origin.get("tokens"),
    }
    if origin.get("method") in _UNTRAINED:
        yield "The encoder stayed as it was; only the head on it was learned."
    else:
        facts |= {
            "epochs": recipe.get("epochs"),
            "batch size": recipe.get("batch_size") or _section(recipe, "data").get("batch_size"),
            "learning rate": _section(recipe, "optimizer").get("learning_rate"),
            "optimizer": _section(recipe, "optimizer").get("kind"),
            "seed": recipe.get("seed"),
        }
    known = [
        f"{name} {_fact(value)}" for name, value in facts.items() if isinstance(value, str | int | float)
    ]
    if known:
        yield f"Settings: {', '.join(known)}."
    yield "bertsmith.json has every setting, and the hash of each file."


def _checkpoint(path: str) -> str:
    """Of a run whose learning rate hadn't fallen yet."""
    run, step = Path(path).parent.parent, Path(path).name.removeprefix("step-")
    return (
        f"step {int(step):,} of the long run {_code(_name(str(run)))}"
        if step.isdecimal()
        else _code(_name(path))
    )


def _text(text: Mapping[str, Any], checked: int) -> str:
    """What a corpus or a token store says of itself."""
    sizes = ", ".join(
        f"{text[name]:,} {name}" for name in ("documents", "words", "tokens") if _is_number(text.get(name))
    )
    licence = f" Their licence: {_code(text['licence'])}." if text.get("licence") else ""
    files = f" Rows of {checked:,} test file{'s' if checked > 1 else ''} were taken out." if checked else ""
    return f"Pre-training text: {sizes}.{licence}{files}"


def _section(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = of.get(name)
    return found if isinstance(found, Mapping) else {}


def _on_the_hub(base: str) -> str | None:
    """The name there of the model that this one began from; None for a folder."""
    if Path(base).exists():
        return None
    return ALIASES[base].hub if base in ALIASES else base if is_hub_name(base) else None


def _name(path: str) -> str:
    """Of a path no more than its last parts: where things lay on a machine is nobody's business."""
    if _on_the_hub(path) or "/" not in path:
        return path
    return "/".join(part for part in Path(path).parts[-2:] if part != "/")


def _code(text: object) -> str:
    """As code, whatever a stranger's file calls things."""
    return f"`{_plain(text).replace('`', chr(39)) or ' '}`"


def _plain(text: object) -> str:
    """On one line, and in one cell of a table."""
    return "".join(each if each.isprintable() and each != "|" else " " for each in str(text))[:80]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: object) -> str:
    if not _is_number(value):
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _fact(value: object) -> str:
    if isinstance(value, str):
        return _plain(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def checked_against(folder: Path | None) -> frozenset[str] | None:
    """The SHA-256 of each test file; None where nothing is known of the corpus, or there is no folder."""
    manifest = read_manifest(folder) if folder is not None else None
    known = manifest.provenance.get(_KEY) if manifest is not None else None
    return frozenset(map(str, known)) if isinstance(known, list) else None


def contamination_provenance(*checked: Iterable[str] | None) -> dict[str, list[str]]:
    """What a provenance says of the corpora that a model was trained on, one after the other: the files that
    all of them were compared with. A corpus of which nothing is known is passed over.
    """
    known = [frozenset(each) for each in checked if each is not None]
    return {_KEY: sorted(frozenset.intersection(*known))} if known else {}


def unchecked_warning(folder: Path, test: Path) -> str | None:
    """A sentence where the model's corpus was never compared with the file it is measured on; else None."""
    checked = checked_against(folder)
    if checked is None or not test.is_file() or sha256(test) in checked:
        return None
    return (
        f"the corpus that this model was pre-trained on was never compared with {test.name}: it may have "
        f"read the answers. bertsmith corpus decontaminate CORPUS --against {test} tells, and takes them out."
    )


def learned_row_length(model: Path | None) -> int | None:
    """Of the table that a model was pre-trained on, as its bertsmith.json says; None where that says nothing
    of one.
    """
    manifest = None if model is None else stated_manifest(model)
    found = None if manifest is None else manifest.provenance.get(_ROW_LENGTH)
    return found if isinstance(found, int) else None


def rows_provenance(length: int | None) -> dict[str, int]:
    """What a provenance says of it."""
    return {} if length is None else {_ROW_LENGTH: length}
