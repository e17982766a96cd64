"""A smaller encoder made from a larger one, where distillation begins: fewer layers, less width, or another
family.

H hidden size, A heads, D head size, I feed-forward width: the teacher's.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from bertsmith.door import door, kind, optional, several, text, whole
from bertsmith.errors import ModelError
from bertsmith.model.bert import Bert
from bertsmith.model.config import BertConfig, make_config
from bertsmith.model.families import find_family

# Axes on which two encoders must agree for a layer of one to mean something in the other.
_SAME_LAYERS = (
    "pre_norm",
    "final_norm",
    "norm",
    "feed_forward",
    "position_embedding",
    "rotary_pairs",
    "hidden_act",
)
_GATED_FACTOR = 1.5  # feed-forward width of a gated layer by hidden size, as ModernBERT has it


class KeptParts(NamedTuple):
    """What of the teacher a student keeps, as ascending indices; `heads` and `neurons` by its layer."""

    channels: Tensor
    heads: Callable[[int], Tensor]
    neurons: Callable[[int], Tensor]


def spread_layers(teacher: int, student: int) -> tuple[int, ...]:
    """Which of the teacher's layers a student of fewer begins with, counted from 0: evenly spread, the first
    and the last among them.

    Of twelve, six are 0, 2, 4, 7, 9, 11: DistilBERT's (Sanh et al. 2019, section 3, and its published
    script). Raises ModelError unless 1 <= student <= teacher.
    """
    if not 1 <= student <= teacher:
        raise ModelError(f"A student of {student} layers can't be cut from {teacher}: choose 1 to {teacher}.")
    if student == 1:
        return (0,)
    step = (teacher - 1) / (student - 1)
    return tuple(math.floor(number * step + 0.5) for number in range(student))  # the upper one of a half


@door(
    teacher=kind(BertConfig),
    layers=optional(whole(1)),
    width=optional(whole(1)),
    model_type=optional(text),
    kept=optional(several(whole(0))),
    feed_forward=optional(whole(1)),
)
def student_config(
    teacher: BertConfig,
    layers: int | None = None,
    width: int | None = None,
    model_type: str | None = None,
    kept: Sequence[int] | None = None,
    feed_forward: int | None = None,
) -> BertConfig:
    """The shape of a student: the teacher's but for what is given; the vocabulary is always the teacher's.

    `layers` is by default every second one's number, half of the teacher's; `kept` names them instead. A
    narrower student keeps the size of a head and, unless `feed_forward` says how many neurons it has, the
    proportion of the feed-forward part. Another family comes with its own layers. Raises ModelError for a
    shape that can't be.
    """
    count = len(kept) if kept is not None else layers or max(teacher.num_hidden_layers // 2, 1)
    width = width or teacher.hidden_size
    if width % teacher.head_size:
        below = max(width // teacher.head_size, 1) * teacher.head_size
        raise ModelError(
            f"A student of width {width} can't keep the teacher's heads of {teacher.head_size}: choose a "
            f"multiple of {teacher.head_size}, such as {below}."
        )
    if width > teacher.hidden_size:
        raise ModelError(f"A student of width {width} is wider than its teacher of {teacher.hidden_size}.")
    if (feed_forward or 1) > teacher.intermediate_size:
        raise ModelError(
            f"A student with {feed_forward} neurons in its feed-forward parts has more than its teacher, "
            f"whose have {teacher.intermediate_size}."
        )
    sizes: dict[str, Any] = {
        "num_hidden_layers": count,
        "hidden_size": width,
        "num_attention_heads": width // teacher.head_size,
        "intermediate_size": feed_forward or max(teacher.intermediate_size * width // teacher.hidden_size, 1),
    }
    where = "the student"
    if model_type is not None and find_family(model_type).model_type != teacher.model_type:
        return _of_family(teacher, find_family(model_type).model_type, sizes, where, own=feed_forward is None)
    chosen = kept if kept is not None else spread_layers(teacher.num_hidden_layers, count)
    _check_layers(chosen, count, teacher)
    if teacher.local_attention is not None:  # each layer keeps whether it sees everything
        kinds = ("sliding_attention" if teacher.is_local(i) else "full_attention" for i in chosen)
        sizes["layer_types"] = tuple(kinds)
    return make_config(teacher.model_dump() | sizes, where)


def _of_family(
    teacher: BertConfig, model_type: str, sizes: dict[str, Any], where: str, *, own: bool
) -> BertConfig:
    """The family's own axes, with the teacher's sizes and vocabulary; `own`: a feed-forward part as wide as
    the family's are.
    """
    published = BertConfig(model_type=model_type)
    if own and published.feed_forward == "gated" and teacher.feed_forward != "gated":
        sizes["intermediate_size"] = int(_GATED_FACTOR * sizes["hidden_size"])
    values: dict[str, Any] = {"vocab_size": teacher.vocab_size, "pad_token_id": teacher.pad_token_id}
    values["initializer_range"] = teacher.initializer_range
    if published.position_embedding == "learned":
        offset = teacher.pad_token_id + 1 if published.family.positions_after_padding else 0
        values["max_position_embeddings"] = teacher.max_length + offset
    free = {name: value for name, value in values.items() if published.family.is_free(name)}
    return make_config({"model_type": model_type, **free, **sizes}, where)


@door(teacher=kind(Bert), config=kind(BertConfig), layers=optional(several(whole(0))))
def make_student(teacher: Bert, config: BertConfig, layers: Sequence[int] | None = None) -> Bert:
    """An encoder of the shape `config` with what it can take over of the teacher; the rest is random, by
    torch's generator.

    `layers` are the teacher's for each of the student's, by default `spread_layers`. Layers are taken where
    both are built alike; the channels, heads and feed-forward neurons of a narrower student are those whose
    weights are the largest, and products of fewer inputs are scaled up (weight subcloning: Samragh et al.
    2023, arXiv 2312.09299, section 3; there importance is of activations). A student of another build takes
    the embeddings of the vocabulary. Without segment embeddings, those of the first segment go into the
    positions'. The pooler is taken where both have one. Raises ModelError for another vocabulary, embeddings
    of another width that a product follows, a layer that isn't there, or one too many.
    """
    theirs = teacher.config
    if config.vocab_size != theirs.vocab_size:
        raise ModelError(
            f"A student has its teacher's vocabulary of {theirs.vocab_size:,} pieces, not "
            f"{config.vocab_size:,}."
        )
    if config.embedding_size is not None and config.embedding_size != theirs.embedding_size:
        raise ModelError(
            f"A student's embeddings are as wide as its teacher's of {theirs.embedding_width}, not "
            f"{config.embedding_size}: leave embedding_size as it is."
        )
    alike = is_alike(config, theirs)
    student = Bert(config)
    if teacher.pooler is None or not alike:
        student.pooler = None
    if alike:
        layers = layers or spread_layers(theirs.num_hidden_layers, config.num_hidden_layers)
        _check_layers(layers, config.num_hidden_layers, theirs)
    kept = _kept(teacher, config)
    found = _embeddings(teacher, student, kept.channels)
    if alike:
        for number, layer in enumerate(layers or ()):
            part = _narrowed(_layer(teacher, layer), teacher.config, kept, layer)
            found |= {f"layers.{number}.{name}": tensor for name, tensor in part.items()}
        found |= _last(teacher, kept.channels)
    own = student.state_dict()
    student.load_state_dict({name: found.get(name, tensor) for name, tensor in own.items()})
    return student.train(teacher.training)


def is_alike(one: BertConfig, other: BertConfig) -> bool:
    """Whether the layers of two encoders are built alike, whatever their sizes."""
    return all(getattr(one, name) == getattr(other, name) for name in _SAME_LAYERS)


def _check_layers(layers: Sequence[int], count: int, teacher: BertConfig) -> None:
    if len(layers) != count or max(layers) >= teacher.num_hidden_layers:
        raise ModelError(
            f"A student of {count} layers needs {count} of its teacher's {teacher.num_hidden_layers}, "
            f"counted from 0; found {', '.join(map(str, layers))}."
        )


def kept_channels(teacher: Bert, width: int) -> Tensor:
    """(width,) which channels of the hidden states a student has: those with the largest token embeddings, or
    that the product behind embeddings of another width makes the largest.
    """
    project = teacher.embeddings.project
    if project is not None:
        return _largest(project.weight.detach().pow(2).sum(1), width)
    return _largest(teacher.embeddings.token.weight.detach().pow(2).mean(0), width)


def _kept(teacher: Bert, config: BertConfig) -> KeptParts:
    """All of everything for a student as wide as its teacher."""

    def heads(number: int) -> Tensor:
        product = _layer(teacher, number)["attention.output.weight"]
        by_head = product.unflatten(1, (teacher.config.num_attention_heads, -1))  # (H, A, D)
        return _largest(by_head.pow(2).sum((0, 2)), config.num_attention_heads)

    def neurons(number: int) -> Tensor:
        layer = _layer(teacher, number)
        up, down = layer["feed_forward.up.weight"], layer["feed_forward.down.weight"]
        sizes = up.pow(2).sum(1).unflatten(0, (-1, down.shape[1])).sum(0)  # (I,), gate and value together
        return _largest(sizes * down.pow(2).sum(0), config.intermediate_size)

    return KeptParts(kept_channels(teacher, config.hidden_size), heads, neurons)


def _largest(importance: Tensor, count: int) -> Tensor:
    """Ascending indices of the `count` largest."""
    return importance.argsort(descending=True, stable=True)[:count].sort().values


def _embeddings(teacher: Bert, student: Bert, channels: Tensor) -> dict[str, Tensor]:
    """Under the student's names; positions as far as both count them alike."""
    table, (narrowed, found) = teacher.embeddings, _width(teacher, student, channels)
    token = {"embeddings.token.weight": narrowed(table.token.weight)}
    if student.config.pre_norm != teacher.config.pre_norm:
        return {name: tensor.detach() for name, tensor in token.items()}
    found |= token
    if table.position is not None and student.embeddings.position is not None:
        own = student.embeddings.position.weight.detach().clone()  # rows before the first are padding's
        used = narrowed(table.position.weight[table.position_offset :]).detach().clone()
        if table.segment is not None and student.embeddings.segment is None:
            used += narrowed(table.segment.weight)[0].detach()
        length = min(len(own) - student.embeddings.position_offset, len(used))
        own[student.embeddings.position_offset :][:length] = used[:length]
        found["embeddings.position.weight"] = own
    if table.segment is not None and student.embeddings.segment is not None:
        rows = student.embeddings.segment.num_embeddings
        if rows <= table.segment.num_embeddings:
            found["embeddings.segment.weight"] = narrowed(table.segment.weight[:rows])
    return {name: tensor.detach() for name, tensor in found.items()}


def _width(
    teacher: Bert, student: Bert, channels: Tensor
) -> tuple[Callable[[Tensor], Tensor], dict[str, Tensor]]:
    """What becomes of a table's columns, and what comes behind the tables.

    Where a product to the hidden states follows, tables stay whole, before the product to the kept channels.
    A student without one, as wide as they are or of another family, has their products: all but the norm
    between.
    """
    norm, project = teacher.embeddings.norm.state_dict(), teacher.embeddings.project
    if project is None:
        kept = {f"embeddings.norm.{name}": tensor[channels] for name, tensor in norm.items()}
        return lambda table: table[:, channels], kept
    weight = project.weight[channels]  # (h, E)
    if student.embeddings.project is None:
        return lambda table: table @ (weight * norm["weight"]).T, {}
    behind = {"embeddings.project.weight": weight, "embeddings.project.bias": project.bias[channels]}
    return lambda table: table, behind | {f"embeddings.norm.{name}": each for name, each in norm.items()}


def _layer(teacher: Bert, number: int) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in teacher.layers[number].state_dict().items()}


def _last(teacher: Bert, channels: Tensor) -> dict[str, Tensor]:
    """The final norm and the pooler, where there are."""
    found: dict[str, Tensor] = {}
    if teacher.final_norm is not None:
        norm = teacher.final_norm.state_dict()
        found |= {f"final_norm.{name}": tensor.detach()[channels] for name, tensor in norm.items()}
    if teacher.pooler is not None:
        scale = math.sqrt(teacher.config.hidden_size / len(channels))
        weight = teacher.pooler.weight.detach()[channels][:, channels] * scale
        found |= {"pooler.weight": weight, "pooler.bias": teacher.pooler.bias.detach()[channels]}
    return found


def _narrowed(
    layer: dict[str, Tensor], config: BertConfig, kept: KeptParts, number: int
) -> dict[str, Tensor]:
    """A layer's tensors with the kept channels, heads and neurons; as they are if all are kept."""
    channels, heads, neurons = kept.channels, kept.heads(number), kept.neurons(number)
    gates = 2 if config.feed_forward == "gated" else 1
    in_scale = math.sqrt(config.hidden_size / len(channels))
    head_scale = math.sqrt(config.num_attention_heads / len(heads))
    neuron_scale = math.sqrt(config.intermediate_size / len(neurons))
    shape = (3, config.num_attention_heads, config.head_size)
    narrow: dict[str, Callable[[Tensor], Tensor]] = {
        "attention.qkv.weight": lambda w: (
            w.unflatten(0, shape)[:, heads].flatten(0, 2)[:, channels] * in_scale
        ),
        "attention.qkv.bias": lambda b: b.unflatten(0, shape)[:, heads].flatten(),
        "attention.output.weight": lambda w: (
            w[channels].reshape(-1, *shape[1:])[:, heads].flatten(1) * head_scale
        ),
        "feed_forward.up.weight": lambda w: (
            w.unflatten(0, (gates, -1))[:, neurons].flatten(0, 1)[:, channels] * in_scale
        ),
        "feed_forward.up.bias": lambda b: b.unflatten(0, (gates, -1))[:, neurons].flatten(),
        "feed_forward.down.weight": lambda w: w[channels][:, neurons] * neuron_scale,
    }
    return {
        name: narrow[name](tensor) if name in narrow else tensor[channels] for name, tensor in layer.items()
    }
