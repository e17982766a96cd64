"""A step on a GPU: the host may read the losses and the norm at its end, and waits for nothing before."""

from functools import partial

import pytest
import torch

from on_gpu import ours, work
from on_gpu.scale import small
from on_gpu.waits import waits

pytestmark = pytest.mark.cuda
DEVICE = torch.device("cuda")


def test_a_wait_is_seen() -> None:
    value = torch.ones(1, device=DEVICE)
    ((place, times),) = waits(value.item).items()
    assert "waits" in place or "test_host_waits" in place
    assert times == 1


def test_pretraining_waits_in_the_loop_alone() -> None:
    scale = small(DEVICE)
    tokenizer = work.made_up_tokenizer(scale.vocabulary)
    side = ours.Pretraining(scale, scale.pretrained[0], tokenizer)
    batch = work.pairs("mixed", scale.step_tokens, 0, tokenizer, scale.longest)
    side.step(batch)
    found = waits(partial(side.step, batch))
    assert [place for place in found if "/training/" not in place] == []
    assert sum(found.values()) <= 3


def test_fine_tuning_waits_in_the_loop_alone() -> None:
    scale = small(DEVICE)
    examples = work.encoded_texts(
        "sst2", 64, work.made_up_tokenizer(scale.vocabulary), scale.longest, every_row=False
    )
    side = ours.Finetune(scale, scale.finetuned, examples)
    first, second = ours.global_batches(side.task, 2)
    side.step(first)
    found = waits(partial(side.step, second))
    assert [place for place in found if "/training/" not in place] == []


def test_embedding_waits_once_a_batch_for_its_vectors() -> None:
    scale = small(DEVICE)
    tokenizer = work.made_up_tokenizer(scale.vocabulary)
    side = ours.Embedding(scale, scale.embedded[0])
    texts = work.encoded_texts("texts", 4, tokenizer, scale.longest, every_row=True)
    assert work.count_tokens(texts) <= scale.embed_tokens
    side.step(texts)
    assert sum(waits(partial(side.step, texts)).values()) == 1
