"""Named mutants of the methods, and of what the learner and the pool do for them; see :mod:`.table`."""

from __future__ import annotations

from .mutant import Mutant

UPDATES = "tests/unit/learner/test_several_updates.py"
COPC = "tests/unit/methods/test_copc.py"
GAC = "tests/unit/methods/test_gac.py"
PACE = "tests/unit/methods/test_pace.py"
CLIPS = "tests/unit/methods/test_running_clips.py"
FORM = "tests/unit/pool/test_form.py"

METHODS = (
    # ------------------------------------------------------------------------------------------- what the learner does for methods
    Mutant(
        3,
        "a threshold of one micro-batch",
        "Accumulation.run",
        "whole_view(self.micros, tools.ranks)",
        "whole_view(self.micros[:1], tools.ranks)",
        "tests/unit/methods/test_m2po_mask.py::test_the_mask_does_not_depend_on_the_split",
    ),
    Mutant(
        3,
        "a clip range of one micro-batch",
        "Accumulation._survey_loss",
        "whole_view(self.micros, self.tools.ranks)",
        "whole_view(self.micros[:1], self.tools.ranks)",
        f"{UPDATES}::test_what_is_found_over_the_update_does_not_depend_on_the_split",
    ),
    Mutant(
        3,
        "ranks take the mean of their gradients",
        "complete",
        "ranks.sum_(gradients)",
        """\
ranks.sum_(gradients)
for g in gradients:
    g /= ranks.size
""",
        "tests/unit/learner/test_ranks.py::test_gradients_of_two_ranks_add_up_to_that_of_one",
    ),
    Mutant(
        0,
        "credit of the batch is assigned anew at every update",
        "Accumulation.run",
        "tools.several and once_a_batch(tools)",
        "False",
        "tests/unit/learner/test_credit_matrix.py::test_several_updates_share_the_batch_s_whitening",
    ),
    Mutant(
        0,
        "the proximal policy follows the current one",
        "Tools.observe",
        "not self.several and self.needs(Need.PROXIMAL)",
        "self.needs(Need.PROXIMAL)",
        f"{UPDATES}::test_the_behavior_weight_is_that_of_the_batch_s_start",
    ),
    Mutant(
        0,
        "an epoch's shaped reward is taken off again at the next",
        "assign",
        "shape(tools, view)",
        """\
plain_R, taken_R = (view.reward_R, columns.take('taken_R', places))
shape(tools, view)
view.reward_R = view.reward_R if taken_R is None else view.reward_R + taken_R
columns.put('taken_R', view.reward_R - plain_R, [1] * len(places), places)
""",
        f"{UPDATES}::test_a_shaped_reward_counts_once_whatever_the_epoch",
    ),
    Mutant(
        0,
        "the critic learns whitened advantages",
        "Learner._fit",
        "accumulation.columns.take('return_N', m.places)",
        "accumulation.columns.take('advantage_N', m.places)",
        "tests/unit/learner/test_critic.py::test_values_once_a_batch_then_the_critics_updates_after_each_of_the_actors",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ VCPO
    Mutant(
        3,
        "the baseline of the batch is one a micro-batch",
        "OPOB.__init__",
        "options.scope == 'batch'",
        "False",
        "tests/unit/learner/test_credit_matrix.py::test_one_baseline_over_split_micro_batches",
    ),
    Mutant(
        0,
        "leave-one-out leaves nobody out",
        "leave_one_out",
        "(weighted_R - w_R * r) / torch.where(is_top_R, torch.ones_like(w_R), total_R - w_R)",
        "weighted_R / total_R",
        "tests/unit/functional/test_baselines.py::test_leave_one_out_is_the_mean_of_the_others",
    ),
    Mutant(
        0,
        "the dead band lies above the reference",
        "ess_multiplier",
        "1.0 - dead_band",
        "1.0 + dead_band",
        "tests/unit/methods/test_step.py::test_the_dead_band_lets_noise_of_the_reference_pass_and_scales_in_full_below_it",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ COPC
    Mutant(
        3,
        "masked tokens leave COPC's denominator",
        "CopcMask.weigh",
        "None if self.masks_only else ratio_N",
        "None if self.masks_only else ratio_N / keep_N.double().mean()",
        f"{COPC}::test_masked_tokens_stay_in_the_denominator",
    ),
    Mutant(
        0,
        "COPC whitens over the kept tokens",
        "CopcCredit.credit",
        "advantage_N = F.traces.whiten(traces.advantage_N) if o.whiten else traces.advantage_N",
        """\
a_N, kept_N = (traces.advantage_N, slice(None) if w is None or w.keep_N is None else w.keep_N)
advantage_N = (a_N - a_N[kept_N].mean()) / (a_N[kept_N].var() + 1e-08).sqrt() if o.whiten else a_N
""",
        f"{COPC}::test_the_mask_does_not_enter_the_whitening",
    ),
    Mutant(
        0,
        "COPC's residuals are weighted by the current policy",
        "CopcCredit.credit",
        "view.proximal - view.behavior_N",
        "view.log_ratio_N",
        f"{COPC}::test_credit_reads_the_batchs_ratio_and_the_mask_the_updates",
    ),
    Mutant(
        0,
        "kappa weighs the own residual under exclude",
        "copc",
        "delta_N + decay_KN[0] * _next(G_KN, o.last_N, G_KN.new_zeros(()))",
        "kappa_N * delta_N + decay_KN[0] * _next(G_KN, o.last_N, G_KN.new_zeros(()))",
        "tests/unit/functional/test_traces.py::test_copc_to_the_digits",
    ),
    # ------------------------------------------------------------------------------------------------------------------------- GAC
    Mutant(
        4,
        "GAC remembers a gradient that is not finite",
        "GAC.gradient",
        "not TINY < g.norm() < math.inf",
        "g.norm() <= TINY",
        f"{GAC}::test_a_gradient_without_direction_or_not_finite_is_never_remembered",
    ),
    Mutant(
        5,
        "GAC's skip advances the schedule",
        "Learner._step",
        "raise Refused(verdict.reason, broken=False)",
        """\
self.optimizer.applied += verdict.reason.startswith('gac')
raise Refused(verdict.reason, broken=False)
""",
        f"{GAC}::test_a_skip_moves_nothing",
    ),
    Mutant(
        8,
        "GAC skips once more than it may",
        "GAC._control",
        "self._skips < o.max_consecutive_skips",
        "self._skips <= o.max_consecutive_skips",
        f"{GAC}::test_the_third_skip_in_a_row_becomes_a_full_projection",
    ),
    Mutant(
        5,
        "a refused step becomes GAC's applied reference",
        "GAC.after",
        """\
if result.applied:
    self._skips = 0
    self._applied += 1
    if pending is not None:
        self._reference, self._batch = pending
""",
        """\
if result.applied:
    self._skips = 0
    self._applied += 1
if pending is not None:
    self._reference, self._batch = pending
""",
        f"{GAC}::test_the_applied_reference_is_what_was_stepped",
    ),
    # ----------------------------------------------------------------------------------------------------------------- median_clip
    Mutant(
        0,
        "median_clip learns from what it clipped",
        "MedianClip.gradient",
        "norm = limit",
        "",
        f"{CLIPS}::test_a_burst_cannot_raise_its_own_limit_before_half_the_window_is_clipped_values",
    ),
    Mutant(
        0,
        "a norm of zero counts in the median",
        "RunningMedian.settle",
        "self._proposed > 0.0",
        "self._proposed >= 0.0",
        f"{CLIPS}::test_skipped_updates_and_zero_norms_teach_nothing",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ PACE
    Mutant(
        0,
        "PACE commits when it is polled",
        "Pace.select",
        "self._pending = (selection, Pending(pool, budget, effective, omega_M, score_M, take, reject))",
        """\
self._pending = (selection, Pending(pool, budget, effective, omega_M, score_M, take, reject))
self._budget = budget
""",
        f"{PACE}::test_select_may_be_polled_and_only_a_formed_batch_is_committed",
    ),
    Mutant(
        8,
        "PACE rejects what the batch needs",
        "RejectionBudget.next",
        "min(whole, waiting - want)",
        "whole",
        f"{PACE}::test_the_budget_never_starves_the_learner",
    ),
    Mutant(
        0,
        "equal forgetting takes the highest rank",
        "percentile",
        "first + 0.5 * count",
        "first + count",
        f"{PACE}::test_golden_percentiles_weights_and_effective_staleness",
    ),
    Mutant(
        0,
        "forgetting is that of the first interruption",
        "TorchEngine._score_again",
        "forgetting(self._rows.logp[row, :made], now, phi)",
        "forgetting(self._rows.logp[row, :made], now, phi) if running.forgetting is None else running.forgetting",
        "tests/unit/engines/test_forgetting.py::test_the_engine_scores_prefixes_under_the_version_that_finishes_them",
    ),
    Mutant(
        2,
        "a selector's batch ignores what is owed",
        "selected",
        "unpaid(debts, charge[named])",
        "[]",
        f"{FORM}::test_what_a_selector_strands_expires",
    ),
    Mutant(
        2,
        "groups that are let go pay no debt",
        "selected",
        "charge[named]",
        "charge[np.isin(view.ids, selection.take)]",
        f"{FORM}::test_groups_that_are_let_go_pay_what_is_owed",
    ),
    # ----------------------------------------------------------------------------------------------------------------- competitors
    Mutant(
        10,
        "dynamic sampling sees the shaped reward",
        "Group.scores",
        "[r.score for r in self.rollouts]",
        "[r.score if r.reward is None else r.reward for r in self.rollouts]",
        "tests/unit/pool/test_measure.py::test_dynamic_sampling_decides_on_the_score_not_on_the_shaped_reward",
    ),
    Mutant(
        0,
        "M2PO's range has no floor",
        "M2PO._widths",
        "(max(1.0 - found.low, self.options.floor_low), max(found.high - 1.0, self.options.floor_high))",
        "(1.0 - found.low, found.high - 1.0)",
        "tests/unit/methods/test_objectives.py::test_the_derivative_by_hand",
    ),
)
