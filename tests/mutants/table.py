"""Named mutants of the code: what each breaks, of which invariant (docs/architecture.md), and the test that must notice.

Those of the methods are in :mod:`.methods`.
"""

from __future__ import annotations

from .methods import METHODS
from .mutant import Mutant

LEARNER = "tests/unit/learner"

MUTANTS = (
    # ------------------------------------------------------------------------------------------------------------------------ 1
    Mutant(
        1,
        "lag off by one in lockstep",
        "pool_options",
        "PoolOptions(max_lag=options.lag, depth=depth, order='fifo', straggler_deadline_s=straggler_deadline_s)",
        "PoolOptions(max_lag=options.lag + 1, depth=depth + 1, order='fifo', straggler_deadline_s=straggler_deadline_s)",
        "tests/e2e/test_lag_zero.py::test_lockstep_with_lag_zero_is_the_synchronous_loop_to_the_bit",
    ),
    Mutant(
        1,
        "only every other version is published",
        "Lockstep._publish_newest",
        "not self._snapshots.kept",
        "not self._snapshots.kept and self._session.version.number % 2",
        "tests/e2e/test_lag_zero.py::test_lockstep_with_lag_zero_is_the_synchronous_loop_to_the_bit",
    ),
    Mutant(
        1,
        "evaluation draws the pool's randomness",
        "evaluate:evaluate",
        "keyed.EVAL",
        "keyed.ROLLOUT",
        "tests/unit/rollout/test_evaluate.py::test_it_repeats_and_training_randomness_is_not_used",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ 2
    Mutant(
        2,
        "admission off by one",
        "Bounds._tightest",
        "v + lag - turn + 1",
        "v + lag - turn + 2",
        "tests/unit/pool/test_admit.py::test_lag_zero_admits_exactly_one_batch_a_version",
    ),
    Mutant(
        2,
        "admission looks at the held version only",
        "Bounds._tightest",
        "[(held, profile.at_most(held)), *((v, n) for v, n in profile if v > held)]",
        "[(held, profile.at_most(held))]",
        "tests/unit/pool/test_admission.py::test_room_and_debts_are_the_two_rules",
    ),
    Mutant(
        2,
        "admission counts totals, not what is outstanding",
        "Gate.block",
        "ledger.outstanding >= bounds.most",
        "ledger.admitted - ledger.count(SlotState.TRAINED) >= bounds.most",
        "tests/unit/pool/test_admit.py::test_ninety_percent_zero_variance_does_not_stall",
    ),
    Mutant(
        2,
        "batches form without the inequality",
        "Bounds.owed",
        "[(v, n) for v, n in debts if n > 0]",
        "[]",
        "tests/unit/pool/test_form.py::test_ready_takes_arrivals_until_a_straggler_must_come",
    ),
    Mutant(
        2,
        "the batch in training is forgotten",
        "Pool.turn",
        "self.version + bool(self._book.training)",
        "self.version",
        "tests/unit/pool/test_form.py::test_the_worked_example_of_the_docs",
    ),
    Mutant(
        2,
        "a dropped group keeps its place",
        "Book.drop",
        "self._leave(entry)",
        "",
        "tests/unit/pool/test_admit.py::test_ninety_percent_zero_variance_does_not_stall",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ 3
    Mutant(
        3,
        "a denominator per micro-batch",
        "make_view",
        "F.reduce.token_scale(reduction.value, length_R, packed.rollout_N, rollouts=totals.rollouts, "
        "tokens=totals.tokens, max_length=totals.max_length)",
        "F.reduce.token_scale(reduction.value, length_R, packed.rollout_N, rollouts=len(rollouts), "
        "tokens=int(length_R.sum()), max_length=totals.max_length)",
        f"{LEARNER}/test_splits.py::test_any_split_into_micro_batches_gives_the_same_gradient",
    ),
    Mutant(
        3,
        "a mask changes the denominator",
        "Accumulation._loss",
        "self.chain.objective(view, w, advantage_N)",
        "self.chain.objective(view, w, advantage_N) / (1.0 if w.keep_N is None else w.keep_N.double().mean())",
        f"{LEARNER}/test_splits.py::test_a_mask_never_changes_the_denominator",
    ),
    Mutant(
        3,
        "batch std of a micro-batch",
        "inverse_std",
        "F.advantages.reward_scale(view.reward_R, view.group_R, view.groups, std, view.totals.reward_std)",
        "F.advantages.reward_scale(view.reward_R, view.group_R, view.groups, std)",
        f"{LEARNER}/test_splits.py::test_credit_of_split_groups_is_that_of_whole_ones",
    ),
    Mutant(
        3,
        "statistics in the order of micro-batches",
        "_in_order",
        "np.concatenate([column for _, column in parts])[order]",
        "np.concatenate([column for _, column in parts])",
        f"{LEARNER}/test_splits.py::test_statistics_are_the_same_to_the_bit_under_any_split",
    ),
    Mutant(
        3,
        "an invalid token stays in the mask",
        "views:_without",
        "segment.action_mask & ~bad",
        "segment.action_mask",
        f"{LEARNER}/test_broken_data.py::test_a_token_without_a_usable_behavior_log_prob_leaves_the_mask_before_any_denominator",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ 4
    Mutant(
        4,
        "exp before where",
        "ppo_clip",
        "exp_clamped(log_ratio(current_N, old_N.detach(), keep_N))",
        "masked((current_N - old_N.detach()).exp(), keep_N)",
        "tests/property/test_functional_losses.py::test_gradients_are_finite_and_zero_where_masked",
    ),
    Mutant(
        4,
        "min(1, NaN) is a full step",
        "ess_multiplier",
        "not math.isfinite(ratio)",
        "ratio == math.inf",
        "tests/unit/functional/test_ess_divergence.py::test_a_broken_ratio_is_flagged_and_cannot_become_a_multiplier",
    ),
    Mutant(
        4,
        "a NaN multiplier is multiplied in",
        "LearnerChain.step",
        "not 0.0 < verdict <= 1.0",
        "verdict <= 0.0 or verdict > 1.0",
        "tests/unit/methods/test_step.py::test_a_multiplier_outside_its_range_is_a_refusal",
    ),
    Mutant(
        4,
        "a broken ratio is masked away",
        "keep_within",
        "~((log_ratio < floor) | (log_ratio > roof))",
        "(log_ratio >= floor) & (log_ratio <= roof)",
        "tests/unit/functional/test_ratios_weights.py::test_a_nan_ratio_is_kept_so_that_the_step_is_refused",
    ),
    Mutant(
        4,
        "ratios of ESS are exponentiated unshifted",
        "ess",
        "(s - top).exp()",
        "s.exp()",
        "tests/unit/functional/test_ess_divergence.py::test_equal_weights_have_ratio_one_at_any_scale",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ 5
    Mutant(
        5,
        "a refused step moves the moments",
        "Learner._step",
        "raise Refused(multiplier.reason, broken=False)",
        """\
self.optimizer.step(1e-300)
raise Refused(multiplier.reason, broken=False)
""",
        f"{LEARNER}/test_steps.py::test_a_skipped_step_moves_nothing",
    ),
    Mutant(
        5,
        "a refused step moves the masters of narrow weights",
        "Learner._step",
        "raise Refused(verdict.reason, broken=False)",
        """\
for master in self.optimizer.masters:
    master.data *= 1.001
raise Refused(verdict.reason, broken=False)
""",
        "tests/unit/learner/test_masters.py::test_a_skipped_step_moves_nothing_masters_included",
    ),
    Mutant(
        5,
        "the schedule advances on a skip",
        "Learner._step",
        "raise Refused(verdict.reason, broken=False)",
        """\
self.optimizer.applied += 1
raise Refused(verdict.reason, broken=False)
""",
        f"{LEARNER}/test_steps.py::test_a_skipped_step_moves_nothing",
    ),
    Mutant(
        5,
        "no signal is stepped on",
        "Learner._train",
        "not accumulation.signal",
        "accumulation.signal is None",
        f"{LEARNER}/test_steps.py::test_a_skipped_step_moves_nothing",
    ),
    Mutant(
        5,
        "the version rises on a skip",
        "Session.consume",
        """\
if applied:
    self.version = self.version.next()
""",
        "self.version = self.version.next()",
        "tests/unit/cli/test_commands.py::test_the_version_rises_with_applied_batches_and_with_nothing_else",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ 6
    Mutant(
        6,
        "a checkpoint is written under its final name",
        "save",
        "folder / f'{TEMP}{final.name}-{os.getpid()}'",
        "final",
        "tests/chaos/test_checkpoint_kill.py::test_killed_before_every_system_call_of_a_save",
    ),
    Mutant(
        6,
        "older checkpoints go before the new one is verified",
        "save",
        """\
_verify(folder, number)
with disk(folder, f"checkpoint {number} is intact"):
    for old in numbers(folder)[:-keep]:
        if old < number:
            _remove(folder, old)
""",
        """\
with disk(folder, f"checkpoint {number} is intact"):
    for old in numbers(folder)[:-keep]:
        if old < number:
            _remove(folder, old)
_verify(folder, number)
""",
        "tests/unit/store/test_checkpoint.py::test_a_disk_that_lies_is_found_out_before_the_old_one_goes",
    ),
    Mutant(
        6,
        "logs are cut one batch too far on",
        "prepare_resume",
        "point.number + (path == folder.eval)",
        "point.number + 1",
        "tests/unit/store/test_resume.py::test_logs_are_cut_to_the_checkpoint_and_the_rest_is_kept",
    ),
    Mutant(
        6,
        "a retry keeps its attempt",
        "Ledger.retry",
        "entry.attempt += 1",
        "",
        "tests/unit/pool/test_admit.py::test_a_failed_attempt_is_first_in_line_and_charged_anew",
    ),
    Mutant(
        6,
        "a restart raises the attempt",
        "Ledger.give_back",
        "entry = self._live[slot] = _in_line(self._live[slot])",
        """\
entry = self._live[slot] = _in_line(self._live[slot])
entry.attempt += 1
""",
        "tests/unit/pool/test_admit.py::test_a_lost_workers_slots_come_first_at_the_same_attempt",
    ),
    Mutant(
        6,
        "a retry draws the same randomness",
        "Collector.assign",
        "keyed.fold(self._tag, self._seed, slot.epoch, slot.index, attempt, np.arange(o.group_size))",
        "keyed.fold(self._tag, self._seed, slot.epoch, slot.index, 0, np.arange(o.group_size))",
        "tests/unit/rollout/test_collector.py::test_too_few_members_is_a_failure_to_retry_and_the_retry_draws_anew",
    ),
    Mutant(
        6,
        "a checkpoint holds the rounded weights in place of their masters",
        "ScheduledAdamW.state_dict",
        "[master.detach().clone() for _, master in self._narrow]",
        "[p.detach().float() for p, _ in self._narrow]",
        "tests/unit/learner/test_masters.py::test_a_restored_optimizer_goes_on_bit_for_bit",
    ),
    Mutant(
        6,
        "a row that cannot be run is tried again",
        "Pool._attempt_failed",
        "retry and entry.failures + 1 < self.options.max_attempts",
        "entry.failures + 1 < self.options.max_attempts",
        "tests/unit/pool/test_admit.py::test_a_row_that_cannot_be_run_fails_at_once_and_never_comes_again",
    ),
    Mutant(
        6,
        "a resume trains on changed data",
        "Plan.restore",
        "changed and not self.accept_changed_data",
        "False",
        "tests/unit/pool/test_plan.py::test_a_resume_over_changed_data_is_refused_by_name_unless_it_is_accepted",
    ),
    Mutant(
        6,
        "a set of a mixture begins anew each epoch",
        "mixed.order",
        "epoch * shares[i] + place[here] - (ends[i] - shares[i])",
        "place[here] - (ends[i] - shares[i])",
        "tests/unit/pool/test_order.py::test_a_mixture_draws_the_quotas_and_goes_through_every_set_in_passes",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ 7
    Mutant(
        7,
        "commit before every digest is there",
        "Publication._settle",
        "self._quorum <= self._staged.keys()",
        "self._staged",
        "tests/unit/weights/test_publication.py::test_commits_are_due_once_and_only_when_every_digest_agrees",
    ),
    Mutant(
        7,
        "a digest is not compared",
        "Publication.staged",
        "digest != self.digest",
        "not digest",
        "tests/unit/weights/test_publication.py::test_another_digest_aborts_and_no_commit_is_ever_due",
    ),
    Mutant(
        7,
        "weights are staged over the served ones",
        "ServedWeights.stage",
        "tensor.copy_(weights[name])",
        """\
tensor.copy_(weights[name])
self._parameters[name].data.copy_(weights[name])
""",
        "tests/unit/engines/test_publish.py::test_staging_and_aborting_leave_the_served_weights_alone",
    ),
    Mutant(
        7,
        "keys outlive the weights that made them",
        "TorchEngine.commit",
        'self.options.cache_policy == "recompute"',
        "False",
        "tests/unit/engines/test_publish.py::test_rows_that_span_versions_recompute_their_cache",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ 8
    Mutant(
        8,
        "the verifier's deadline is not kept",
        "Verifier._receive",
        "waited > (options.deadline_s if process.answered else options.first_s)",
        "waited > 1000 * (options.deadline_s if process.answered else options.first_s)",
        "tests/unit/tasks/test_verifier.py::test_one_bad_call_costs_only_itself",
    ),
    Mutant(
        8,
        "a poison prompt is retried for ever",
        "Pool._attempt_failed",
        "entry.failures + 1 < self.options.max_attempts",
        "entry.failures + 1 < 1000 * self.options.max_attempts",
        "tests/unit/pool/test_admit.py::test_a_poison_prompt_fails_after_max_attempts_and_frees_its_slot",
    ),
    Mutant(
        8,
        "a straggler has no deadline",
        "Pool.expire",
        "now_s - e.since_s > self.options.straggler_deadline_s",
        "now_s - e.since_s > 1000 * self.options.straggler_deadline_s",
        "tests/unit/pool/test_admit.py::test_the_deadline_fails_a_straggler_and_names_it",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ 9
    Mutant(
        9,
        "the learner's head counts ids that no tokenizer has",
        "Head.__init__",
        "self.width = self.ids.size",
        "self.width = self.ids.rows",
        "tests/unit/learner/test_ids.py::test_a_learner_of_a_padded_model_is_one_of_the_sliced_model",
    ),
    Mutant(
        9,
        "the engine samples the holes of a vocabulary",
        "Forward.logits",
        "self._ids.cut(wide_product(hidden, self._head.weight[: self.vocabulary]))",
        "wide_product(hidden, self._head.weight[: self.vocabulary])",
        "tests/unit/engines/test_vocabulary.py::test_holes_are_never_sampled_and_learner_and_engine_agree",
    ),
    Mutant(
        9,
        "logits of bfloat16 are rounded to it",
        "wide_product",
        "x_nD.dtype not in (torch.float16, torch.bfloat16)",
        "x_nD.dtype is not None",
        "tests/unit/engines/test_vocabulary.py::test_logits_of_narrow_weights_are_not_rounded",
    ),
    Mutant(
        9,
        "scores ignore the temperature",
        "said",
        "knobs.temperature_N",
        "torch.ones_like(knobs.temperature_N)",
        "tests/unit/engines/test_torch_engine.py::test_engine_and_scorer_agree_at_temperature_0_6",
    ),
    Mutant(
        9,
        "the learner ignores kept sets",
        "packing:pack",
        "None if kept is None else KeptSets(index(kept[0]), index(kept[1]))",
        "None",
        "tests/unit/learner/test_head.py::test_values_and_gradients_equal_autograd",
    ),
    Mutant(
        9,
        "a stop string is looked for in the last token only",
        "StopStrings.ends",
        "response[-self._window:].tolist()",
        "response[-1:].tolist()",
        "tests/unit/rollout/test_stops.py::test_a_response_ends_with_the_token_that_completes_a_stop_string",
    ),
    # ----------------------------------------------------------------------------------------------------------------------- 10
    Mutant(
        10,
        "filters see the shaped reward",
        "stats",
        "m.group.scores",
        "np.array([r.score if r.reward is None else r.reward for r in rollouts], dtype=np.float64)",
        "tests/unit/pool/test_measure.py::test_filters_see_the_verifiable_score_not_the_shaped_reward",
    ),
    Mutant(
        10,
        "an error counts as a wrong answer",
        "members",
        "(r for r in rollouts if r.judged)",
        "rollouts",
        "tests/unit/rollout/test_assemble.py::test_errors_leave_and_nothing_else_does",
    ),
    Mutant(
        8,
        "the first response has no deadline of its own",
        "VerifierOptions.first_s",
        "max(self.deadline_s, self.first_deadline_s)",
        "self.deadline_s",
        "tests/unit/tasks/test_scorer_faults.py::test_what_is_imported_at_the_first_response_has_time_in_every_process",
    ),
    Mutant(
        8,
        "a daemon of a reward outlives it",
        "cage:_end",
        "kill_descendants()",
        "pass",
        "tests/chaos/test_cage.py::test_where_there_are_no_namespaces_orphans_are_ended_one_by_one",
    ),
    Mutant(
        10,
        "a timeout is a reward of zero",
        "Verifier._verdict",
        'self._options.timeout == "error"',
        "False",
        "tests/unit/tasks/test_scorer_faults.py::test_a_timeout_is_an_error_unless_the_run_says_zero",
    ),
    Mutant(
        10,
        "members of lost groups are not counted",
        "VerdictCounts.group",
        "self.retried += len(list(members))",
        "self.retried += 0",
        "tests/unit/rollout/test_verdict_counts.py::test_the_collector_counts_members_of_groups_that_are_lost",
    ),
    Mutant(
        10,
        "verdicts are counted where a group is whole",
        "Collector._judged",
        "self._counts.count(verdict.outcome, verdict.detail)",
        "self._counts.count(verdict.outcome, verdict.detail) if rollout.judged else None",
        "tests/unit/rollout/test_verdict_counts.py::test_the_collector_counts_members_of_groups_that_are_lost",
    ),
    *METHODS,
)
