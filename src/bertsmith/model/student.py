"""Makes a smaller encoder from the weights of a larger one, as the start of a distillation: fewer layers, a
smaller width, or another family.

H hidden size, A heads, D head size, I feed-forward width: the teacher's.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertsmith.argument_checks import (
    check_arguments,
    check_text,
    instance_of,
    integer_from,
    list_of,
    optional,
)
from bertsmith.errors import ModelError
from bertsmith.model.bert import Bert
from bertsmith.model.config import BertConfig, make_config
from bertsmith.model.families import find_family
from bertsmith.model.layers.attention import PositionBias
from bertsmith.model.layers.disentangled import RelativePositions

# Settings in which two encoders must agree for a layer of one to work in the other.
_SAME_LAYERS = (
    "pre_norm",
    "final_norm",
    "norm",
    "feed_forward",
    "position_embedding",
    "position_bias",
    "rotary_pairs",
    "hidden_act",
    *("relative_attention", "pos_att_type", "share_att_key", "position_buckets", "max_relative_positions"),
    *("norm_rel_ebd", "conv_kernel_size", "conv_groups", "conv_act"),
)
_GATED_FACTOR = 1.5  # feed-forward width of a gated layer by hidden size, as ModernBERT has it


class KeptParts(NamedTuple):
    """The parts of the teacher that a narrower student keeps, as ascending indices. `heads` and `neurons` are
    functions of the teacher's layer.
    """

    channels: Tensor
    heads: Callable[[int], Tensor]
    neurons: Callable[[int], Tensor]


def spread_layers(teacher: int, student: int) -> tuple[int, ...]:
    """The indices of the teacher's layers that a student of fewer layers starts from: evenly spread, with the
    first and the last. One layer is the first.

    Six of twelve are 0, 2, 4, 7, 9, 11, as DistilBERT has them (Sanh et al. 2019, section 3, and its
    published script). Raises ModelError unless 1 <= student <= teacher.
    """
    if not 1 <= student <= teacher:
        raise ModelError(f"A student of {student} layers can't be cut from {teacher}: choose 1 to {teacher}.")
    if student == 1:
        return (0,)
    step = (teacher - 1) / (student - 1)
    return tuple(math.floor(number * step + 0.5) for number in range(student))  # halves are rounded up


@check_arguments(
    teacher=instance_of(BertConfig),
    layers=optional(integer_from(1)),
    width=optional(integer_from(1)),
    model_type=optional(check_text),
    kept=optional(list_of(integer_from(0))),
    feed_forward=optional(integer_from(1)),
)
def student_config(
    teacher: BertConfig,
    layers: int | None = None,
    width: int | None = None,
    model_type: str | None = None,
    kept: Sequence[int] | None = None,
    feed_forward: int | None = None,
) -> BertConfig:
    """The config of a student: the teacher's, with the given sizes. The vocabulary is always the teacher's.

    `layers` is the number of layers, by default half of the teacher's; `kept` lists the teacher's layers
    instead, by index. A narrower student keeps the teacher's head size and, unless `feed_forward` gives the
    number of neurons, the proportion of the feed-forward part. A student of another family has that family's
    layers. Raises ModelError for an impossible shape.
    """
    count = len(kept) if kept is not None else layers or max(teacher.num_hidden_layers // 2, 1)
    width = width or teacher.hidden_size
    if width % teacher.head_size:
        possible = max(width // teacher.head_size, 1) * teacher.head_size
        raise ModelError(
            f"A student of width {width} can't keep the teacher's heads of {teacher.head_size}: choose a "
            f"multiple of {teacher.head_size}, such as {possible}."
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
        family = find_family(model_type).model_type
        return _other_family_config(teacher, family, sizes, where, own_width=feed_forward is None)
    layer_indices = kept if kept is not None else spread_layers(teacher.num_hidden_layers, count)
    _check_layers(layer_indices, count, teacher)
    if teacher.num_hidden_groups is not None and count != teacher.num_hidden_layers:
        sizes["inner_group_num"] = 1
        sizes["num_hidden_groups"] = len({teacher.layer_order[index] for index in layer_indices})
    if teacher.local_attention is not None:  # each layer keeps its local or global attention
        types = ("sliding_attention" if teacher.is_local(i) else "full_attention" for i in layer_indices)
        sizes["layer_types"] = tuple(types)
    return make_config(teacher.model_dump() | sizes, where)


def _other_family_config(
    teacher: BertConfig, model_type: str, sizes: dict[str, Any], where: str, *, own_width: bool
) -> BertConfig:
    """A config of another family with the given sizes and the teacher's vocabulary. `own_width`: gated
    feed-forward parts get the family's usual width.
    """
    published = BertConfig(model_type=model_type)
    if own_width and published.feed_forward == "gated" and teacher.feed_forward != "gated":
        sizes["intermediate_size"] = int(_GATED_FACTOR * sizes["hidden_size"])
    values: dict[str, Any] = {"vocab_size": teacher.vocab_size, "pad_token_id": teacher.pad_token_id}
    values["initializer_range"] = teacher.initializer_range
    if published.position_embedding == "learned":
        offset = teacher.pad_token_id + 1 if published.family.positions_after_padding else 0
        values["max_position_embeddings"] = teacher.max_length + offset
    if published.family.always_projects:
        values["embedding_size"] = teacher.embedding_size or sizes["hidden_size"]
    allowed = {name: value for name, value in values.items() if published.family.is_free(name)}
    if published.family.positions_after_padding:  # which may be impossible
        allowed["pad_token_id"] = teacher.pad_token_id
    return make_config({"model_type": model_type, **allowed, **sizes}, where)


@check_arguments(
    teacher=instance_of(Bert), config=instance_of(BertConfig), layers=optional(list_of(integer_from(0)))
)
def make_student(teacher: Bert, config: BertConfig, layers: Sequence[int] | None = None) -> Bert:
    """Makes an encoder of the shape `config` from the teacher's weights; what it can't take over is random,
    from torch's generator.

    `layers` lists the teacher's layer for each of the student's, by default `spread_layers`. Layers are taken
    over where both encoders are built alike (`is_alike`); a student of another build takes only the token
    embeddings. Layers of the student that share weights begin as the teacher's layer of the first of them. A
    narrower student keeps the channels, heads and feed-forward neurons with the largest weights, and products
    of fewer inputs are scaled up (weight subcloning: Samragh et al. 2023, arXiv 2312.09299, section 3, with
    importance by weights in place of activations). For a student without segment embeddings, the first
    segment's are added to the positions'; further segments than the teacher's begin as its last one, or as
    zeros if it has none. The pooler is taken over where both have one.

    Raises ModelError for another vocabulary, for projected embeddings of another width, and for layers that
    don't exist or are too many.
    """
    teacher_config = teacher.config
    if config.vocab_size != teacher_config.vocab_size:
        raise ModelError(
            f"A student has its teacher's vocabulary of {teacher_config.vocab_size:,} pieces, not "
            f"{config.vocab_size:,}."
        )
    if config.embedding_size not in (None, teacher_config.embedding_size) and (
        teacher_config.embedding_size is not None or config.embedding_size != config.hidden_size
    ):
        raise ModelError(
            f"A student's embeddings are as wide as its teacher's of {teacher_config.embedding_width}, not "
            f"{config.embedding_size}: leave embedding_size as it is."
        )
    alike = is_alike(config, teacher_config)
    student = Bert(config)
    if teacher.pooler is None or not alike:
        student.pooler = None
    if alike:
        layers = layers or spread_layers(teacher_config.num_hidden_layers, config.num_hidden_layers)
        _check_layers(layers, config.num_hidden_layers, teacher_config)
    parts = _choose_parts(teacher, config)
    tensors = _narrow_embeddings(teacher, student, parts.channels)
    if alike:
        for own in range(len(student.layers)):
            teacher_layer = (layers or ())[config.layer_order.index(own)]
            state = _narrow_layer(_layer_state(teacher, teacher_layer), teacher.config, parts, teacher_layer)
            tensors |= {f"layers.{own}.{name}": tensor for name, tensor in state.items()}
        tensors |= _narrow_last_modules(teacher, parts.channels)
        if isinstance(teacher.relative, PositionBias):
            tensors["relative.bias.weight"] = teacher.relative.bias.weight.detach()[:, parts.heads(0)]
        tensors |= _narrow_distances(teacher, student, parts.channels)
    random_state = student.state_dict()
    student.load_state_dict({name: tensors.get(name, tensor) for name, tensor in random_state.items()})
    return student.train(teacher.training)


def is_alike(one: BertConfig, other: BertConfig) -> bool:
    """Whether the layers of two encoders have the same structure; their sizes may differ."""
    return all(getattr(one, name) == getattr(other, name) for name in _SAME_LAYERS)


def _check_layers(layers: Sequence[int], count: int, teacher: BertConfig) -> None:
    if len(layers) != count or max(layers) >= teacher.num_hidden_layers:
        raise ModelError(
            f"A student of {count} layers needs {count} of its teacher's {teacher.num_hidden_layers}, "
            f"counted from 0; found {', '.join(map(str, layers))}."
        )


def kept_channels(teacher: Bert, width: int) -> Tensor:
    """The indices (width,) of the channels of the hidden states that a student keeps: those with the largest
    token embeddings or, where embeddings are projected to the hidden size, with the largest projection
    weights.
    """
    project = teacher.embeddings.project
    if project is not None:
        return _largest(project.weight.detach().pow(2).sum(1), width)
    return _largest(teacher.embeddings.token.weight.detach().pow(2).mean(0), width)


def _choose_parts(teacher: Bert, config: BertConfig) -> KeptParts:
    """The teacher's channels, heads and neurons that a student of this shape keeps, by the size of
    weights.
    """

    def heads(layer: int) -> Tensor:
        # where all layers share a head's bias, they keep the same heads
        is_shared = isinstance(teacher.relative, PositionBias)
        layers = range(teacher.config.num_hidden_layers) if is_shared else [layer]
        sizes = []
        for number in layers:
            weight = _layer_state(teacher, number)["attention.output.weight"]
            by_head = weight.unflatten(1, (teacher.config.num_attention_heads, -1))  # (H, A, D)
            sizes.append(by_head.pow(2).sum((0, 2)))
        return _largest(torch.stack(sizes).sum(0), config.num_attention_heads)

    def neurons(layer: int) -> Tensor:
        state = _layer_state(teacher, layer)
        up, down = state["feed_forward.up.weight"], state["feed_forward.down.weight"]
        sizes = up.pow(2).sum(1).unflatten(0, (-1, down.shape[1])).sum(0)  # (I,), gate and value together
        return _largest(sizes * down.pow(2).sum(0), config.intermediate_size)

    return KeptParts(kept_channels(teacher, config.hidden_size), heads, neurons)


def _largest(importance: Tensor, count: int) -> Tensor:
    """The indices of the `count` largest values, in ascending order."""
    return importance.argsort(descending=True, stable=True)[:count].sort().values


def _narrow_embeddings(teacher: Bert, student: Bert, channels: Tensor) -> dict[str, Tensor]:
    """The teacher's embeddings with the kept channels, under the student's names. Where the student has more
    positions than the teacher, the further ones stay random.
    """
    embeddings, (narrow, tensors) = teacher.embeddings, _narrow_tables(teacher, student, channels)
    token = {"embeddings.token.weight": narrow(embeddings.token.weight)}
    if student.config.pre_norm != teacher.config.pre_norm:
        return {name: tensor.detach() for name, tensor in token.items()}
    tensors |= token
    if embeddings.position is not None and student.embeddings.position is not None:
        positions = student.embeddings.position.weight.detach().clone()  # the first rows are padding's
        taken_over = narrow(embeddings.position.weight[embeddings.position_offset :]).detach().clone()
        if embeddings.segment is not None and student.embeddings.segment is None:
            taken_over += narrow(embeddings.segment.weight)[0].detach()
        length = min(len(positions) - student.embeddings.position_offset, len(taken_over))
        positions[student.embeddings.position_offset :][:length] = taken_over[:length]
        tensors["embeddings.position.weight"] = positions
    if (segments := student.embeddings.segment) is not None:  # the teacher may have fewer, or none
        own = embeddings.segment
        table = torch.zeros_like(segments.weight) if own is None else narrow(own.weight)
        rows = [min(number, len(table) - 1) for number in range(segments.num_embeddings)]
        tensors["embeddings.segment.weight"] = table[rows]
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _narrow_tables(
    teacher: Bert, student: Bert, channels: Tensor
) -> tuple[Callable[[Tensor], Tensor], dict[str, Tensor]]:
    """The function that narrows a table of embeddings, and the student's tensors behind the tables.

    Where the teacher projects its embeddings and the student does too, the tables stay as they are, and the
    projection is narrowed. A student without a projection gets tables multiplied with it and with the norm's
    weight; the normalisation between the two is lost.
    """
    norm, project = teacher.embeddings.norm.state_dict(), teacher.embeddings.project
    if project is None:
        tensors = {f"embeddings.norm.{name}": tensor[channels] for name, tensor in norm.items()}
        if student.embeddings.project is not None:  # one that changes nothing at first
            tensors["embeddings.project.weight"] = torch.eye(len(channels))
            tensors["embeddings.project.bias"] = torch.zeros(len(channels))
        return lambda table: table[:, channels], tensors
    weight, first = project.weight[channels], teacher.embeddings.projects_first  # (h, E)
    norms = {
        f"embeddings.norm.{name}": tensor[channels] if first else tensor for name, tensor in norm.items()
    }
    if student.embeddings.project is None:
        return lambda table: table @ (weight if first else weight * norm["weight"]).T, norms if first else {}
    if student.embeddings.projects_first != first:
        norms = {}
    bias = torch.zeros(len(channels)) if project.bias is None else project.bias[channels]
    projection = {"embeddings.project.weight": weight, "embeddings.project.bias": bias}
    return lambda table: table, projection | norms


def _layer_state(teacher: Bert, layer: int) -> dict[str, Tensor]:
    state = teacher.layer_sequence[layer].state_dict()
    return {name: tensor.detach() for name, tensor in state.items()}


def _narrow_last_modules(teacher: Bert, channels: Tensor) -> dict[str, Tensor]:
    """The tensors of the final norm and of the pooler, if there are any, with the kept channels."""
    tensors: dict[str, Tensor] = {}
    if teacher.final_norm is not None:
        norm = teacher.final_norm.state_dict()
        tensors |= {f"final_norm.{name}": tensor.detach()[channels] for name, tensor in norm.items()}
    if teacher.pooler is not None:
        scale = math.sqrt(teacher.config.hidden_size / len(channels))
        weight = teacher.pooler.weight.detach()[channels][:, channels] * scale
        tensors |= {"pooler.weight": weight, "pooler.bias": teacher.pooler.bias.detach()[channels]}
    return tensors


def _narrow_distances(teacher: Bert, student: Bert, channels: Tensor) -> dict[str, Tensor]:
    """The tensors of the table of distances and of the convolution, if there are any, with the kept channels.

    Raises ModelError for a narrower student of a teacher whose convolution divides the channels in groups.
    """
    tensors: dict[str, Tensor] = {}
    if isinstance(teacher.relative, RelativePositions):
        state = teacher.relative.state_dict(prefix="relative.")
        tensors |= {name: tensor.detach()[..., channels] for name, tensor in state.items()}
    if teacher.convolution is not None:
        groups, width = teacher.convolution.conv.groups, teacher.config.hidden_size
        if groups > 1 and len(channels) < width:
            raise ModelError(
                f"A student can't be narrower than its teacher of {width}, whose convolution divides the "
                f"channels in {groups} groups."
            )
        state = teacher.convolution.state_dict(prefix="convolution.")
        tensors |= {name: tensor.detach()[channels] for name, tensor in state.items()}
        if groups == 1:
            scale = math.sqrt(width / len(channels))
            tensors["convolution.conv.weight"] = tensors["convolution.conv.weight"][:, channels] * scale
    return tensors


def _narrow_layer(
    state: dict[str, Tensor], config: BertConfig, parts: KeptParts, layer: int
) -> dict[str, Tensor]:
    """The tensors of the teacher's layer number `layer` with the kept channels, heads and neurons."""
    channels, heads, neurons = parts.channels, parts.heads(layer), parts.neurons(layer)
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
        "attention.distances.key.weight": lambda w: (
            w.unflatten(0, shape[1:])[heads].flatten(0, 1)[:, channels] * in_scale
        ),
        "attention.distances.key.bias": lambda b: b.unflatten(0, shape[1:])[heads].flatten(),
        "attention.output.weight": lambda w: (
            w[channels].reshape(-1, *shape[1:])[:, heads].flatten(1) * head_scale
        ),
        "feed_forward.up.weight": lambda w: (
            w.unflatten(0, (gates, -1))[:, neurons].flatten(0, 1)[:, channels] * in_scale
        ),
        "feed_forward.up.bias": lambda b: b.unflatten(0, (gates, -1))[:, neurons].flatten(),
        "feed_forward.down.weight": lambda w: w[channels][:, neurons] * neuron_scale,
    }
    for leaf in ("weight", "bias"):
        narrow[f"attention.distances.query.{leaf}"] = narrow[f"attention.distances.key.{leaf}"]
    return {
        name: narrow[name](tensor) if name in narrow else tensor[channels] for name, tensor in state.items()
    }
