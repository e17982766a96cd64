"""Linear modules by the kernels: the product, and of a row always the same."""

from collections.abc import Iterator
from copy import deepcopy
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from bertsmith.model.bert import Bert
from bertsmith.model.config import make_config
from bertsmith.model.cpu.inference import prepare_for_inference
from bertsmith.model.cpu.kernel_layer import KernelLinear, use_kernels


@pytest.fixture(autouse=True)
def _a_library(inference_way: str) -> None:
    if inference_way == "torch":
        pytest.skip("needs a library")


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@torch.inference_mode()
@pytest.mark.parametrize(("inputs", "outputs"), [(32, 2), (96, 96), (100, 17), (800, 33)])
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_the_product_and_of_a_row_the_same_in_any_company(
    inputs: int, outputs: int, bias: bool, threads: int
) -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(inputs, outputs, bias=bias), torch.randn(50, inputs)
    module = KernelLinear(linear)
    found = module(x)
    assert_close(found.double(), deepcopy(linear).double()(x.double()), rtol=0, atol=1e-5)
    for first, last in ((0, 1), (7, 8), (3, 20), (44, 50), (0, 0)):
        assert torch.equal(module(x[first:last]), found[first:last])
    copy = ForkingPickler.loads(ForkingPickler.dumps(module))
    assert torch.equal(copy(x), found)
    assert torch.equal(module(x), found)
    with pytest.raises(ValueError, match=rf"expected \(N, {inputs}\), found \(2, 5\)"):
        module(torch.zeros(2, 5))


def test_only_beside_layers_of_the_kernels() -> None:
    def model(hidden_size: int) -> nn.Module:
        shape = {"num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 32}
        config = make_config({"vocab_size": 9, "hidden_size": hidden_size, **shape}, "test")
        head = nn.Sequential(nn.Linear(hidden_size, 2))
        return nn.ModuleDict({"encoder": prepare_for_inference(Bert(config).eval()), "head": head})

    for hidden_size, expected in ((16, 2), (24, 0)):
        changed = model(hidden_size)
        use_kernels(changed)
        kinds = [type(module) for module in changed.modules()]
        assert (kinds.count(KernelLinear), kinds.count(nn.Linear)) == (expected, 2 - expected)
        assert changed.get_submodule("head")(torch.zeros(3, hidden_size)).shape == (3, 2)
