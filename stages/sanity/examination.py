"""The course of a sanity check: which probe runs on what, and from which state."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import AdamW, Optimizer

from ..config.errors import UserError
from ..verdict.judging import Measured
from . import judging
from .data import (
    LONG_ENOUGH,
    DataAudit,
    audit_data,
    collect_rows,
    overlap,
    scale_difference,
    scale_of_inputs,
    workers_repeat,
)
from .dependency import measure_dependency, output_range
from .evaluation import Evaluation, evaluate
from .label_information import (
    Information,
    Table,
    disagreeing_share,
    information,
    make_table,
    transfer,
)
from .learning import learned_information
from .limits import LIMITS
from .memorising import Memorised, batch_loss, blanked, memorise, rates_for, reference_loss
from .report import Figures
from .running import Run, mode_after_evaluation, run_steps
from .settings import (
    MATRICES,
    find_coverage,
    inspect_initial,
    last_matrix,
    lint,
)
from .state import World
from .subject import (
    Batch,
    EvalFunction,
    Subject,
    find_task,
    input_of,
    labels_of,
    read_batches,
    side_by_side,
    size_of,
)
from .targets.measure import run_target_probe
from .targets.probe import TargetProbe

MOST_BATCHES, MOST_ROWS = 128, 4096
OBSERVED_STEPS = 12
OWN_RATE = 1e-3
KNOWS = 0.9
"""Share of ln K below which a model's loss shows that it has learned before."""
ALL_BUT_ALL = 0.9
"""Share of dead units that a constant input does not explain."""
BLANK_STEPS = 50
"""Steps on zeroed inputs."""
MOSTLY = 0.3
"""Share of frozen weights from which on a batch need not be learned by heart."""
FEW_LABELS = 200
"""Labels below this number may be random without anybody being wrong: too few to tell."""
SURELY = 8.0
"""Standard errors by which validation labels should follow before it is held against them."""


@dataclass
class Examination:
    """Runs the probes and collects what the rules ask for. See sanity_check for the arguments."""

    subject: Subject
    world: World
    loader: Iterable[Batch]
    val_loader: Iterable[Batch] | None
    eval_fn: EvalFunction | None
    num_classes: int | None
    task: str | None
    intended_frozen: tuple[Any, ...]
    label_smoothing: float
    pretrained: bool
    steps: int
    measured: dict[str, Measured] = field(default_factory=dict)
    figures: Figures = field(default_factory=Figures)

    def run(self) -> None:
        self.batches = read_batches(self.loader, MOST_BATCHES, MOST_ROWS)
        if not self.batches:
            raise UserError("the loader gives no batch")
        self.batch = self.batches[0]
        self.optimizer, self.own_optimizer = self._find_optimizer()
        self.probe: TargetProbe | None = None
        self.val_batches: list[Batch] = []
        self.run_seen: Run | None = None
        self._settings()
        works = self._forward()
        if works:
            self._initial_loss()
            works = self._first_step()
        if works:
            self._steps()
            self._targets()
            self._dependency()
            self._memorise()
        else:
            self._not_judged_after_error()
        self._data()
        self._evaluation()
        self._labels()

    def _find_optimizer(self) -> tuple[Optimizer, bool]:
        if self.subject.optimizer is not None:
            return self.subject.optimizer, False
        found = self.world.found.optimizers
        if self.subject.train_step is not None and len(found) == 1:
            return found[0], False
        trainable = [p for p in self.subject.model.parameters() if p.requires_grad]
        if not trainable:
            raise UserError("the model has no parameter that requires a gradient")
        return AdamW(trainable, lr=OWN_RATE, weight_decay=0.0), True

    def _settings(self) -> None:
        model = self.subject.model
        self.coverage = find_coverage(
            model,
            None if self.own_optimizer else self.optimizer,
            self.intended_frozen,
            self.pretrained,
        )
        self.lint = lint(model, None if self.own_optimizer else self.optimizer, LIMITS)
        self.initial = inspect_initial(model, LIMITS, self.pretrained)
        self.measured |= judging.judge_settings(
            self.coverage, self.lint, self.initial, self.own_optimizer
        )

    def _forward(self) -> bool:
        """Find the task; False where the model does not run on its own batch."""
        self.kind = find_task(self.task, self.subject.model, self.batch, torch.zeros(1, 2))
        self.classes = self.num_classes
        self.matters = False
        self.causal = False
        self.share: float | None = None
        try:
            with self.world.undone():
                self.subject.model.eval()
                logits = self.subject.logits(self.batch)
        except Exception as error:
            self.measured["step_runs"] = judging.flag(True, _sentence(error))
            return False
        self.kind = find_task(self.task, self.subject.model, self.batch, logits)
        self.figures.task = self.kind or "unknown"
        self.causal = self.kind == "lm"
        labels = labels_of(self.batch)
        if self.kind in ("classification", "tagging", "lm") and labels is not None:
            side = side_by_side(logits, labels, self.kind, self.num_classes)
            if side is not None:
                outputs = side.logits.shape[1]
                if self.num_classes is not None and self.kind != "lm":
                    off = outputs - self.num_classes
                    self.measured["classes_match"] = Measured(
                        off, note=f"{outputs} outputs, {self.num_classes} classes" if off else ""
                    )
                self.classes = outputs
        self.matters = self._mode_matters()
        return True

    def _mode_matters(self) -> bool:
        """Does the model compute otherwise in training mode than in evaluation mode?"""
        outputs = []
        for training in (True, False):
            with self.world.undone():
                self.subject.model.train(training)
                torch.manual_seed(0)
                try:
                    outputs.append(self.subject.logits(self.batch).double())
                except Exception:
                    return False
        return not torch.allclose(outputs[0], outputs[1], rtol=1e-4, atol=1e-6, equal_nan=True)

    def _initial_loss(self) -> None:
        with self.world.undone():
            self.subject.model.eval()
            try:
                with torch.no_grad():
                    outputs = self.subject.forward(self.batch)
                    shift = self._assumed_shift()
                    loss = reference_loss(
                        self.subject, outputs, self.batch, self.kind, self.num_classes, shift
                    )
                    own = float(self.subject.loss(outputs, self.batch).detach().float().mean())
            except Exception:
                return
        self.figures.initial_loss = own if loss is None else loss
        uniform = None
        if self.kind == "binary":
            uniform = math.log(2)
        elif loss is not None and self.classes is not None:
            uniform = math.log(self.classes)
        self.figures.uniform_loss = uniform
        if uniform is None or not math.isfinite(self.figures.initial_loss):
            return
        share = self.figures.initial_loss / uniform
        self.share = share
        if "weights_loaded" in self.measured and (
            share < KNOWS or self.coverage.frozen_share > MOSTLY
        ):
            self.measured["weights_loaded"] = Measured(
                0.0, note="it knows more than a random one, or its body is frozen"
            )
        note = f"initial loss {self.figures.initial_loss:.4g}, ln K {uniform:.4g}"
        if not self.pretrained:
            self.measured["initial_loss"] = Measured(share, size_of(self.batch), note)
        elif self.kind == "lm":
            self.measured["pretrained_loss"] = Measured(share, size_of(self.batch), note)

    def _assumed_shift(self) -> int:
        """Where a model computes its own loss of language modelling, it shifts labels itself."""
        return int(self.kind == "lm" and self.subject.loss_fn is None)

    def _first_step(self) -> bool:
        try:
            with self.world.undone():
                self.subject.step(self.batch, self.optimizer)
        except Exception as error:
            self.measured["step_runs"] = judging.flag(True, _sentence(error))
            return False
        self.measured["step_runs"] = judging.flag(False)
        return True

    def _not_judged_after_error(self) -> None:
        note = Measured(None, note="the training step raises an error")
        for name in ("overfit", "rate_learns", "stale_gradients", "without_gradient", "unchanged"):
            self.measured.setdefault(name, note)

    def _steps(self) -> None:
        with self.world.undone():
            try:
                self.run_seen = run_steps(
                    self.subject, self.batches, self.optimizer, OBSERVED_STEPS
                )
            except Exception as error:
                self.measured["step_runs"] = judging.flag(True, _sentence(error))
                return
        self.figures.gradient_norms = self.run_seen.gradient_norms

    def _judge_steps(self, peak_rate: float) -> None:
        if self.run_seen is None:
            return
        inner = getattr(self.optimizer, "optimizer", self.optimizer)
        model = self.subject.model
        modules = {n: m for n, m in model.named_modules() if isinstance(m, MATRICES)}
        last = last_matrix(model)
        self.measured |= judging.judge_run(
            self.run_seen,
            self.coverage,
            self.lint,
            self.initial,
            self.matters,
            self.subject.train_step is None,
            {id(self.optimizer), id(inner)},
            peak_rate,
            next((n for n, m in modules.items() if m is last), None),
            modules,
        )

        ignored, dead = self.measured.get("input_used"), self.measured.get("dead_units")
        share = dead.value if dead is not None else None
        constant = ignored is not None and ignored.value == 1
        if constant and isinstance(share, float) and share < ALL_BUT_ALL:
            note = "one and the same input reaches the units"
            self.measured["dead_units"] = Measured(None, note=note)

    def _period(self) -> int:
        """Calls of the training step for one of the optimizer."""
        if self.run_seen is None:
            return 1
        called = sum(bool(record.optimizers) for record in self.run_seen.records)
        return round(len(self.run_seen.records) / called) if called else 1

    def _targets(self) -> None:
        if self.kind is None:
            return
        scalers = self.world.of_type(torch.amp.GradScaler)

        def scale() -> float:
            enabled = [one.get_scale() for one in scalers if one.is_enabled()]
            return float(enabled[0]) if enabled else 1.0

        try:
            self.probe = run_target_probe(
                self.subject,
                self.batch,
                self.optimizer,
                self.kind,
                self.num_classes,
                self.world.undone,
                scale,
            )
        except Exception as error:
            note = f"the training step cannot take other outputs: {_sentence(error)}"
            self.measured.setdefault("loss_kind", Measured(None, note=note))
            return
        if self.probe is not None:
            self.measured |= judging.judge_targets(
                self.probe,
                self.kind,
                self.label_smoothing,
                self._period(),
                self.subject.train_step is None,
            )
            if self.kind == "lm" and self.task is not None and self._same_form():
                self.measured["lm_labels"] = judging.flag(self.probe.ahead is None)

    def _same_form(self) -> bool:
        given, labels = input_of(self.batch), labels_of(self.batch)
        return (
            given is not None
            and labels is not None
            and given.shape == labels.shape
            and (not given.is_floating_point() and labels.shape[1] >= 4)
        )

    def _dependency(self) -> None:
        try:
            with self.world.undone():
                found = measure_dependency(self.subject, self.batch, self.causal)
        except Exception as error:
            self.measured["sample_independence"] = Measured(None, note=_sentence(error))
            return
        self.measured |= judging.judge_dependency(found, self.causal)
        labels = labels_of(self.batch)
        if labels is None or self.kind not in ("classification", "regression"):
            return
        with self.world.undone():
            outputs = output_range(self.subject, self.batch)
        targets = None
        if self.kind == "regression":
            low, high = torch.quantile(
                labels.double(), torch.tensor([0.05, 0.95]).double()
            ).tolist()
            targets = (low, high)
        if self.probe is None or self.probe.outputs == "logits":
            self.measured["output_activation"] = judging.judge_range(outputs, targets)

    def _memorise(self) -> None:
        shift = self._assumed_shift()
        if self.probe is not None and self.probe.aligned:
            shift = max(self.probe.shift, 0)
        measure = batch_loss(self.subject, self.batch, self.kind, self.num_classes, shift)
        floor = 0.0
        if self.label_smoothing and self.classes:
            eps = self.label_smoothing
            floor = -math.log(1 - eps + eps / self.classes)

        def attempt(rate: float | None, batch: Batch, steps: int) -> Memorised | None:
            with self.world.undone():
                try:
                    one = batch_loss(self.subject, batch, self.kind, self.num_classes, shift)
                    return memorise(self.subject, batch, self.optimizer, one, steps, rate, floor)
                except Exception:
                    return None

        try:
            with self.world.undone():
                measure()
        except Exception as error:
            self.measured["overfit"] = Measured(None, note=_sentence(error))
            self._judge_steps(0.0)
            return
        user = attempt(None, self.batch, self.steps)
        self._judge_steps(max(user.rates, default=0.0) if user else 0.0)
        if user is None:
            return
        others: list[Memorised] = []
        best = user
        adapted = self.coverage.frozen_share > MOSTLY
        wanted = judging.enough(adapted)
        if not user.learned >= wanted:
            for rate in rates_for(self.optimizer):
                other = attempt(rate, self.batch, self.steps)
                if other is None:
                    continue
                others.append(other)
                if other.learned >= wanted:
                    best = other
                    break
        blank = (
            attempt(best.rate, blanked(self.batch), min(best.steps, BLANK_STEPS))
            if self._has_rows()
            else None
        )
        self.measured |= judging.judge_memorised(
            user, others, blank, adapted, self.kind not in ("lm", "tagging")
        )
        floor_of_schedule = judging.schedule_floor(user.rates, OBSERVED_STEPS)
        if floor_of_schedule is not None and not self.own_optimizer:
            self.measured["schedule"] = floor_of_schedule
        self.figures.overfit, self.figures.overfit_steps = best.losses, best.steps
        self.figures.overfit_rate = best.rate
        self.figures.blanked = blank.losses if blank is not None else []

    def _has_rows(self) -> bool:
        return size_of(self.batch) >= 4

    def _data(self) -> None:
        config = getattr(self.subject.model, "config", None)
        self.audit: DataAudit = audit_data(self.batches, self.kind, self.classes, config)
        weighs = self.probe is not None and self.probe.weights_vary
        handled = self.share is not None and self.share < 0.75
        self.measured |= judging.judge_data(self.audit, self.kind, weighs, handled)
        with self.world.undone():
            repeat = workers_repeat(self.loader)
        if repeat is not None:
            self.measured["worker_seeds"] = judging.flag(repeat)
        if self.val_loader is None:
            return
        self.val_batches = read_batches(self.val_loader, MOST_BATCHES, MOST_ROWS)
        given = input_of(self.batch)
        if not self.val_batches or given is None:
            return
        if given[0].numel() >= LONG_ENOUGH:
            shared, within = overlap(collect_rows(self.batches), collect_rows(self.val_batches))
            if not self.audit.constant:
                self.measured["train_val_overlap"] = Measured(
                    max(shared - 3 * within, 0.0), len(self.val_batches)
                )

    def _evaluation(self) -> None:
        self._compare_inputs(None)
        if self.eval_fn is None or self.val_loader is None:
            return
        eval_fn, val_loader = self.eval_fn, self.val_loader
        shift = max(self.probe.shift, 0) if self.probe is not None else self._assumed_shift()
        try:
            seen = evaluate(
                self.subject,
                eval_fn,
                val_loader,
                self.kind,
                self.num_classes,
                self.world.undone,
                self.world.digest_of_model,
                shift,
            )
        except Exception as error:
            self.measured |= judging.judge_evaluation(
                Evaluation(error=_sentence(error)), self.matters, None
            )
            return
        kept: bool | None = None
        if self.matters and self.subject.train_step is not None:
            with self.world.undone():
                try:
                    kept = not mode_after_evaluation(
                        self.subject,
                        self.batch,
                        self.optimizer,
                        lambda: eval_fn(self.subject.model, val_loader),
                    )
                except Exception:
                    kept = None
        self.measured |= judging.judge_evaluation(seen, self.matters, kept)
        self._compare_inputs(seen)

    def _compare_inputs(self, seen: Evaluation | None) -> None:
        """Hold what the model was given in training against what it was given in evaluation."""
        if seen is not None and self.run_seen is not None:
            train = [
                f.given for r in self.run_seen.records for f in r.forwards if f.given is not None
            ]
            held_out = seen.given
        else:
            train = [x for b in self.batches if (x := input_of(b)) is not None]
            held_out = [x for b in self.val_batches if (x := input_of(b)) is not None]
        one, other = scale_of_inputs(train), scale_of_inputs(held_out)
        if one is None or other is None:
            return
        apart, ratio = scale_difference(one, other)
        known = self.measured.get("preprocessing")
        if known is None or (isinstance(known.value, float) and apart > known.value):
            self.measured["preprocessing"] = Measured(
                apart, note=f"means {one.mean:.3g} and {other.mean:.3g}"
            )
        known = self.measured.get("preprocessing_spread")
        if known is None or (isinstance(known.value, float) and ratio > known.value):
            self.measured["preprocessing_spread"] = Measured(
                ratio, note=f"spreads {one.std:.3g} and {other.std:.3g}"
            )

    def _labels(self) -> None:
        if self.audit.non_finite or self.audit.constant or self.audit.out_of_range:
            return
        train = make_table(self.batches, self.kind)
        held_out = make_table(self.val_batches, self.kind) if self.val_batches else None
        if train is None:
            return
        n = len(train.features)
        if n < FEW_LABELS or len(torch.unique(train.labels)) < 2:
            self.measured["labels_informative"] = Measured(
                None, note=f"{n} labels are too few to tell"
            )
            return
        told = information(train)
        if told.sigmas < LIMITS["sanity.min_label_sigmas"]:
            told = max(told, self._told_by_model(), key=lambda one: one.sigmas)
        self.measured["labels_informative"] = Measured(
            told.sigmas, n, f"score {told.score:.3g}, by guessing {told.chance:.3g}"
        )
        self._compare_labels(train, held_out, told)

    def _told_by_model(self) -> Information:
        with self.world.undone():
            try:
                return learned_information(self.subject, self.batches, self.kind, self.steps)
            except Exception:
                return Information(0.0, 0.0, -math.inf, 0)

    def _compare_labels(self, train: Table, held_out: Table | None, told: Information) -> None:
        if not train.classes:
            return
        core, noise = disagreeing_share(train)
        if held_out is None or held_out.features.shape[1:] != train.features.shape[1:]:
            if core >= 0.8:
                self.measured["label_noise"] = Measured(noise, len(train.labels))
            return
        n, m = len(train.features), len(held_out.features)
        if told.sigmas * (m / n) ** 0.5 >= SURELY:
            self.measured["val_labels_consistent"] = Measured(transfer(train, held_out).sigmas, m)
        if min(n, m) >= FEW_LABELS / 2 and core >= 0.3:
            _, in_val = disagreeing_share(held_out)
            self.measured["label_noise"] = Measured(max(noise - in_val, 0.0), n)


def _sentence(error: Exception) -> str:
    """The first line of an error, with its type."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else ''}".rstrip(": ")
