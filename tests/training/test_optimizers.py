"""Adam and AdamW over flat weights against torch's over separate parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from nmt_cli.recipe.schema import AdamConfig, AdamWConfig
from nmt_cli.training.optimizers import Optimizer
from nmt_cli.training.weights import MasterWeights

Config = AdamConfig | AdamWConfig
CONFIGS: list[Config] = [
    AdamConfig(),
    AdamConfig(beta1=0.8, beta2=0.99, epsilon=1e-6),
    AdamWConfig(beta1=0.85, beta2=0.95, epsilon=1e-7, weight_decay=0.3),
]
UPDATES = 25


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(7, 5), nn.LayerNorm(5), nn.Linear(5, 3, bias=False))


def gradients_of(update: int, like: Tensor) -> Tensor:
    """Of very different sizes, so that epsilon and both moments show."""
    generator = torch.Generator().manual_seed(update)
    sizes = 10.0 ** torch.linspace(-8, 2, like.numel())
    return torch.randn(like.numel(), generator=generator) * sizes


def rate(update: int) -> float:
    return 1e-2 / update


def take(weights: MasterWeights, optimizer: Optimizer, updates: range) -> None:
    for update in updates:
        weights.gradients.copy_(gradients_of(update, weights.gradients))
        optimizer.step(learning_rate=rate(update))
        weights.gradients.zero_()


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
    optimizer = Optimizer(weights, config)
    reference = torch_s(config, list(twin.parameters()), is_fused=is_fused)
    for update in range(1, UPDATES + 1):
        take(weights, optimizer, range(update, update + 1))
        for name, gradient in weights.named(gradients_of(update, weights.values)).items():
            twin.get_parameter(name).grad = gradient.clone()
        for group in reference.param_groups:
            group["lr"] = rate(update)
        reference.step()
        # torch's own variants differ in the last places of float32, in numbers up to 1.
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter, twin.get_parameter(name), rtol=1e-6, atol=1e-7)


def test_the_first_update_is_the_rate_towards_the_sign_of_the_gradient() -> None:
    weights = MasterWeights(network(), precision="fp32")
    before = weights.values.clone()
    weights.gradients.copy_(torch.linspace(-3, 3, len(before)) + 0.01)
    Optimizer(weights, AdamConfig()).step(learning_rate=0.125)
    # With bias correction the first moments' ratio is +-1 (Kingma and Ba 2015, section 2.1).
    expected = before - 0.125 * weights.gradients.sign()
    torch.testing.assert_close(weights.values, expected, rtol=0, atol=1e-6)


def test_adamw_decays_matrices_alone_and_adam_nothing() -> None:
    for config, factor in ((AdamWConfig(weight_decay=0.3), 1 - 0.5 * 0.3), (AdamConfig(), 1.0)):
        model = network()
        weights = MasterWeights(model, precision="fp32")
        before = {name: tensor.clone() for name, tensor in weights.named(weights.values).items()}
        Optimizer(weights, config).step(learning_rate=0.5)
        for name, parameter in model.named_parameters():
            expected = before[name] * (factor if parameter.ndim == 2 else 1.0)
            torch.testing.assert_close(parameter.detach(), expected, rtol=1e-6, atol=0)


def test_moments_are_running_means_of_gradients_and_of_their_squares() -> None:
    config = AdamConfig(beta1=0.8, beta2=0.9)
    weights = MasterWeights(network(), precision="fp32")
    optimizer = Optimizer(weights, config)
    means, squares = torch.zeros_like(weights.values), torch.zeros_like(weights.values)
    for update in range(1, 6):
        take(weights, optimizer, range(update, update + 1))
        gradient = gradients_of(update, weights.values)
        means, squares = 0.8 * means + 0.2 * gradient, 0.9 * squares + 0.1 * gradient**2
    torch.testing.assert_close(optimizer.moments["exp_avg"], means, rtol=1e-5, atol=1e-12)
    torch.testing.assert_close(optimizer.moments["exp_avg_sq"], squares, rtol=1e-5, atol=1e-20)


def test_moments_are_zero_before_the_first_update() -> None:
    weights = MasterWeights(network(), precision="fp32")
    moments = Optimizer(weights, AdamConfig()).moments
    assert tuple(moments) == ("exp_avg", "exp_avg_sq")
    for moment in moments.values():
        assert torch.equal(moment, torch.zeros_like(weights.values))


@pytest.mark.parametrize("config", CONFIGS, ids=["adam", "other betas", "adamw"])
def test_loaded_moments_go_on_bitwise(config: Config) -> None:
    straight = MasterWeights(network(), precision="fp32")
    take(straight, Optimizer(straight, config), range(1, UPDATES + 1))

    first = MasterWeights(network(), precision="fp32")
    optimizer = Optimizer(first, config)
    take(first, optimizer, range(1, 11))
    saved = {name: moment.clone() for name, moment in optimizer.moments.items()}
    second = MasterWeights(network(), precision="fp32")
    second.values.copy_(first.values)
    resumed = Optimizer(second, config)
    for name, moment in resumed.moments.items():
        moment.copy_(saved[name])
    resumed.continue_after(10)
    take(second, resumed, range(11, UPDATES + 1))
    assert torch.equal(second.values, straight.values)
