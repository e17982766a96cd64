"""Losses of a distillation against their definitions, written out sequence by sequence."""

import numpy as np
import pytest
import torch
from encoder_samples import config_of, drawn
from torch import Tensor
from torch.nn import functional as F

from bertsmith.compression.distilling.encoders.losses import (
    collect_products,
    cosine_loss,
    relation_heads,
    relation_loss,
    soft_target_loss,
)
from bertsmith.compression.distilling.encoders.teacher import EncoderTeacher, rotate_products
from bertsmith.data.batch import PackedBatch
from bertsmith.model.bert import Bert
from bertsmith.tasks.heads.pooling import Pooling, pool_sequences

LENGTHS = (7, 7, 3, 12)


def packed(multiple: int = 1) -> PackedBatch:
    ids = np.random.default_rng(0).integers(5, 90, sum(LENGTHS))
    return PackedBatch.pack(ids, np.zeros_like(ids), np.array(LENGTHS), multiple=multiple)


def relations_written_out(products: Tensor, heads: int, kind: int) -> list[Tensor]:
    """softmax(A A^T / sqrt(d)) of each sequence and head (Wang et al. 2021, equations 2 to 4)."""
    found = []
    chosen = products.chunk(3, dim=1)[kind]
    for rows in chosen.split(LENGTHS):
        for head in rows.chunk(heads, dim=1):
            found.append(torch.softmax(head @ head.T / head.shape[1] ** 0.5, dim=1))
    return found


@pytest.mark.parametrize("heads", [1, 4])
def test_relations_are_those_of_the_definition(heads: int) -> None:
    torch.manual_seed(0)
    taught, learned = torch.randn(sum(LENGTHS), 3 * 16), torch.randn(sum(LENGTHS), 3 * 8)
    wanted = torch.zeros(())
    for kind in range(3):
        pairs = zip(*(relations_written_out(each, heads, kind) for each in (taught, learned)), strict=True)
        for target, found in pairs:
            wanted += (target * (target.log() - found.log())).sum() / (3 * heads)
    found = relation_loss(taught, learned, LENGTHS, heads)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_equal_relations_cost_nothing_and_spare_tokens_do_not_count() -> None:
    torch.manual_seed(0)
    products = torch.randn(sum(LENGTHS) + 3, 3 * 8)
    other = products.clone()
    other[-3:] += 5
    assert relation_loss(products, other, LENGTHS, 2).item() == pytest.approx(0, abs=1e-5)


def test_relations_are_compared_in_float32_under_autocast() -> None:
    torch.manual_seed(0)
    taught, learned = torch.randn(sum(LENGTHS), 3 * 16), torch.randn(sum(LENGTHS), 3 * 8)
    wanted = relation_loss(taught, learned, LENGTHS, 4)
    with torch.autocast("cpu", torch.bfloat16):
        found = relation_loss(taught, learned, LENGTHS, 4)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("widths", "wanted", "heads"), [((384, 192), 12, 12), ((32, 24), 12, 8), ((7, 5), 12, 1)]
)
def test_both_widths_are_divided_into_as_many_relation_heads(
    widths: tuple[int, int], wanted: int, heads: int
) -> None:
    assert relation_heads(*widths, wanted) == heads


def test_soft_targets_are_hintons() -> None:
    torch.manual_seed(0)
    taught, learned = torch.randn(5, 11), torch.randn(5, 11)
    target, found = (torch.softmax(each / 2, dim=1) for each in (taught, learned))
    wanted = 4 * (target * (target.log() - found.log())).sum()
    torch.testing.assert_close(soft_target_loss(taught, learned, 2.0), wanted)


def test_the_cosine_loss_of_unit_vectors_is_half_of_their_squared_distance() -> None:
    torch.manual_seed(0)
    one, other = (F.normalize(torch.randn(6, 9), dim=1) for _ in range(2))
    torch.testing.assert_close(cosine_loss(one, other), 0.5 * (one - other).pow(2).sum())


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_each_sequence_is_pooled_by_itself(pooling: Pooling) -> None:
    batch = packed(multiple=8)
    states = torch.randn(len(batch.token_ids), 6)
    pick = {"mean": lambda rows: rows.mean(0), "cls": lambda rows: rows[0], "max": lambda rows: rows.amax(0)}
    wanted = torch.stack([pick[pooling](rows) for rows in states[: sum(LENGTHS)].split(LENGTHS)])
    torch.testing.assert_close(pool_sequences(states, batch, pooling), wanted)


@pytest.mark.parametrize(
    "model_type", ["bert", "modernbert", "nomic_bert", "gte", "albert", "mpnet", "jina_bert"]
)
def test_the_teacher_says_what_the_encoder_computes(model_type: str) -> None:
    encoder = drawn(Bert(config_of(model_type, pad_token_id=int(model_type == "mpnet")))).eval()
    assert isinstance(encoder, Bert)
    batch = packed()
    attention = encoder.layer_sequence[2].attention
    with torch.no_grad(), collect_products(attention) as products:
        states = encoder(batch)
        wanted = rotate_products(attention, products[2 % len(products)], batch)  # ALBERT's layers are one
    taught = EncoderTeacher(encoder, torch.device("cpu"), layer=2)(batch)
    assert F.cosine_similarity(taught.states, states).min() > 0.9999  # in int16
    assert taught.products is not None
    torch.testing.assert_close(taught.products, wanted, rtol=0, atol=2e-2)


def test_gradients_reach_queries_and_keys_behind_rotary_positions() -> None:
    encoder = drawn(Bert(config_of("modernbert")))
    assert isinstance(encoder, Bert)
    last, batch = encoder.layers[-1].attention, packed()
    with collect_products(last) as products:
        encoder(batch)
    turned = rotate_products(last, products[0], batch)
    taught = torch.randn(len(turned), 3 * 16)
    loss = relation_loss(taught, turned, LENGTHS, 2)
    loss.backward()
    weight = last.qkv.weight
    direction = torch.randn_like(weight)
    step = 1e-3
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            weight.add_(sign * step * direction)
            with collect_products(last) as products:
                encoder(batch)
            values.append(float(relation_loss(taught, rotate_products(last, products[0], batch), LENGTHS, 2)))
            weight.sub_(sign * step * direction)
    slope = (values[0] - values[1]) / (2 * step)
    assert weight.grad is not None
    assert float((weight.grad * direction).sum()) == pytest.approx(slope, rel=2e-2)
