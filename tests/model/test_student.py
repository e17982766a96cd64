"""Students: what they take over of their teacher, and which shapes are refused."""

from typing import Any

import numpy as np
import pytest
import torch

from bertsmith.data.batch import PackedBatch
from bertsmith.errors import ModelError
from bertsmith.model.bert import Bert
from bertsmith.model.config import BertConfig, make_config
from bertsmith.model.layers.disentangled import RelativePositions
from bertsmith.model.student import make_student, spread_layers, student_config

SHAPE = {"hidden_size": 24, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 48}
LENGTHS = np.array([7, 3, 12])


def teacher_of(model_type: str = "bert", **changes: object) -> Bert:
    torch.manual_seed(3)
    config = make_config({"model_type": model_type, "vocab_size": 50, **SHAPE, **changes}, "test")
    teacher = Bert(config).eval()
    for name, parameter in teacher.named_parameters():  # so that no bias is zero and no norm one
        # weights with a mean would give every token the same states
        torch.nn.init.normal_(parameter, 1.0 if name.endswith("norm.weight") else 0.0, 0.3)
    return teacher


def packed() -> PackedBatch:
    ids = np.random.default_rng(0).integers(0, 50, LENGTHS.sum())
    return PackedBatch.pack(ids, np.zeros_like(ids), LENGTHS)


def test_of_twelve_layers_six_are_those_of_distilbert() -> None:
    assert spread_layers(12, 6) == (0, 2, 4, 7, 9, 11)


@pytest.mark.parametrize(("teacher", "student"), [(6, 3), (6, 6), (24, 5), (7, 2), (3, 1)])
def test_layers_are_spread_from_the_first_to_the_last(teacher: int, student: int) -> None:
    layers = spread_layers(teacher, student)
    assert len(set(layers)) == student
    assert layers == tuple(sorted(layers))
    assert layers[0] == 0
    assert student == 1 or layers[-1] == teacher - 1


def test_by_default_a_student_has_half_of_the_layers() -> None:
    assert student_config(teacher_of().config).num_hidden_layers == 3


@pytest.mark.parametrize(
    "model_type",
    ["bert", "jina_bert", "modernbert", "nomic_bert", "distilbert", "gte", "albert", "mpnet", "deberta-v2"],
)
def test_a_student_of_all_layers_gives_the_teachers_hidden_states(model_type: str) -> None:
    teacher = teacher_of(model_type)
    student = make_student(teacher, student_config(teacher.config, layers=6))
    assert torch.equal(student(packed()), teacher(packed()))


@pytest.mark.parametrize("model_type", ["bert", "nomic_bert", "gte"])
def test_a_cut_computes_the_chosen_layers_one_after_another(model_type: str) -> None:
    teacher = teacher_of(model_type)
    student = make_student(teacher, student_config(teacher.config, kept=[1, 4]), [1, 4])
    batch = packed()
    states = teacher.embeddings(batch)
    for number in (1, 4):
        states = teacher.layers[number](states, batch)
    assert torch.equal(student(batch), states)


@pytest.mark.parametrize(
    ("shared", "kept", "own"),
    [
        ({}, [1, 4], [0]),  # one layer's weights, computed twice
        ({"num_hidden_groups": 2}, [0, 1, 4], [0, 1]),
        ({"num_hidden_groups": 3}, [0, 2, 3, 5], [0, 1, 2]),
        ({"num_hidden_groups": 3}, [0, 5], [0, 2]),
        ({"inner_group_num": 2}, [0, 3], [0, 1]),
        ({"num_hidden_groups": 2, "inner_group_num": 3}, [0, 4], [0, 4]),
    ],
)
def test_a_cut_of_shared_layers_is_computed_fewer_times(
    shared: dict[str, int], kept: list[int], own: list[int]
) -> None:
    teacher = teacher_of("albert", **shared)
    student = make_student(teacher, student_config(teacher.config, kept=kept), kept)
    assert len(student.layers) == len(own) and len(student.layer_sequence) == len(kept)
    for layer, number in zip(student.layers, own, strict=True):
        for name, tensor in layer.state_dict().items():
            assert torch.equal(tensor, teacher.layers[number].state_dict()[name])
    if shared.get("num_hidden_groups") != 3 or len(kept) == 2:  # the others' pattern has no such student
        batch = packed()
        states = teacher.embeddings(batch)
        for number in kept:
            states = teacher.layer_sequence[number](states, batch)
        assert torch.equal(student(batch), states)


def test_a_narrow_student_keeps_the_same_heads_in_all_layers_where_they_share_a_bias() -> None:
    """Those of the largest weights of all layers together; with their column of the bias."""
    teacher = teacher_of("mpnet")
    with torch.no_grad():
        for layer in teacher.layers:
            layer.attention.output.weight[:, :8] = 0  # of the first two heads
    config = student_config(teacher.config, layers=6, width=16)
    student = make_student(teacher, config)
    assert teacher.relative is not None and student.relative is not None
    assert torch.equal(student.relative.bias.weight, teacher.relative.bias.weight[:, 2:])  # type: ignore[union-attr]
    for small, large in zip(student.layers, teacher.layers, strict=True):
        assert torch.equal(small.attention.qkv.bias, large.attention.qkv.bias.view(3, 6, 4)[:, 2:].flatten())
    assert student(packed()).shape == (22, 16)


@pytest.mark.parametrize("shares", [True, False])
def test_a_narrow_student_of_deberta_keeps_its_channels_of_distances(shares: bool) -> None:
    """All channels and heads that matter: the others' weights are zero, and the norms' means stay."""
    kinds = {"share_att_key": shares, "position_buckets": 8, "conv_kernel_size": 3, "embedding_size": 10}
    teacher = teacher_of("deberta-v2", **kinds)
    student = make_student(teacher, student_config(teacher.config, layers=3, width=16))
    assert isinstance(student.relative, RelativePositions) and isinstance(teacher.relative, RelativePositions)
    narrowed, whole = student.relative.table.weight, teacher.relative.table.weight
    kept = [column.tolist() in narrowed.T.tolist() for column in whole.T]
    assert sum(kept) == 16 and torch.equal(narrowed, whole[:, kept])
    assert student.convolution is not None and teacher.convolution is not None
    kernel = teacher.convolution.conv.weight[kept][:, kept]
    torch.testing.assert_close(student.convolution.conv.weight, kernel * (24 / 16) ** 0.5)
    assert student(packed()).shape == (22, 16)
    if not shares:
        small, large = (model.layers[0].attention.distances for model in (student, teacher))
        rows = torch.isin(large.key.bias, small.key.bias)
        assert torch.equal(large.key.bias[rows], small.key.bias)
        torch.testing.assert_close(large.query.weight[rows][:, kept] * 1.5**0.5, small.query.weight)
    with pytest.raises(ModelError, match="divides the channels in 2 groups"):
        grouped = teacher_of("deberta-v2", conv_kernel_size=3, conv_groups=2)
        make_student(grouped, student_config(grouped.config, width=16))


def test_a_student_whose_positions_begin_after_another_padding_is_refused() -> None:
    with pytest.raises(
        ModelError, match=r"pad_token_id = 0 is impossible for mpnet, .* tokenizer whose padding is piece 1"
    ):
        student_config(teacher_of().config, model_type="mpnet")
    config = student_config(teacher_of("roberta").config, model_type="mpnet")
    assert (config.pad_token_id, config.max_length) == (1, teacher_of("roberta").config.max_length)


def test_a_student_of_albert_from_bert_and_back_begins_with_the_vocabulary() -> None:
    teacher = teacher_of("bert", hidden_act="gelu_new")
    student = make_student(teacher, student_config(teacher.config, layers=6, model_type="albert"))
    assert student.config.embedding_size == 24 and student.embeddings.project is not None
    torch.testing.assert_close(student.embeddings(packed()), teacher.embeddings(packed()))
    assert torch.equal(student.layers[0].attention.qkv.weight, teacher.layers[0].attention.qkv.weight)
    back = make_student(student, student_config(student.config, layers=3, model_type="bert"))
    assert len(back.layers) == 3 and back(packed()).shape == (22, 24)
    narrow = make_student(teacher, student_config(teacher.config, width=8, model_type="albert"))
    assert narrow(packed()).shape == (22, 8)


def test_a_cut_of_the_modern_family_keeps_which_layers_see_everything() -> None:
    teacher = teacher_of("modernbert")
    assert [teacher.config.is_local(layer) for layer in range(6)] == [False, True, True, False, True, True]
    config = student_config(teacher.config, kept=[0, 2, 3])
    assert [config.is_local(layer) for layer in range(3)] == [False, True, False]


def test_a_narrow_student_keeps_the_channels_with_the_largest_weights() -> None:
    teacher = teacher_of()
    with torch.no_grad():
        teacher.embeddings.token.weight[:, :8] *= 10
    student = make_student(teacher, student_config(teacher.config, width=8))
    assert student.config.num_attention_heads == 2
    assert student.config.intermediate_size == 16
    assert torch.equal(student.embeddings.token.weight, teacher.embeddings.token.weight[:, :8])
    assert torch.equal(student.layers[2].attention_norm.bias, teacher.layers[5].attention_norm.bias[:8])
    assert student(packed()).shape == (22, 8)


@pytest.mark.parametrize("model_type", ["bert", "modernbert"])
def test_what_a_narrow_student_leaves_out_is_zero_in_a_teacher_that_gives_the_same(model_type: str) -> None:
    """A teacher whose other heads and neurons are silent answers as the student without them does."""
    teacher = teacher_of(model_type)
    with torch.no_grad():
        for layer in teacher.layers:
            layer.attention.output.weight[:, 4:] = 0
            layer.feed_forward.down.weight[:, 24:] = 0
    student = make_student(teacher, student_config(teacher.config, layers=6, feed_forward=24))
    with torch.no_grad():  # undo the scale by which fewer inputs are made up for
        for layer in student.layers:
            layer.feed_forward.down.weight /= 2**0.5
    torch.testing.assert_close(student(packed()), teacher(packed()))


def test_without_segments_those_of_the_first_go_into_the_positions() -> None:
    teacher = teacher_of("bert")
    config = student_config(teacher.config, layers=6, model_type="distilbert")
    student = make_student(teacher, config)
    torch.testing.assert_close(student(packed()), teacher(packed()))


@pytest.mark.parametrize("model_type", ["bert", "electra"])
@pytest.mark.parametrize("teacher_type", ["roberta", "distilbert"])
def test_more_segments_than_the_teachers_begin_as_its_last_or_as_nothing(
    teacher_type: str, model_type: str
) -> None:
    teacher = teacher_of(teacher_type)
    student = make_student(teacher, student_config(teacher.config, layers=6, model_type=model_type))
    ids = np.random.default_rng(0).integers(0, 50, LENGTHS.sum())
    batch = PackedBatch.pack(ids, ids % 2, LENGTHS)
    # RoBERTa has a larger epsilon in its norms
    torch.testing.assert_close(student(batch), teacher(batch), rtol=2e-3, atol=2e-3)


def test_embeddings_of_another_width_stay_whole_before_their_product() -> None:
    teacher = teacher_of("electra", embedding_size=10)
    whole = make_student(teacher, student_config(teacher.config, layers=6))
    assert torch.equal(whole(packed()), teacher(packed()))
    with torch.no_grad():
        teacher.embeddings.project.weight[4:12] *= 10
    narrow = make_student(teacher, student_config(teacher.config, width=8))
    states = teacher.embeddings(packed())
    torch.testing.assert_close(narrow.embeddings(packed()), states[:, 4:12])
    assert narrow(packed()).shape == (22, 8)


@pytest.mark.parametrize("changes", [{"width": 12}, {"model_type": "modernbert"}, {"model_type": "bert"}])
def test_a_student_without_the_product_has_what_it_makes_of_the_vocabulary(changes: dict[str, Any]) -> None:
    """As where a narrower student is just as wide as the embeddings."""
    teacher = teacher_of("electra", embedding_size=12)
    with torch.no_grad():
        teacher.embeddings.project.weight[:12] *= 10
        teacher.embeddings.norm.weight.fill_(2.0)
    student = make_student(teacher, student_config(teacher.config, **changes))
    assert student.embeddings.project is None
    product = 2 * teacher.embeddings.token.weight @ teacher.embeddings.project.weight.T
    width = student.config.hidden_size
    torch.testing.assert_close(student.embeddings.token.weight, product[:, :width])
    assert student(packed()).shape == (22, width)


def test_embeddings_that_are_narrower_than_the_teachers_are_refused() -> None:
    config = student_config(teacher_of().config).model_copy(update={"embedding_size": 8})
    with pytest.raises(ModelError, match="as wide as its teacher's of 24, not 8"):
        make_student(teacher_of(), config)


def test_a_student_of_the_modern_family_takes_the_vocabulary() -> None:
    teacher = teacher_of()
    config = student_config(teacher.config, model_type="modernbert")
    assert (config.num_hidden_layers, config.hidden_size, config.num_attention_heads) == (3, 24, 6)
    student = make_student(teacher, config)
    assert torch.equal(student.embeddings.token.weight, teacher.embeddings.token.weight)
    assert student(packed()).shape == (22, 24)


def test_the_teacher_is_not_changed_by_its_student() -> None:
    teacher = teacher_of()
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    student = make_student(teacher, student_config(teacher.config))
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.zero_()
    assert all(torch.equal(before[name], tensor) for name, tensor in teacher.state_dict().items())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"layers": 7}, "A student of 7 layers can't be cut from 6: choose 1 to 6."),
        (
            {"width": 10},
            "A student of width 10 can't keep the teacher's heads of 4: choose a multiple of 4, such as 8.",
        ),
        ({"width": 28}, "A student of width 28 is wider than its teacher of 24."),
        (
            {"feed_forward": 49},
            "A student with 49 neurons in its feed-forward parts has more than its teacher, whose have 48.",
        ),
        (
            {"kept": [0, 6]},
            "A student of 2 layers needs 2 of its teacher's 6, counted from 0; found 0, 6.",
        ),
        ({"model_type": "bart"}, "bart"),
    ],
)
def test_an_impossible_student_is_one_sentence(changes: dict[str, object], sentence: str) -> None:
    teacher = teacher_of()
    with pytest.raises(ModelError) as caught:
        config = student_config(teacher.config, **changes)
        make_student(teacher, config, changes.get("kept"))
    assert sentence in str(caught.value)


def test_a_student_of_another_vocabulary_is_refused() -> None:
    config = BertConfig(vocab_size=51, **SHAPE)
    with pytest.raises(ModelError, match="its teacher's vocabulary of 50 pieces, not 51"):
        make_student(teacher_of(), config)
