"""The gradient and step points: clipping, ESS scaling, calibration, refusals, state."""

from __future__ import annotations

import statistics
from typing import Any

import numpy as np
import pytest
import torch

from support.views import result, setting, step_view
from trimtab.control.chain import Chain
from trimtab.control.learner_chain import LearnerChain
from trimtab.control.protocol import GradientMethod, Keep, Notes, Refuse, Skip, StepMethod, StepResult, StepView
from trimtab.control.registry import ChainMember, MethodEntry, build
from trimtab.learner.gradient import ActorGradient
from trimtab.methods.ess import ESSStep
from trimtab.records import TrimtabError


def ess(**options: Any) -> ESSStep:
    method = build("ess", options)
    assert isinstance(method, ESSStep)
    return method


def share(log_ratio: list[float]) -> float:
    w = np.exp(np.array(log_ratio))
    return float(w.sum() ** 2 / (w**2).sum() / len(w))


SPREAD = [0.0, 0.5, -1.0, 2.0, 1.0, -0.3]


# ------------------------------------------------------------------------------------------------------------------------- ess


def test_the_multiplier_is_the_root_of_the_effective_share() -> None:
    notes = Notes()
    assert ess().step(step_view(SPREAD, recorder=notes)) == pytest.approx(share(SPREAD) ** 0.5)
    assert ess(rule="linear").step(step_view(SPREAD)) == pytest.approx(share(SPREAD))
    assert ess(reference=0.9).step(step_view(SPREAD)) == pytest.approx((share(SPREAD) / 0.9) ** 0.5)
    (said,) = notes.decisions
    assert (said.method, said.point, said.what, said.amount) == ("ess", "step", "scaled", pytest.approx(share(SPREAD) ** 0.5))
    assert f"{share(SPREAD):.3g}" in said.why


def test_equal_weights_of_any_size_are_a_full_step() -> None:
    for level in (0.0, -700.0, 700.0):
        notes = Notes()
        assert ess().step(step_view([level] * 6, recorder=notes)) == 1.0
        assert notes.decisions == []


def test_above_the_reference_is_a_full_step_and_the_floor_holds() -> None:
    assert ess(reference=0.1).step(step_view(SPREAD)) == 1.0
    one_owns_all = [0.0] * 63 + [50.0]
    assert ess().step(step_view(one_owns_all)) == pytest.approx(1 / 8)
    assert ess(floor=0.2).step(step_view(one_owns_all)) == 0.2


def test_the_dead_band_lets_noise_of_the_reference_pass_and_scales_in_full_below_it() -> None:
    reference = share(SPREAD) / 0.85
    for band, expected in ((0.0, 0.85**0.5), (0.1, 0.85**0.5), (0.2, 1.0)):
        notes = Notes()
        got = ess(reference=min(reference, 1.0), dead_band=band).step(step_view(SPREAD, recorder=notes))
        assert got == pytest.approx(expected)
        assert notes.metrics["ess/multiplier"] == (pytest.approx(expected), 1.0)
        assert bool(notes.decisions) is (expected < 1)


@pytest.mark.parametrize(("weights", "root"), [((1, 1, 1, 5), 0.756), ((4, 1, 1), 0.816), ((1, 0.5, 2, 20), 0.584)])
def test_worked_numbers(weights: tuple[float, ...], root: float) -> None:
    assert ess().step(step_view([float(np.log(w)) for w in weights])) == pytest.approx(root, abs=5e-4)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_broken_ratio_is_never_a_full_step(bad: float) -> None:
    assert ess().step(step_view([0.0, bad])) == Refuse("non-finite importance ratio")
    assert ess(floor=0.05, dead_band=0.9).step(step_view([0.0, bad])) == Refuse("non-finite importance ratio")


def test_calibration_takes_the_median_of_its_batches() -> None:
    m = ess(reference="calibrate", calibration=3)
    assert m.calibration == 3
    shares = []
    for scale in (1.0, 0.2, 0.6):
        batch = [scale * s for s in SPREAD]
        assert m.step(step_view(batch, lag_zero=True)) == 1.0
        m.after(result(applied=True))
        shares.append(share(batch))
    expected = (share(SPREAD) / statistics.median(shares)) ** 0.5
    notes = Notes()
    assert m.step(step_view(SPREAD, recorder=notes)) == pytest.approx(expected)
    assert notes.metrics == {
        "ess/reference": (pytest.approx(statistics.median(shares)), 1.0),
        "ess/multiplier": (pytest.approx(expected), 1.0),
    }
    assert ess().calibration == 0


def test_a_skipped_batch_teaches_the_reference_nothing_and_does_not_hold_it_up() -> None:
    m = ess(reference="calibrate", calibration=3)
    m.after(result(applied=False))  # no signal: the step point was not asked
    for scale, applied in ((1.0, True), (0.2, False)):
        m.step(step_view([scale * s for s in SPREAD], lag_zero=True))
        m.after(result(applied))
    assert m.state_dict()["seen"] == [pytest.approx(share(SPREAD))]
    # The calibration batches are over: what was seen has to do, and steps are scaled again.
    half = [2 * s for s in SPREAD]
    assert m.step(step_view(half)) == pytest.approx((share(half) / share(SPREAD)) ** 0.5)


def test_calibration_that_saw_nothing_ends_in_the_strictest_reference() -> None:
    m = ess(reference="calibrate", calibration=2)
    for _ in range(2):
        m.after(result(applied=False))
    assert m.step(step_view(SPREAD)) == pytest.approx(share(SPREAD) ** 0.5)


def test_the_second_update_of_a_calibration_batch_is_not_on_policy() -> None:
    m = ess(reference="calibrate", calibration=2)
    for mini_step in (0, 1):
        assert m.step(step_view([(1 + mini_step) * s for s in SPREAD], lag_zero=True, mini_step=mini_step)) == 1.0
        m.after(result(applied=True))
    assert m.state_dict()["seen"] == [pytest.approx(share(SPREAD))]


def test_calibration_goes_on_where_the_checkpoint_left_it() -> None:
    a, b = ess(reference="calibrate", calibration=3), ess(reference="calibrate", calibration=3)
    for i in range(3):
        if i == 2:
            b.load_state_dict(a.state_dict())
        for m in (a, b) if i == 2 else (a,):
            assert m.step(step_view([(1 + i) * s for s in SPREAD], lag_zero=True)) == 1.0
            m.after(result(applied=True))
    assert b.state_dict() == a.state_dict()
    far = step_view([9 * s for s in SPREAD])
    assert b.step(far) == a.step(far) < 1.0


# ---------------------------------------------------------------------------------------------------------------- gradient


def gradient(values: list[float]) -> ActorGradient:
    p = torch.nn.Parameter(torch.zeros(len(values)))
    p.grad = torch.tensor(values)
    return ActorGradient([p], 0, 0, Notes())


def test_the_norm_is_clipped_and_said() -> None:
    g = gradient([3.0, 4.0])
    assert build("norm_clip", {"max_norm": 2.0}).gradient(g) == Keep()  # type: ignore[attr-defined]
    assert torch.cat([p.flatten() for p in g.parts]).tolist() == pytest.approx([1.2, 1.6])
    assert (g.raw_norm, g.norm()) == (pytest.approx(5.0), pytest.approx(2.0))
    assert isinstance(g.recorder, Notes)
    (said,) = g.recorder.decisions
    assert (said.what, said.amount, said.why) == ("clipped", pytest.approx(0.4), "norm 5 > 2")


def test_a_small_gradient_is_left_as_it_is() -> None:
    g = gradient([0.3, 0.4])
    build("norm_clip", {}).gradient(g)  # type: ignore[attr-defined]
    assert torch.cat([p.flatten() for p in g.parts]).tolist() == pytest.approx([0.3, 0.4])


# --------------------------------------------------------------------------------------------------------------------- chain


class Says(StepMethod):
    """Answers what it is told to, and remembers that it was asked."""

    def __init__(self, name: str, verdict: float | Refuse) -> None:
        self.name, self.verdict, self.asked, self.told = name, verdict, 0, 0  # type: ignore[misc]

    def step(self, s: StepView) -> float | Refuse:
        self.asked += 1
        return self.verdict

    def after(self, result: StepResult) -> None:
        self.told += 1


class Stops(GradientMethod):
    name = "stops"

    def __init__(self) -> None:
        """No options."""

    def gradient(self, g: ActorGradient) -> Skip:
        return Skip("too alike")


def with_steps(*verdicts: float | Refuse) -> tuple[LearnerChain, list[Says]]:
    c = Chain.resolve([MethodEntry(name="seq_tis")], setting()).learner()
    says = [Says(f"m{i}", v) for i, v in enumerate(verdicts)]
    c.members.extend(ChainMember(m, "") for m in says)
    return c, says


def test_multipliers_multiply() -> None:
    assert with_steps(0.5, 0.25, 1.0)[0].step(step_view([0.0])) == 0.125
    assert with_steps()[0].step(step_view([0.0])) == 1.0


def test_the_first_refusal_wins_but_everybody_is_asked() -> None:
    c, says = with_steps(0.5, Refuse("one"), Refuse("two"), 0.5)
    notes = Notes()
    assert c.step(step_view([0.0], recorder=notes)) == Refuse("m1: one")
    assert [m.asked for m in says] == [1, 1, 1, 1]
    assert [(d.method, d.point, d.what, d.why) for d in notes.decisions] == [
        ("m1", "step", "refused", "one"),
        ("m2", "step", "refused", "two"),
    ]


@pytest.mark.parametrize("broken", [float("nan"), 0.0, -0.5, 1.5, float("inf")])
def test_a_multiplier_outside_its_range_is_a_refusal(broken: float) -> None:
    verdict = with_steps(0.5, broken)[0].step(step_view([0.0]))
    assert verdict == Refuse(f"m1: multiplier {broken} is outside (0, 1]")


def test_everybody_hears_what_happened() -> None:
    c, says = with_steps(0.5, Refuse("x"))
    c.after(result(applied=False))
    assert [m.told for m in says] == [1, 1]


def test_a_skip_names_who_skipped() -> None:
    c = Chain.resolve([MethodEntry(name="seq_tis")], setting()).learner()
    c.members.insert(0, ChainMember(Stops(), ""))
    g = gradient([3.0, 4.0])
    assert c.gradient(g) == Skip("stops: too alike")  # type: ignore[arg-type]
    assert isinstance(g.recorder, Notes)
    assert [(d.method, d.what, d.why) for d in g.recorder.decisions] == [("stops", "skipped", "too alike")]


# --------------------------------------------------------------------------------------------------------------------- state


def test_the_state_of_a_chain_is_that_of_its_methods() -> None:
    entries = [MethodEntry(name="vcpo"), MethodEntry.model_validate({"name": "ess", "reference": "calibrate", "calibration": 2})]
    a, b = (Chain.resolve(entries, setting()).learner() for _ in range(2))
    a.step(step_view(SPREAD, lag_zero=True))
    a.after(result(applied=True))
    b.load_state_dict(a.state_dict())  # type: ignore[arg-type]
    assert b.state_dict() == a.state_dict()
    assert a.state_dict()["ess"] == {"reference": None, "seen": [pytest.approx(share(SPREAD))]}


def test_state_of_other_methods_is_refused_by_name() -> None:
    a, b = (Chain.resolve([MethodEntry(name=n)], setting()).learner() for n in ("seq_tis", "vcpo"))
    with pytest.raises(TrimtabError, match=r"methods = \['ess', 'linear', .*\]: the checkpoint was made with \['grpo', 'linear', "):
        b.load_state_dict(a.state_dict())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="method linear keeps no state, the checkpoint has"):
        build("linear", {}).load_state_dict({"x": 1})
