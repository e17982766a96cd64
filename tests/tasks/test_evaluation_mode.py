"""What is measured has no dropout; what is trained has it back, whatever happened."""

import pytest
from torch import nn

from bertsmith.tasks.forward_passes import evaluating


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_as_before_also_after_an_error(training: bool) -> None:
    model = nn.Sequential(nn.Dropout(0.5)).train(training)
    with evaluating(model):
        assert not model[0].training
    assert model.training == model[0].training == training
    with pytest.raises(KeyboardInterrupt), evaluating(model):
        raise KeyboardInterrupt
    assert model.training == model[0].training == training
