"""What the norms do not know is refused by name; what they hold in memory is bounded and estimated."""

import numpy as np
import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from support.rollouts import ragged
from support.tiny import tiny_policy
from trimtab.learner.layout import BlockLayout
from trimtab.learner.norms.estimate import Mode, Shape, choose_mode, choose_route, estimate
from trimtab.learner.norms.units import Buffers, Input, LinearUnit, NormBudget
from trimtab.learner.packing import pack
from trimtab.learner.passes import PackedModel
from trimtab.records import TrimtabError


def forward(model: PreTrainedModel) -> None:
    PackedModel(model, route="bookkeeping").forward(pack(ragged(np.random.default_rng(0), 3)), norms=True)


def test_an_unknown_parametric_module_is_refused_by_name() -> None:
    model = tiny_policy().model
    model.model.layers[1].mlp.act_fn = nn.PReLU()
    with pytest.raises(TrimtabError, match=r"model\.layers\.1\.mlp\.act_fn is a torch\.nn\.modules\.activation\.PReLU"):
        _ = PackedModel(model).registry
    PackedModel(model).forward(pack(ragged(np.random.default_rng(0), 3)))  # training without norms is fine


def test_a_subclass_may_compute_something_else() -> None:
    class Scaled(nn.Linear):
        pass

    model = tiny_policy().model
    model.model.layers[0].mlp.up_proj = Scaled(32, 64, bias=False)
    with pytest.raises(TrimtabError, match=r"model\.layers\.0\.mlp\.up_proj is a .*Scaled"):
        _ = PackedModel(model).registry


def test_a_parameter_outside_known_modules_is_refused_by_name() -> None:
    model = tiny_policy().model
    model.model.scale = nn.Parameter(torch.ones(1))
    with pytest.raises(TrimtabError, match=r"^model is a transformers\..*Qwen2Model"):
        _ = PackedModel(model).registry


def test_a_module_used_twice_is_refused_by_name() -> None:
    model = tiny_policy().model
    model.model.layers[1].mlp.gate_proj = model.model.layers[0].mlp.gate_proj
    with pytest.raises(TrimtabError, match=r"model\.layers\.0\.mlp\.gate_proj is called more than once"):
        forward(model)


def test_a_parameter_shared_by_two_modules_is_refused_by_name() -> None:
    model = tiny_policy().model
    model.model.layers[1].mlp.gate_proj.weight = model.model.layers[0].mlp.gate_proj.weight
    with pytest.raises(TrimtabError, match=r"layers\.1\.mlp\.gate_proj\.weight is also model\.layers\.0\.mlp\.gate_proj\.weight"):
        forward(model)


def test_a_module_that_is_not_called_is_refused_by_name() -> None:
    model = tiny_policy().model
    model.model.spare = nn.Linear(2, 2)
    with pytest.raises(TrimtabError, match=r"model\.spare was not called"):
        forward(model)


def test_dropout_is_refused_by_name() -> None:
    model = tiny_policy().model
    model.model.layers[0].mlp.drop = nn.Dropout(0.1)
    with pytest.raises(TrimtabError, match=r"model\.layers\.0\.mlp\.drop\.p = 0\.1"):
        forward(model)


def test_gradient_checkpointing_is_refused() -> None:
    model = tiny_policy().model
    model.gradient_checkpointing_enable()
    with pytest.raises(TrimtabError, match="gradient_checkpointing_disable"):
        forward(model)


def test_an_embedding_with_its_own_gradient_rule_is_refused() -> None:
    model = tiny_policy().model
    model.model.embed_tokens.scale_grad_by_freq = True
    with pytest.raises(TrimtabError, match=r"model\.embed_tokens: .*scale_grad_by_freq"):
        forward(model)


def test_short_wide_layers_take_inner_products_and_long_narrow_ones_materialize() -> None:
    assert choose_mode(Shape(2048, 8192), BlockLayout([41] * 64), 4, keep=2**62) is Mode.GRAM
    assert choose_mode(Shape(64, 64), BlockLayout([41] * 64), 4, keep=2**62) is Mode.KEEP
    assert choose_mode(Shape(128, 128), BlockLayout([256] * 16), 4, keep=2**62) is Mode.KEEP
    assert choose_mode(Shape(128, 128), BlockLayout([4096] * 16), 4, keep=0) is Mode.FORGET


def test_kept_gradients_stay_within_memory() -> None:
    layout = BlockLayout([64] * 16)
    kept_of_one = 16 * 32 * 32 * 4
    budget = NormBudget(layout, torch.zeros(1), left=2 * kept_of_one + 1, buffers=Buffers(), weighted=True)
    shared = Input(torch.randn(layout.rows, 32), layout, sharing=1)
    linears = [LinearUnit(str(i), nn.Linear(32, 32, bias=False), shared, budget) for i in range(3)]
    for unit in linears:
        unit.receive(torch.randn(1, layout.rows, 32))
    assert [unit.kept is not None for unit in linears] == [True, True, False]
    assert budget.left == 1


def test_no_intermediate_holds_all_rollouts_gradients_where_memory_forbids_it() -> None:
    """64 rollouts of a 512 x 512 layer would be 64 MiB; a few at a time are 8."""
    layout = BlockLayout([600] * 64)
    budget = NormBudget(layout, torch.zeros(1), left=0, buffers=Buffers(), weighted=True)
    unit = LinearUnit("wide", nn.Linear(512, 512, bias=False), Input(torch.randn(layout.rows, 512), layout, sharing=1), budget)
    e = torch.randn(1, layout.rows, 512)
    with torch.no_grad(), torch.profiler.profile(profile_memory=True) as profile:
        unit.receive(e)
    assert max(event.self_cpu_memory_usage for event in profile.events()) <= 2**23


def test_auto_takes_the_cheapest_route_that_fits() -> None:
    layout, shapes = BlockLayout([41] * 64), [Shape(64, 64)] * 8
    ample = estimate(shapes, 100_000, layout, 4, 2**29)
    assert choose_route(ample, 2**29) == "bookkeeping"
    assert ample["bookkeeping"].cost < ample["two_pass"].cost
    tight = estimate(shapes, 100_000, layout, 4, 2**10)
    assert choose_route(tight, 2**10) == "two_pass"
    model = tiny_policy().model
    packed = pack(ragged(np.random.default_rng(0), 3))
    assert PackedModel(model).route_for(packed) == "bookkeeping"
    assert PackedModel(model, memory=16).route_for(packed) == "two_pass"
    assert PackedModel(model, route="two_buffer").route_for(packed) == "two_buffer"
