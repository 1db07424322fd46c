"""Optimizers and learning rates, against reference implementations."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from nmt_cli.model.transformer import Transformer
from nmt_cli.recipe.schema import ModelConfig
from nmt_cli.recipe.training import (
    AdamConfig,
    AdamWConfig,
    ConstantConfig,
    CosineConfig,
    InverseSqrtConfig,
    NoamConfig,
    OptimizerConfig,
    WsdConfig,
)
from nmt_cli.training.master_weights import MasterWeights
from nmt_cli.training.optimizers_and_schedules import Optimizer, scheduled_rate

Config = AdamConfig | AdamWConfig
CONFIGS: list[Config] = [
    AdamConfig(),
    AdamConfig(beta1=0.8, beta2=0.99, epsilon=1e-6),
    AdamWConfig(beta1=0.85, beta2=0.95, epsilon=1e-7, weight_decay=0.3),
]
UPDATES = 25
TINY = ModelConfig(encoder_layers=1, decoder_layers=1, d_model=8, d_ff=12, heads=2, d_k=4, d_v=3)
ALL: dict[str, OptimizerConfig] = {
    "adam": AdamConfig(),
    "adamw": AdamWConfig(beta1=0.85, beta2=0.95, epsilon=1e-7, weight_decay=0.3),
}
CASES = [(config, None) for config in ALL.values()] + [(AdamConfig(), 0.9)]


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5), nn.Linear(5, 3, bias=False))


def gradients_of(update: int, like: Tensor) -> Tensor:
    """Of very different sizes, so that epsilon and both moments show; some are 0, so that decay shows alone."""
    generator = torch.Generator().manual_seed(update)
    sizes = 10.0 ** torch.linspace(-8, 2, like.numel())
    sizes[::9] = 0
    return torch.randn(like.numel(), generator=generator) * sizes


def rate(update: int) -> float:
    return 1e-2 / update


def take(weights: MasterWeights, optimizer: Optimizer, updates: range) -> None:
    for update in updates:
        weights.gradients.copy_(gradients_of(update, weights.gradients))
        optimizer.step(learning_rate=rate(update), skip=torch.zeros(()))
        weights.gradients.zero_()


def step(reference: torch.optim.Optimizer, update: int) -> None:
    for group in reference.param_groups:
        group["lr"] = rate(update)
    reference.step()


def torch_s(config: Config, parameters: list[nn.Parameter], *, is_fused: bool) -> torch.optim.Optimizer:
    betas, eps = (config.beta1, config.beta2), config.epsilon
    if isinstance(config, AdamConfig):
        return torch.optim.Adam(parameters, betas=betas, eps=eps, fused=is_fused, foreach=False)
    matrices = [parameter for parameter in parameters if parameter.ndim == 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": [parameter for parameter in parameters if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=betas, eps=eps, fused=is_fused, foreach=False)


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("config", CONFIGS, ids=["adam", "other betas", "adamw"])
def test_the_trajectory_is_torch_s_over_separate_parameters(config: Config, is_fused: bool) -> None:
    model, twin = network(), network()
    weights = MasterWeights(model, precision="fp32")
    optimizer = Optimizer(weights, config, ema=None)
    reference = torch_s(config, list(twin.parameters()), is_fused=is_fused)
    for update in range(1, UPDATES + 1):
        take(weights, optimizer, range(update, update + 1))
        for name, gradient in weights.named(gradients_of(update, weights.values)).items():
            twin.get_parameter(name).grad = gradient.clone()
        step(reference, update)
        # torch's own variants differ in the last places of float32, in numbers up to 1.
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter, twin.get_parameter(name), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("config", "ema"), CASES, ids=[*ALL, "adam with ema"])
def test_a_step_that_the_device_skips_leaves_no_trace(config: OptimizerConfig, ema: float | None) -> None:
    (plain, expected), (skipping, optimizer) = begun(config, ema=ema), begun(config, ema=ema)
    for update in range(1, 6):
        take(plain, expected, range(update, update + 1))
        skipping.gradients.fill_(torch.nan)
        optimizer.step(learning_rate=0.5, skip=torch.ones(()))
        skipping.gradients.copy_(gradients_of(update, skipping.gradients))
        optimizer.step(learning_rate=rate(update), skip=torch.zeros(()))
        assert torch.equal(skipping.values, plain.values)
    for name, moment in expected.state.items():
        assert torch.equal(optimizer.state[name], moment)


def transformer() -> Transformer:
    torch.manual_seed(1)
    return Transformer(TINY, source_vocab=20, target_vocab=20)


def begun(config: OptimizerConfig, *, ema: float | None = None) -> tuple[MasterWeights, Optimizer]:
    weights = MasterWeights(transformer(), precision="fp32")
    return weights, Optimizer(weights, config, ema=ema)


def test_a_moving_average_follows_the_weights_and_stands_in_for_them() -> None:
    weights, optimizer = begun(AdamConfig(), ema=0.5)
    average = weights.values.clone()
    for update in range(1, 13):
        take(weights, optimizer, range(update, update + 1))
        decay = min(0.5, (1 + update) / (10 + update))
        average = decay * average + (1 - decay) * weights.values
    evaluated = optimizer.average
    assert evaluated is not None
    torch.testing.assert_close(evaluated, average, rtol=1e-5, atol=1e-7)
    trained = weights.values.clone()
    with weights.replaced_by(evaluated):
        assert torch.equal(weights.values, evaluated)
        assert weights.trained_values is not None
        assert torch.equal(weights.trained_values, trained)
    assert torch.equal(weights.values, trained)
    assert weights.trained_values is None


def noam(update: int, *, factor: float = 1.0, d_model: int = 512) -> float:
    """The rate of the paper's schedule, of the base model unless told otherwise."""
    return scheduled_rate(NoamConfig(factor=factor, warmup_updates=4000), update=update, num_updates=1, d_model=d_model)


def cosine(update: int, *, updates: int, peak: float = 1.0, warmup_updates: int = 9) -> float:
    schedule = CosineConfig(peak=peak, warmup_updates=warmup_updates)
    return scheduled_rate(schedule, update=update, num_updates=updates, d_model=1)


@pytest.mark.parametrize(
    ("update", "rate"),
    [
        (1, 1.746928e-07),  # 512^-0.5 * 4000^-1.5
        (1000, 1.746928e-04),
        (4000, 6.987712e-04),  # 512^-0.5 * 4000^-0.5
        (16_000, 3.493856e-04),  # half of it: four times as many updates
        (100_000, 1.397542e-04),
    ],
)
def test_the_paper_s_schedule_is_equation_3(update: int, rate: float) -> None:
    # The figures were worked out by hand, to seven digits.
    assert noam(update) == pytest.approx(rate, rel=1e-6)
    assert noam(update, factor=2.5) == pytest.approx(2.5 * noam(update))
    assert noam(update, d_model=2048) == pytest.approx(noam(update) / 2)


def test_a_cosine_rises_in_a_line_and_falls_to_zero_behind_the_last_update() -> None:
    rates = [cosine(update, peak=1e-3, warmup_updates=100, updates=1000) for update in range(1, 1002)]
    assert rates[:100] == pytest.approx([1e-5 * update for update in range(1, 101)])
    assert rates.index(max(rates)) + 1 == 100
    assert rates[99] == 1e-3
    assert all(before > after for before, after in pairwise(rates[99:]))
    assert rates[999] > 0
    assert rates[1000] == pytest.approx(0, abs=1e-18)
    # It never rises again, and one update behind the warm-up is served.
    assert cosine(5000, updates=1000) == 0
    assert cosine(10, updates=10) == pytest.approx(0.5)


def fairseq_inverse_sqrt(update: int, *, lr: float, warmup_updates: int) -> float:
    """fairseq's optim/lr_scheduler/inverse_square_root_schedule.py, with --warmup-init-lr 0, in its own terms."""
    lr_step = (lr - 0) / warmup_updates
    decay_factor = lr * warmup_updates**0.5
    return 0 + update * lr_step if update < warmup_updates else decay_factor * update**-0.5


@pytest.mark.parametrize("update", [1, 2, 3999, 4000, 4001, 16_000, 123_456])
def test_inverse_sqrt_is_fairseqs(update: int) -> None:
    schedule = InverseSqrtConfig(peak=5e-4, warmup_updates=4000)
    rate = scheduled_rate(schedule, update=update, num_updates=200_000, d_model=512)
    assert rate == pytest.approx(fairseq_inverse_sqrt(update, lr=5e-4, warmup_updates=4000), rel=1e-12)
    # Noam with the factor that gives this peak is the same schedule: factor = peak * sqrt(d_model * warmup).
    assert rate == pytest.approx(noam(update, factor=5e-4 * math.sqrt(512 * 4000)), rel=1e-12)


def test_wsd_rises_stays_and_falls_to_zero_after_the_last_update() -> None:
    schedule = WsdConfig(peak=0.5, warmup_updates=4, decay_updates=4)
    rates = [scheduled_rate(schedule, update=update, num_updates=12, d_model=512) for update in range(1, 14)]
    assert rates == pytest.approx([0.125, 0.25, 0.375, *[0.5] * 5, 0.4, 0.3, 0.2, 0.1, 0.0])


def test_constant_rises_and_stays() -> None:
    schedule = ConstantConfig(peak=0.5, warmup_updates=4)
    rates = [scheduled_rate(schedule, update=update, num_updates=9, d_model=1) for update in (1, 2, 4, 5, 900)]
    assert rates == [0.125, 0.25, 0.5, 0.5, 0.5]
