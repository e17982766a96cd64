"""How Hugging Face's config.json spells the shape of a model, for reading and for writing, and which class of
transformers it names for a set of heads.

Reading is an allow-list, `CONFIG` in folder_keys and the family's record: a key that stands in neither is
refused, since it could mean something that we do not compute.
"""

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from bertsmith.errors import ModelError
from bertsmith.model.config import BertConfig, make_config
from bertsmith.model.families import FAMILIES, Family, find_family
from bertsmith.model.folder_keys import CONFIG, FileKeys
from bertsmith.validation import first_problem

# Other names of activations we have.
_ACTIVATIONS = {"gelu_python": "gelu", "gelu_pytorch_tanh": "gelu_new"}


def config_keys(family: Family) -> FileKeys:
    """What each key of a config.json of the family means."""
    shape = dict.fromkeys(family.config_keys(), "the model's shape")
    rotary = dict.fromkeys(family.rotary.keys if family.rotary else (), "rotary positions, local attention")
    return replace(
        CONFIG,
        honoured={**CONFIG.honoured, **shape, **rotary},
        harmless={**CONFIG.harmless, **family.harmless},
        accepted={**CONFIG.accepted, **family.required},
    )


def config_from_hugging_face(values: dict[str, Any], where: str) -> BertConfig:
    """Reads the content of a config.json.

    A file without `model_type` (transformers before 2.3, Google's bert_config.json) is taken for BERT.
    Raises ModelError for one that isn't BERT's, for code references, unknown keys, keys that contradict each
    other, and settings we do not compute.
    """
    if values.get("auto_map") is not None:
        raise ModelError(
            f"{where} asks to run code of its own (auto_map). Bertsmith never does; use another checkpoint."
        )
    named = values.get("model_type")
    if named is None:
        _require_bert(values, where)
    try:
        family = find_family("bert" if named is None else named)
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from error
    model_type = family.model_type
    config_keys(family).require(values, where)
    more, names = family.rotary, family.config_keys()
    kept = {"model_type": model_type} | dict(family.assumed)
    given: dict[str, str] = {}
    for key, value in values.items():
        if value is None or key not in names:
            continue
        ours = names[key]
        value = _ACTIVATIONS.get(value, value) if ours.endswith("_act") and isinstance(value, str) else value
        if ours in given and kept[ours] != value:
            raise ModelError(
                f"{where}: {given[ours]} = {kept[ours]!r} and {key} = {value!r} say different things. "
                "Remove the one that is wrong."
            )
        kept[ours], given[ours] = value, key
    return make_config(kept | (more.read(values, where) if more else {}), where)


def _require_bert(values: Mapping[str, Any], where: str) -> None:
    """Raises ModelError for what names no family, and isn't BERT's. RoBERTa's keys and tensors are called the
    same, and mean other positions.
    """
    classes = values.get("architectures")
    first = classes[0] if isinstance(classes, list) and classes else "Bert"
    if not str(first).startswith("Bert") or values.get("type_vocab_size") == 1:
        raise ModelError(
            f"{where} has no model_type, which would mean BERT; but a BERT's class begins with Bert, and it "
            'has two segments (type_vocab_size 2). Say what it is: "model_type": "roberta", or another.'
        )


def config_to_hugging_face(config: BertConfig, architecture: str) -> dict[str, Any]:
    """The content of a config.json that transformers opens as `architecture`."""
    family, values = config.family, config.model_dump() | {"embedding_size": config.embedding_width}
    spelled = {theirs: values[ours] for ours, theirs in family.spelling.items()}
    if family.rotary is not None:
        spelled |= family.rotary.write(values)
    kept = {key: value for key, value in spelled.items() if value is not None}
    head = {"architectures": [architecture], "model_type": config.model_type}
    return {**head, **kept, **family.written, "tie_word_embeddings": True}


class Labels(BaseModel):
    """What a head's outputs mean, and what a cross-encoder makes of them: keys that travel with it."""

    id2label: dict[Annotated[str, Field(pattern="^[0-9]{1,6}$")], str] | None = None
    label2id: dict[str, Annotated[int, Field(ge=0)]] | None = None
    num_labels: Annotated[int, Field(ge=1)] | None = None
    problem_type: str | None = None
    sentence_transformers: dict[str, Any] | None = None
    sbert_ce_default_activation_function: str | None = None


def read_labels(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The keys of config.json that belong to a head, as they are. Raises ModelError for a wrong type."""
    given = {key: values[key] for key in Labels.model_fields if key in values}
    try:
        return Labels.model_validate(given, strict=True).model_dump(exclude_none=True)
    except ValidationError as error:
        raise ModelError(f"the config.json of {where}: {first_problem(error, Labels)}") from error


class Architecture(NamedTuple):
    """A class of transformers, and the heads it needs beside the encoder."""

    name: str
    heads: frozenset[str]

    @property
    def bare(self) -> bool:
        """True for a model without a head: its encoder's names carry no prefix."""
        return not self.heads


def architectures(family: str) -> list[Architecture]:
    """Of one family, in the order of its record."""
    known = find_family(family)
    return [
        Architecture(known.class_prefix + name, frozenset(heads)) for name, heads in known.classes.items()
    ]


def find_architecture(name: str) -> Architecture:
    """Raises ValueError for a class that no family has."""
    found = [
        architecture
        for family in FAMILIES
        for architecture in architectures(family)
        if architecture.name == name
    ]
    if not found:
        raise ValueError(f"{name!r} is a class of no family")
    return found[0]


def choose_architecture(family: str, parts: Set[str], declared: str = "") -> Architecture:
    """The class that uses most of `parts`; of equals the declared one, else the first of the record.

    The tensors come before the claim: bert-base-uncased calls itself BertForMaskedLM and holds both heads.
    """
    fitting = [known for known in architectures(family) if known.heads <= parts]
    return max(fitting, key=lambda known: (len(known.heads), known.name == declared))
