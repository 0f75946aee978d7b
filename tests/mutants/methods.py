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
        "learner/accumulate.py",
        "chain.survey(Point.WEIGH, whole_view(self.micros, tools.ranks)[0])",
        "chain.survey(Point.WEIGH, whole_view(self.micros[:1], tools.ranks)[0])",
        "tests/unit/methods/test_m2po_mask.py::test_the_mask_does_not_depend_on_the_split",
    ),
    Mutant(
        3,
        "a clip range of one micro-batch",
        "learner/accumulate.py",
        "view, places = whole_view(self.micros, self.tools.ranks)\n        parts = []",
        "view, places = whole_view(self.micros[:1], self.tools.ranks)\n        parts = []",
        f"{UPDATES}::test_what_is_found_over_the_update_does_not_depend_on_the_split",
    ),
    Mutant(
        3,
        "ranks take the mean of their gradients",
        "learner/ranks.py",
        "    ranks.sum_(gradients)\n",
        "    ranks.sum_(gradients)\n    for g in gradients:\n        g /= ranks.size\n",
        "tests/unit/learner/test_ranks.py::test_gradients_of_two_ranks_add_up_to_that_of_one",
    ),
    Mutant(
        0,
        "credit of the batch is assigned anew at every update",
        "learner/accumulate.py",
        "credited = tools.several and once_a_batch(tools)",
        "credited = False",
        "tests/unit/learner/test_credit_matrix.py::test_several_updates_share_the_batch_s_whitening",
    ),
    Mutant(
        0,
        "the proximal policy follows the current one",
        "learner/tools.py",
        "proximal=not self.several and self.needs(Need.PROXIMAL)",
        "proximal=self.needs(Need.PROXIMAL)",
        f"{UPDATES}::test_the_behavior_weight_is_that_of_the_batch_s_start",
    ),
    Mutant(
        0,
        "an epoch's shaped reward is taken off again at the next",
        "learner/credit.py",
        """        shape(tools, view)
        nothing =""",
        """        plain_R, taken_R = view.reward_R, columns.take("taken_R", places)
        shape(tools, view)
        view.reward_R = view.reward_R if taken_R is None else view.reward_R + taken_R
        columns.put("taken_R", view.reward_R - plain_R, [1] * len(places), places)
        nothing =""",
        f"{UPDATES}::test_a_shaped_reward_counts_once_whatever_the_epoch",
    ),
    Mutant(
        0,
        "the critic learns whitened advantages",
        "learner/update.py",
        'return_N, old_N = accumulation.columns.take("return_N", m.places), m.view.values_N',
        'return_N, old_N = accumulation.columns.take("advantage_N", m.places), m.view.values_N',
        "tests/unit/learner/test_critic.py::test_values_once_a_batch_then_the_critics_updates_after_each_of_the_actors",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ VCPO
    Mutant(
        3,
        "the baseline of the batch is one a micro-batch",
        "methods/opob.py",
        'whole_update=options.scope == "batch"',
        "whole_update=False",
        "tests/unit/learner/test_credit_matrix.py::test_one_baseline_over_split_micro_batches",
    ),
    Mutant(
        0,
        "leave-one-out leaves nobody out",
        "functional/baselines.py",
        "among_R = (weighted_R - w_R * r) / torch.where(is_top_R, torch.ones_like(w_R), total_R - w_R)",
        "among_R = weighted_R / total_R",
        "tests/unit/functional/test_baselines.py::test_leave_one_out_is_the_mean_of_the_others",
    ),
    Mutant(
        0,
        "the dead band lies above the reference",
        "functional/ess.py",
        "if ratio >= (1.0 - dead_band) * reference:",
        "if ratio >= (1.0 + dead_band) * reference:",
        "tests/unit/methods/test_step.py::test_the_dead_band_lets_noise_of_the_reference_pass_and_scales_in_full_below_it",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ COPC
    Mutant(
        3,
        "masked tokens leave COPC's denominator",
        "methods/copc.py",
        "weight_N=None if self.masks_only else ratio_N, keep_N=keep_N)",
        "weight_N=None if self.masks_only else ratio_N / keep_N.double().mean(), keep_N=keep_N)",
        f"{COPC}::test_masked_tokens_stay_in_the_denominator",
    ),
    Mutant(
        0,
        "COPC whitens over the kept tokens",
        "methods/copc.py",
        "        advantage_N = F.traces.whiten(traces.advantage_N) if o.whiten else traces.advantage_N\n",
        """        a_N, kept_N = traces.advantage_N, slice(None) if w is None or w.keep_N is None else w.keep_N
        advantage_N = (a_N - a_N[kept_N].mean()) / (a_N[kept_N].var() + 1e-8).sqrt() if o.whiten else a_N
""",
        f"{COPC}::test_the_mask_does_not_enter_the_whitening",
    ),
    Mutant(
        0,
        "COPC's residuals are weighted by the current policy",
        "methods/copc.py",
        "log_ratio_N = self.options, view.proximal - view.behavior_N",
        "log_ratio_N = self.options, view.log_ratio_N",
        f"{COPC}::test_credit_reads_the_batchs_ratio_and_the_mask_the_updates",
    ),
    Mutant(
        0,
        "kappa weighs the own residual under exclude",
        "functional/traces.py",
        'advantage_KN = G_KN if own == "include" else delta_N + decay_KN[0]',
        'advantage_KN = G_KN if own == "include" else kappa_N * delta_N + decay_KN[0]',
        "tests/unit/functional/test_traces.py::test_copc_to_the_digits",
    ),
    # ------------------------------------------------------------------------------------------------------------------------- GAC
    Mutant(
        4,
        "GAC remembers a gradient that is not finite",
        "methods/gac.py",
        "if not TINY < g.norm() < math.inf:",
        "if g.norm() <= TINY:",
        f"{GAC}::test_a_gradient_without_direction_or_not_finite_is_never_remembered",
    ),
    Mutant(
        5,
        "GAC's skip advances the schedule",
        "learner/update.py",
        """            if isinstance(verdict, Skip):
                raise""",
        """            if isinstance(verdict, Skip):
                self.optimizer.applied += verdict.reason.startswith("gac")
                raise""",
        f"{GAC}::test_a_skip_moves_nothing",
    ),
    Mutant(
        8,
        "GAC skips once more than it may",
        "methods/gac.py",
        "self._skips < o.max_consecutive_skips:",
        "self._skips <= o.max_consecutive_skips:",
        f"{GAC}::test_the_third_skip_in_a_row_becomes_a_full_projection",
    ),
    Mutant(
        5,
        "a refused step becomes GAC's applied reference",
        "methods/gac.py",
        """            self._applied += 1
            if pending is not None:
                self._reference, self._batch = pending
""",
        """            self._applied += 1
        if pending is not None:
            self._reference, self._batch = pending
""",
        f"{GAC}::test_the_applied_reference_is_what_was_stepped",
    ),
    # ----------------------------------------------------------------------------------------------------------------- median_clip
    Mutant(
        0,
        "median_clip learns from what it clipped",
        "methods/median_clip.py",
        "                norm = limit\n",
        "",
        f"{CLIPS}::test_a_burst_cannot_raise_its_own_limit_before_half_the_window_is_clipped_values",
    ),
    Mutant(
        0,
        "a norm of zero counts in the median",
        "control/running.py",
        "if applied and self._proposed > 0.0:",
        "if applied and self._proposed >= 0.0:",
        f"{CLIPS}::test_skipped_updates_and_zero_norms_teach_nothing",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ PACE
    Mutant(
        0,
        "PACE commits when it is polled",
        "methods/pace.py",
        "        return selection\n\n    def _omega",
        "        self._budget = budget\n        return selection\n\n    def _omega",
        f"{PACE}::test_select_may_be_polled_and_only_a_formed_batch_is_committed",
    ),
    Mutant(
        8,
        "PACE rejects what the batch needs",
        "control/rejection.py",
        "min(whole, waiting - want))",
        "whole)",
        f"{PACE}::test_the_budget_never_starves_the_learner",
    ),
    Mutant(
        0,
        "equal forgetting takes the highest rank",
        "methods/pace.py",
        "(first + 0.5 * count) / len(x)",
        "(first + count) / len(x)",
        f"{PACE}::test_golden_percentiles_weights_and_effective_staleness",
    ),
    Mutant(
        0,
        "forgetting is that of the first interruption",
        "engines/torch_engine.py",
        "        if made:\n            where =",
        "        if made and running.forgetting is None:\n            where =",
        "tests/unit/engines/test_forgetting.py::test_the_engine_scores_prefixes_under_the_version_that_finishes_them",
    ),
    Mutant(
        2,
        "a selector's batch ignores what is owed",
        "pool/choose.py",
        "    debts = unpaid(debts, charge[named])\n",
        "    debts = []\n",
        f"{FORM}::test_what_a_selector_strands_expires",
    ),
    Mutant(
        2,
        "groups that are let go pay no debt",
        "pool/choose.py",
        "    debts = unpaid(debts, charge[named])\n",
        "    debts = unpaid(debts, charge[np.isin(view.ids, selection.take)])\n",
        f"{FORM}::test_groups_that_are_let_go_pay_what_is_owed",
    ),
    # ----------------------------------------------------------------------------------------------------------------- competitors
    Mutant(
        10,
        "dynamic sampling sees the shaped reward",
        "records.py",
        "return np.array([r.score for r in self.rollouts], dtype=np.float64)",
        "return np.array([r.score if r.reward is None else r.reward for r in self.rollouts], dtype=np.float64)",
        "tests/unit/pool/test_measure.py::test_dynamic_sampling_decides_on_the_score_not_on_the_shaped_reward",
    ),
    Mutant(
        0,
        "M2PO's range has no floor",
        "methods/m2po.py",
        "return max(1.0 - found.low, self.options.floor_low), max(found.high - 1.0, self.options.floor_high)",
        "return 1.0 - found.low, found.high - 1.0",
        "tests/unit/methods/test_objectives.py::test_the_derivative_by_hand",
    ),
)
