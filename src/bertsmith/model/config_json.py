"""Reads and writes Hugging Face's config.json, and chooses the class of transformers for a model's heads.

Reading goes by an allow-list, `CONFIG` in folder_keys and the family's record: any other key is refused,
since it could mean something that we don't compute.
"""

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from bertsmith.errors import ModelError
from bertsmith.model.config import BertConfig, make_config
from bertsmith.model.families import FAMILIES, Family, find_family
from bertsmith.model.folder_keys import CONFIG, FileKeys
from bertsmith.validation import describe_problem

# Other names of our activations.
_ACTIVATIONS = {"gelu_python": "gelu", "gelu_pytorch_tanh": "gelu_new"}


def config_keys(family: Family) -> FileKeys:
    """The allow-list of keys in a config.json of the family."""
    shape = dict.fromkeys(family.config_keys(), "the model's shape")
    rotary = dict.fromkeys(family.rotary.keys if family.rotary else (), "rotary positions, local attention")
    honoured = {**CONFIG.honoured, **shape, **rotary}
    names = {key: tuple(values) for key, values in family.renamed.items()}
    table = replace(
        CONFIG,
        honoured={key: meaning for key, meaning in honoured.items() if key not in family.renamed},
        harmless={**CONFIG.harmless, **family.harmless},
        accepted={**CONFIG.accepted, **family.required, **names},
    )
    if family.authors is None or not family.authors.code:
        return table
    rest = {key: values for key, values in table.accepted.items() if key != "auto_map"}
    code = {"auto_map": "code is never run, and any but the family's authors' is refused"}
    return replace(table, accepted=rest, honoured={**table.honoured, **code})


def config_from_hugging_face(values: dict[str, Any], where: str) -> BertConfig:
    """Reads the content of a config.json; `where` names it in errors.

    A file without `model_type` (transformers before 2.3, Google's bert_config.json) is taken for BERT's.
    Raises ModelError where it isn't, for references to code, unknown keys, keys that contradict each other,
    and settings that we don't compute.
    """
    family = _find_declared(values, where)
    _refuse_code(values, family, where)
    config_keys(family).require(values, where)
    rotary, names = family.rotary, family.config_keys()
    by_authors = family.authors is not None and family.authors.model_type == values.get("model_type")
    assumed = family.authors.assumed if family.authors is not None and by_authors else family.assumed
    fields = {"model_type": family.model_type} | dict(assumed)
    key_of: dict[str, str] = {}
    for key, value in values.items():
        if value is None or key not in names:
            continue
        ours = names[key]
        if key in family.renamed:
            value = family.renamed[key][value]
        value = _ACTIVATIONS.get(value, value) if ours.endswith("_act") and isinstance(value, str) else value
        if ours in key_of and fields[ours] != value:
            raise ModelError(
                f"{where}: {key_of[ours]} = {fields[ours]!r} and {key} = {value!r} say different things. "
                "Remove the one that is wrong."
            )
        fields[ours], key_of[ours] = value, key
    fields |= rotary.read(values, where) if rotary else {}
    inner = fields.get("inner_group_num", 1)
    if isinstance(inner, int) and inner > 1:  # a file counts groups, we their layers
        usual = BertConfig.model_fields["num_hidden_layers"].default
        fields["num_hidden_layers"] = fields.get("num_hidden_layers", usual) * inner
    return make_config(fields, where)


def _find_declared(values: Mapping[str, Any], where: str) -> Family:
    """The family of a config.json, by its model_type or the authors'. Raises ModelError."""
    declared = values.get("model_type")
    if declared is None:
        _require_bert(values, where)
        return find_family("bert")
    for family in FAMILIES.values():
        if family.authors is not None and family.authors.model_type == declared:
            return family
        if family.declared and all(values.get(key) == value for key, value in family.declared.items()):
            return family
    try:
        return find_family(declared)
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from error


def _refuse_code(values: Mapping[str, Any], family: Family, where: str) -> None:
    """Raises ModelError where the model's own code would compute it, unless the family's record knows it."""
    named = values.get("auto_map")
    known = family.authors.code if family.authors is not None else frozenset()
    names = list(named.values()) if isinstance(named, Mapping) else [named]
    if named is not None and any(str(name).rpartition("--")[2] not in known for name in names):
        raise ModelError(
            f"{where} asks to run code of its own (auto_map). Bertsmith never does; use another checkpoint."
        )


def by_its_authors(values: Mapping[str, Any], family: Family) -> str | None:
    """The key of a config.json that only the authors' own files have; None in transformers' layout."""
    if family.authors is None:
        return None
    if family.authors.model_type and family.authors.model_type == values.get("model_type"):
        return "model_type"
    signs = (key for key in values if key in family.aliases or key == "auto_map")
    return next((key for key in signs if values[key] is not None), None)


def _require_bert(values: Mapping[str, Any], where: str) -> None:
    """Raises ModelError for a config without model_type that isn't BERT's. RoBERTa's has the same keys, and
    its positions mean something else.
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
    values["num_hidden_layers"] //= config.inner_group_num
    entries = {theirs: values[ours] for ours, theirs in family.spelling.items()}
    if family.rotary is not None:
        entries |= family.rotary.write(values)
    entries = {key: value for key, value in entries.items() if value is not None}
    for key, values_of in family.renamed.items():
        entries[key] = next(theirs for theirs, ours in values_of.items() if ours == entries[key])
    first = {"architectures": [architecture], "model_type": config.model_type, **family.declared}
    return {**first, **entries, **family.written, "tie_word_embeddings": True}


class Labels(BaseModel):
    """The keys of a config.json that belong to a head and are kept with it: the names of its outputs, and a
    cross-encoder's activation.
    """

    id2label: dict[Annotated[str, Field(pattern="^[0-9]{1,6}$")], str] | None = None
    label2id: dict[str, Annotated[int, Field(ge=0)]] | None = None
    num_labels: Annotated[int, Field(ge=1)] | None = None
    problem_type: str | None = None
    sentence_transformers: dict[str, Any] | None = None
    sbert_ce_default_activation_function: str | None = None


def read_labels(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The entries of a config.json that belong to a head. Raises ModelError for a value of a wrong type."""
    entries = {key: values[key] for key in Labels.model_fields if key in values}
    try:
        return Labels.model_validate(entries, strict=True).model_dump(exclude_none=True)
    except ValidationError as error:
        raise ModelError(f"the config.json of {where}: {describe_problem(error, Labels)}") from error


def output_labels(labels: Mapping[str, Any], outputs: int, where: str) -> tuple[str, ...]:
    """The names of the outputs, with transformers' defaults: `id2label`, otherwise LABEL_0, … up to
    `num_labels`, otherwise two. Raises ModelError if the number of outputs differs, or names contradict each
    other.
    """
    number, by_name = labels.get("num_labels"), labels.get("label2id")
    by_number = {int(key): name for key, name in (labels.get("id2label") or {}).items()}
    names = by_number or {index: f"LABEL_{index}" for index in range(number or 2)}
    counts = {
        "num_labels": number,
        "id2label": by_number and len(by_number),
        "label2id": by_name and len(by_name),
    }
    if any(count and count != outputs for count in counts.values()) or len(names) != outputs:
        listed = ", ".join(f"{key} {count or 'not given'}" for key, count in counts.items())
        raise ModelError(
            f"{where}: the head has {outputs} outputs, but what is said of them differs: {listed}. They must "
            "agree; without any of them there are two. Correct the file: id2label names every output."
        )
    if sorted(names) != list(range(outputs)):
        raise ModelError(
            f"{where}: id2label has the keys {', '.join(map(str, sorted(names)))}; expected 0 to "
            f"{outputs - 1}, an output each. Correct the file."
        )
    for name, index in (by_name or {}).items():
        if by_number and names.get(index) != name:
            raise ModelError(
                f"{where}: label2id says that {name!r} is output {index}, which id2label calls "
                f"{names.get(index)!r}. Correct the one that is wrong."
            )
    return tuple(names[index] for index in range(outputs))


class Architecture(NamedTuple):
    """A class of transformers, and the heads it needs beside the encoder."""

    name: str
    heads: frozenset[str]

    @property
    def bare(self) -> bool:
        """Whether the class has no head; its tensors' names have no prefix then."""
        return not self.heads


def architectures(family: str) -> list[Architecture]:
    """The classes of a family, in the order of its record."""
    record = find_family(family)
    return [
        Architecture(record.class_prefix + name, frozenset(heads)) for name, heads in record.classes.items()
    ]


def find_architecture(name: str) -> Architecture:
    """The class of this name, of any family. Raises ValueError where there is none."""
    matches = [
        architecture
        for family in FAMILIES
        for architecture in architectures(family)
        if architecture.name == name
    ]
    if not matches:
        raise ValueError(f"{name!r} is a class of no family")
    return matches[0]


def choose_architecture(family: str, parts: Set[str], declared: str = "") -> Architecture:
    """The class that uses the most of a model's `parts`; among equals the declared one, otherwise the first
    of the family's record.

    The tensors decide before the declaration: bert-base-uncased declares BertForMaskedLM and has both heads.
    """
    possible = [architecture for architecture in architectures(family) if architecture.heads <= parts]
    return max(possible, key=lambda choice: (len(choice.heads), choice.name == declared))
