"""Sections of a recipe about training: optimizers, schedules, consistency, validation and averaging.

Section numbers refer to Vaswani et al. 2017, arXiv:1706.03762.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from nmt_cli.devices import PrecisionChoice
from nmt_cli.recipe.section import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
    Section,
    SettingError,
)


class AdamConfig(Section):
    """Adam (section 5.3)."""

    name: Literal["adam"] = Field("adam", description="name of the optimizer")
    beta1: Probability = Field(0.9, description="decay per update of the running mean of gradients (5.3)")
    beta2: Probability = Field(0.98, description="decay per update of the mean of squared gradients (5.3)")
    epsilon: PositiveFloat = Field(1e-9, description="added to the root of the mean of squared gradients (5.3)")


class AdamWConfig(Section):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv:1711.05101) on the matrices."""

    name: Literal["adamw"] = Field("adamw", description="name of the optimizer")
    beta1: Probability = Field(0.9, description="decay per update of the mean of gradients")
    beta2: Probability = Field(0.98, description="decay per update of the mean of squared gradients")
    epsilon: PositiveFloat = Field(1e-9, description="added to the root of the mean of squared gradients")
    weight_decay: PositiveFloat = Field(0.01, description="decay of each matrix per update, times the learning rate")


_Peak = Annotated[PositiveFloat, Field(description="highest learning rate")]
_WarmupUpdates = Annotated[PositiveInt, Field(description="updates in which the rate rises")]


class NoamConfig(Section):
    """The paper's schedule: factor * d_model^-0.5 * min(update^-0.5, update * warmup^-1.5) (equation 3)."""

    name: Literal["noam"] = Field("noam", description="name of the schedule")
    factor: PositiveFloat = Field(1.0, description="multiplies the whole schedule; 1 is the paper's")
    warmup_updates: PositiveInt = Field(4000, description="updates in which the rate rises (5.3)")


class CosineConfig(Section):
    """Linear warm-up to a peak, then half a cosine, which is zero one update after the last."""

    name: Literal["cosine"] = Field("cosine", description="name of the schedule")
    peak: _Peak
    warmup_updates: _WarmupUpdates = 4000


class WsdConfig(Section):
    """Linear warm-up, constant rate, fall to zero one update after the last (Hu et al. 2024, arXiv:2404.06395)."""

    name: Literal["wsd"] = Field("wsd", description="name of the schedule")
    peak: _Peak
    warmup_updates: _WarmupUpdates = 4000
    decay_updates: PositiveInt = Field(description="last updates, in which the rate falls")


class ConstantConfig(Section):
    """Linear warm-up to a rate that is then kept."""

    name: Literal["constant"] = Field("constant", description="name of the schedule")
    peak: PositiveFloat = Field(description="the learning rate")
    warmup_updates: _WarmupUpdates = 4000


class InverseSqrtConfig(Section):
    """Linear warm-up to a peak, then peak * sqrt(warmup_updates / update): noam with fairseq's --lr as its peak."""

    name: Literal["inverse_sqrt"] = Field("inverse_sqrt", description="name of the schedule")
    peak: _Peak
    warmup_updates: _WarmupUpdates = 4000


OptimizerConfig = Annotated[AdamConfig | AdamWConfig, Field(discriminator="name")]
ScheduleConfig = Annotated[
    NoamConfig | InverseSqrtConfig | CosineConfig | WsdConfig | ConstantConfig, Field(discriminator="name")
]


class RDropConfig(Section):
    """R-Drop (Liang et al. 2021, arXiv:2106.14448): two passes with different dropout are to predict alike."""

    name: Literal["r_drop"] = Field("r_drop", description="name of the regulariser")
    alpha: NonNegativeFloat = Field(5.0, description="weight of the mean divergence, added to both losses; 0: one pass")


class SimCutConfig(Section):
    """SimCut (Gao et al. 2022, arXiv:2206.02368): a pass without some tokens is to predict as the whole does."""

    name: Literal["simcut"] = Field("simcut", description="name of the regulariser")
    alpha: NonNegativeFloat = Field(3.0, description="weight of the divergence, added to the first loss; 0: one pass")
    cut: Probability = Field(0.05, description="share of tokens, on both sides, without embedding in the second pass")


ConsistencyConfig = Annotated[RDropConfig | SimCutConfig, Field(discriminator="name")]


class TrainingConfig(Section):
    """Batches, optimizer, schedule and length of the training (section 5)."""

    seed: NonNegativeInt = Field(1, description="seed of initialisation, data order and dropout")
    updates: PositiveInt = Field(100_000, description="optimizer updates in all (5.2)")
    batch_tokens: PositiveInt = Field(
        25_000, description="maximum of source or of target tokens in an update, on all GPUs (5.1)"
    )
    max_tokens_per_device: PositiveInt | Literal["auto"] = Field(
        "auto", description="maximum of tokens per side on a device at once; accumulation follows; auto: what fits"
    )
    temperature: float = Field(
        1.0,
        ge=1,
        allow_inf_nan=False,
        description="of several directions, each comes in proportion to its pairs to the power of 1 / temperature "
        "(Arivazhagan et al. 2019): 1: by size; 5: small ones nearly as often as large ones; the copies of a pair in "
        "an epoch have the same sampled pieces",
    )
    compile: bool = Field(True, description="on GPUs: compiled layers and CUDA graphs; results equal within rounding")
    label_smoothing: Probability = Field(0.1, description="epsilon_ls (5.4)")
    consistency: ConsistencyConfig | None = Field(
        None, description="r_drop or simcut: two passes of each pair; null: one"
    )
    guided_alignment: NonNegativeFloat | None = Field(
        None,
        description="weight of a loss that teaches one head the word alignments of the data (Garg et al. 2019), such "
        "as 0.1; null or 0: none",
    )
    optimizer: OptimizerConfig = AdamConfig()
    schedule: ScheduleConfig = NoamConfig()
    ema: Probability | None = Field(
        None, description="decay of a moving average of the weights, which is validated and saved; null: none"
    )
    clip_norm: PositiveFloat | None = Field(None, description="largest gradient norm; null: no clipping (the paper)")
    max_skipped_updates: NonNegativeInt = Field(
        10, description="updates in a row skipped because gradients are not finite, before training fails"
    )
    spike_nats: PositiveFloat | None = Field(
        2.0,
        description="training fails if the mean loss of 50 updates is so far above its least; null: never",
    )
    watchdog_seconds: PositiveInt = Field(
        600, description="if no rank makes progress for this time, all ranks print their stacks and training ends"
    )
    precision: PrecisionChoice = Field("auto", description="auto: bf16 if the hardware has it natively, else fp32")
    log_every: PositiveInt = Field(100, description="updates between lines of metrics.jsonl; the last update has one")
    checkpoint_every: PositiveInt = Field(
        1500, description="updates between checkpoints; 10 minutes in the paper (6.1)"
    )
    keep_last: PositiveInt = Field(5, description="newest checkpoints to keep")
    keep_best: NonNegativeInt = Field(
        0,
        description="best checkpoints to keep besides, by validation.metric; with patience or --init-from at least 1",
    )
    patience: PositiveInt | None = Field(
        None, description="validations without a better validation.metric before training ends early; null: never"
    )

    @property
    def num_passes(self) -> int:
        """How often each pair of an update passes through the model."""
        return 2 if self.consistency is not None and self.consistency.alpha > 0 else 1

    @model_validator(mode="after")
    def _schedule_has_room(self) -> TrainingConfig:
        schedule, warmup = self.schedule, self.schedule.warmup_updates
        settings = ("training.updates", "training.schedule.warmup_updates", "training.schedule.name")
        if schedule.name == "cosine" and warmup >= self.updates:
            problem = f"the cosine falls from update {warmup}, but training.updates is {self.updates}"
            fix = "lower training.schedule.warmup_updates, or raise training.updates"
            raise SettingError(problem, fix, settings=settings)
        if schedule.name == "wsd" and warmup + schedule.decay_updates > self.updates:
            problem = (
                f"the rate rises for {warmup} updates and falls for {schedule.decay_updates}, "
                f"but training.updates is {self.updates}"
            )
            fix = "lower training.schedule.decay_updates, or raise training.updates"
            raise SettingError(problem, fix, settings=("training.schedule.decay_updates", *settings))
        return self


class ValidationConfig(Section):
    """The measurements on the validation set during training; they use the decoding section."""

    every: PositiveInt = Field(1500, description="updates between validations")
    metric: Literal["loss", "bleu"] = Field("bleu", description="metric of the best checkpoints and of patience")
    bleu: bool = Field(True, description="translate the validation set and score it with sacreBLEU")
    max_sentences: PositiveInt | None = Field(
        None, description="sentences of each direction to translate, from the first on; null: all"
    )

    @model_validator(mode="after")
    def _metric_is_measured(self) -> ValidationConfig:
        if self.metric == "bleu" and not self.bleu:
            fix = "write metric: loss beside it, or leave bleu at true"
            problem = "validation.metric is bleu, so validation.bleu cannot be false"
            raise SettingError(problem, fix, settings=("validation.bleu", "validation.metric"))
        return self


class AveragingConfig(Section):
    """The checkpoints that `nmt average` takes (section 6.1)."""

    last: PositiveInt | None = Field(5, description="number of newest checkpoints to average")
    best: PositiveInt | None = Field(
        None, description="number of best checkpoints to average, by validation.metric; either this or last is null"
    )

    @property
    def choice(self) -> tuple[Literal["last", "best"], int]:
        """Whether the last or the best checkpoints are averaged, and how many."""
        if self.best is not None:
            return "best", self.best
        assert self.last is not None  # `_exactly_one`
        return "last", self.last

    @model_validator(mode="after")
    def _exactly_one(self) -> AveragingConfig:
        if (self.last is None) == (self.best is None):
            value = "null" if self.best else "5"
            fix = f"write last: {value}, or best: {value}"
            problem = "exactly one of averaging.last and averaging.best is a number, the other null"
            raise SettingError(problem, fix, settings=("averaging.last", "averaging.best"))
        return self
