"""Named mutants of the code: what each breaks, of which invariant (docs/architecture.md), and the test that must notice.

Those of the methods are in :mod:`.methods`.
"""

from __future__ import annotations

from .methods import METHODS
from .mutant import Mutant

UPDATE = "tests/unit/learner/test_update.py"

MUTANTS = (
    # ------------------------------------------------------------------------------------------------------------------------ 1
    Mutant(
        1,
        "lag off by one in lockstep",
        "runtime/lockstep.py",
        "return PoolOptions(max_lag=options.lag, depth=depth,",
        "return PoolOptions(max_lag=options.lag + 1, depth=depth + 1,",
        "tests/e2e/test_lag_zero.py::test_lockstep_with_lag_zero_is_the_synchronous_loop_to_the_bit",
    ),
    Mutant(
        1,
        "only every other version is published",
        "runtime/lockstep.py",
        """    def _publish_newest(self) -> None:
        if not self._late:
""",
        """    def _publish_newest(self) -> None:
        if not self._late and self._session.version.number % 2:
""",
        "tests/e2e/test_lag_zero.py::test_lockstep_with_lag_zero_is_the_synchronous_loop_to_the_bit",
    ),
    Mutant(
        1,
        "evaluation draws the pool's randomness",
        "rollout/evaluate.py",
        "tag=keyed.EVAL",
        "tag=keyed.ROLLOUT",
        "tests/unit/rollout/test_evaluate.py::test_it_repeats_and_training_randomness_is_not_used",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ 2
    Mutant(
        2,
        "admission off by one",
        "pool/admission.py",
        "(self.batch_groups * (v + lag - turn + 1) - n, v, n)",
        "(self.batch_groups * (v + lag - turn + 2) - n, v, n)",
        "tests/unit/pool/test_admit.py::test_lag_zero_admits_exactly_one_batch_a_version",
    ),
    Mutant(
        2,
        "admission looks at the held version only",
        "pool/admission.py",
        "*((v, n) for v, n in profile if v > held)",
        "",
        "tests/unit/pool/test_admission.py::test_room_and_debts_are_the_two_rules",
    ),
    Mutant(
        2,
        "admission counts totals, not what is outstanding",
        "pool/gate.py",
        "and ledger.outstanding >= bounds.most:",
        "and ledger.admitted - ledger.count(SlotState.TRAINED) >= bounds.most:",
        "tests/unit/pool/test_admit.py::test_ninety_percent_zero_variance_does_not_stall",
    ),
    Mutant(
        2,
        "batches form without the inequality",
        "pool/admission.py",
        "return [(v, n) for v, n in debts if n > 0]",
        "return []",
        "tests/unit/pool/test_form.py::test_ready_takes_arrivals_until_a_straggler_must_come",
    ),
    Mutant(
        2,
        "the batch in training is forgotten",
        "pool/pool.py",
        "return self.version + bool(self._book.training)",
        "return self.version",
        "tests/unit/pool/test_form.py::test_the_worked_example_of_the_docs",
    ),
    Mutant(
        2,
        "a dropped group keeps its place",
        "pool/book.py",
        """    def drop(self, entry: LiveSlot, reason: str) -> LetGo:
        self._leave(entry)
""",
        """    def drop(self, entry: LiveSlot, reason: str) -> LetGo:
""",
        "tests/unit/pool/test_admit.py::test_ninety_percent_zero_variance_does_not_stall",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ 3
    Mutant(
        3,
        "a denominator per micro-batch",
        "learner/fill.py",
        "rollouts=totals.rollouts, tokens=totals.tokens,",
        "rollouts=len(rollouts), tokens=int(length_R.sum()),",
        f"{UPDATE}::test_any_split_into_micro_batches_gives_the_same_gradient",
    ),
    Mutant(
        3,
        "a mask changes the denominator",
        "learner/accumulate.py",
        "loss_N = self.chain.objective(view, w, advantage_N)",
        "loss_N = self.chain.objective(view, w, advantage_N) / (1.0 if w.keep_N is None else w.keep_N.double().mean())",
        f"{UPDATE}::test_a_mask_never_changes_the_denominator",
    ),
    Mutant(
        3,
        "batch std of a micro-batch",
        "methods/grpo.py",
        "view.groups, std, view.totals.reward_std)",
        "view.groups, std)",
        f"{UPDATE}::test_credit_of_split_groups_is_that_of_whole_ones",
    ),
    Mutant(
        3,
        "statistics in the order of micro-batches",
        "learner/micro.py",
        "return np.asarray(np.concatenate([column for _, column in parts])[order])",
        "return np.asarray(np.concatenate([column for _, column in parts]))",
        f"{UPDATE}::test_statistics_are_the_same_to_the_bit_under_any_split",
    ),
    Mutant(
        3,
        "an invalid token stays in the mask",
        "learner/views.py",
        "action_mask=segment.action_mask & ~bad,",
        "action_mask=segment.action_mask,",
        f"{UPDATE}::test_a_token_without_a_usable_behavior_log_prob_leaves_the_mask_before_any_denominator",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ 4
    Mutant(
        4,
        "exp before where",
        "functional/objectives.py",
        """    r_N = exp_clamped(log_ratio(current_N, old_N.detach(), keep_N))
    return _clipped(""",
        """    r_N = masked((current_N - old_N.detach()).exp(), keep_N)
    return _clipped(""",
        "tests/property/test_functional_losses.py::test_gradients_are_finite_and_zero_where_masked",
    ),
    Mutant(
        4,
        "min(1, NaN) is a full step",
        "functional/ess.py",
        "    if not math.isfinite(ratio):\n",
        "    if ratio == math.inf:\n",
        "tests/unit/functional/test_ess_divergence.py::test_a_broken_ratio_is_flagged_and_cannot_become_a_multiplier",
    ),
    Mutant(
        4,
        "a NaN multiplier is multiplied in",
        "control/chain.py",
        "not 0.0 < verdict <= 1.0:",
        "(verdict <= 0.0 or verdict > 1.0):",
        "tests/unit/methods/test_step.py::test_a_multiplier_outside_its_range_is_a_refusal",
    ),
    Mutant(
        4,
        "a broken ratio is masked away",
        "functional/weights.py",
        "return ~((log_ratio < floor) | (log_ratio > roof))",
        "return (log_ratio >= floor) & (log_ratio <= roof)",
        "tests/unit/functional/test_ratios_weights.py::test_a_nan_ratio_is_kept_so_that_the_step_is_refused",
    ),
    Mutant(
        4,
        "ratios of ESS are exponentiated unshifted",
        "functional/ess.py",
        "    w = (s - top).exp()\n",
        "    w = s.exp()\n",
        "tests/unit/functional/test_ess_divergence.py::test_equal_weights_have_ratio_one_at_any_scale",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ 5
    Mutant(
        5,
        "a refused step moves the moments",
        "learner/update.py",
        """            if isinstance(multiplier, Refuse):
                raise Refused(multiplier.reason, broken=False)
""",
        """            if isinstance(multiplier, Refuse):
                self.optimizer.step(1e-300)
                raise Refused(multiplier.reason, broken=False)
""",
        f"{UPDATE}::test_a_skipped_step_moves_nothing",
    ),
    Mutant(
        5,
        "the schedule advances on a skip",
        "learner/update.py",
        """            if isinstance(verdict, Skip):
                raise Refused(verdict.reason, broken=False)
""",
        """            if isinstance(verdict, Skip):
                self.optimizer.applied += 1
                raise Refused(verdict.reason, broken=False)
""",
        f"{UPDATE}::test_a_skipped_step_moves_nothing",
    ),
    Mutant(
        5,
        "no signal is stepped on",
        "learner/update.py",
        "            if not accumulation.signal:\n",
        "            if accumulation.signal is None:\n",
        f"{UPDATE}::test_a_skipped_step_moves_nothing",
    ),
    Mutant(
        5,
        "the version rises on a skip",
        "runtime/session.py",
        """        if applied:
            self.version = self.version.next()
""",
        """        self.version = self.version.next()
""",
        "tests/unit/cli/test_commands.py::test_the_version_rises_with_applied_batches_and_with_nothing_else",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ 6
    Mutant(
        6,
        "a checkpoint is written under its final name",
        "store/checkpoint.py",
        '    temp = folder / f"{TEMP}{final.name}-{os.getpid()}"\n',
        "    temp = final\n",
        "tests/chaos/test_checkpoint_kill.py::test_killed_before_every_system_call_of_a_save",
    ),
    Mutant(
        6,
        "older checkpoints go before the new one is verified",
        "store/checkpoint.py",
        """    _verify(folder, number)
    for old in numbers(folder)[:-keep]:
        if old < number:
            _remove(folder, old)
    return final
""",
        """    for old in numbers(folder)[:-keep]:
        if old < number:
            _remove(folder, old)
    _verify(folder, number)
    return final
""",
        "tests/unit/store/test_checkpoint.py::test_a_disk_that_lies_is_found_out_before_the_old_one_goes",
    ),
    Mutant(
        6,
        "logs are cut one batch too far on",
        "store/resume.py",
        "jsonl.truncate_to(path, point.number + (path == folder.eval), orphans)",
        "jsonl.truncate_to(path, point.number + 1, orphans)",
        "tests/unit/store/test_resume.py::test_logs_are_cut_to_the_checkpoint_and_the_rest_is_kept",
    ),
    Mutant(
        6,
        "a retry keeps its attempt",
        "pool/ledger.py",
        "        entry.attempt += 1\n",
        "        entry.attempt += 0\n",
        "tests/unit/pool/test_admit.py::test_a_failed_attempt_is_first_in_line_and_charged_anew",
    ),
    Mutant(
        6,
        "a restart raises the attempt",
        "pool/ledger.py",
        "        entry = self._live[slot] = _in_line(self._live[slot])\n        return entry\n",
        "        entry = self._live[slot] = _in_line(self._live[slot])\n        entry.attempt += 1\n        return entry\n",
        "tests/unit/pool/test_admit.py::test_a_lost_workers_slots_come_first_at_the_same_attempt",
    ),
    Mutant(
        6,
        "a retry draws the same randomness",
        "rollout/collector.py",
        "keyed.fold(self._tag, self._seed, slot.epoch, slot.index, attempt,",
        "keyed.fold(self._tag, self._seed, slot.epoch, slot.index, 0,",
        "tests/unit/rollout/test_collector.py::test_too_few_members_is_a_failure_to_retry_and_the_retry_draws_anew",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ 7
    Mutant(
        7,
        "commit before every digest is there",
        "weights/publish.py",
        "if self.phase is PublicationPhase.STAGING and self._quorum <= self._staged.keys():",
        "if self.phase is PublicationPhase.STAGING and self._staged:",
        "tests/unit/weights/test_publication.py::test_commits_are_due_once_and_only_when_every_digest_agrees",
    ),
    Mutant(
        7,
        "a digest is not compared",
        "weights/publish.py",
        "        if digest != self.digest:\n",
        "        if not digest:\n",
        "tests/unit/weights/test_publication.py::test_another_digest_aborts_and_no_commit_is_ever_due",
    ),
    Mutant(
        7,
        "weights are staged over the served ones",
        "engines/served.py",
        "            for name, tensor in self._spare.items():\n                tensor.copy_(weights[name])\n",
        "            for name, tensor in self._spare.items():\n                tensor.copy_(weights[name])\n"
        "                self._parameters[name].data.copy_(weights[name])\n",
        "tests/unit/engines/test_publish.py::test_staging_and_aborting_leave_the_served_weights_alone",
    ),
    Mutant(
        7,
        "keys outlive the weights that made them",
        "engines/torch_engine.py",
        'self._stale = self.options.cache_policy == "recompute"',
        "self._stale = False",
        "tests/unit/engines/test_publish.py::test_rows_that_span_versions_recompute_their_cache",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ 8
    Mutant(
        8,
        "the verifier's deadline is not kept",
        "tasks/verifier.py",
        "elif process.calls and waited > (options.deadline_s if process.answered else options.first_s):",
        "elif process.calls and waited > 1000 * (options.deadline_s if process.answered else options.first_s):",
        "tests/unit/tasks/test_verifier.py::test_one_bad_call_costs_only_itself",
    ),
    Mutant(
        8,
        "a poison prompt is retried for ever",
        "pool/pool.py",
        "if entry.failures + 1 < self.options.max_attempts:",
        "if entry.failures + 1 < 1000 * self.options.max_attempts:",
        "tests/unit/pool/test_admit.py::test_a_poison_prompt_fails_after_max_attempts_and_frees_its_slot",
    ),
    Mutant(
        8,
        "a straggler has no deadline",
        "pool/pool.py",
        "now_s - e.since_s > self.options.straggler_deadline_s]",
        "now_s - e.since_s > 1000 * self.options.straggler_deadline_s]",
        "tests/unit/pool/test_admit.py::test_the_deadline_fails_a_straggler_and_names_it",
    ),
    # ------------------------------------------------------------------------------------------------------------------------ 9
    Mutant(
        9,
        "scores ignore the temperature",
        "engines/scoring.py",
        "z_NxV = tempered(forward.head(hidden_TxD[where_N[block] - 1]), knobs.temperature_N)",
        "z_NxV = tempered(forward.head(hidden_TxD[where_N[block] - 1]), torch.ones_like(knobs.temperature_N))",
        "tests/unit/engines/test_torch_engine.py::test_engine_and_scorer_agree_at_temperature_0_6",
    ),
    Mutant(
        9,
        "the learner ignores kept sets",
        "learner/packing.py",
        "kept_H=None if kept is None else KeptSets(index(kept[0]), index(kept[1])),",
        "kept_H=None,",
        "tests/unit/learner/test_head.py::test_values_and_gradients_equal_autograd",
    ),
    # ----------------------------------------------------------------------------------------------------------------------- 10
    Mutant(
        10,
        "filters see the shaped reward",
        "pool/measure.py",
        "        scores_R=m.group.scores,\n",
        "        scores_R=np.array([r.score if r.reward is None else r.reward for r in rollouts], dtype=np.float64),\n",
        "tests/unit/pool/test_measure.py::test_filters_see_the_verifiable_score_not_the_shaped_reward",
    ),
    Mutant(
        10,
        "an error counts as a wrong answer",
        "rollout/assemble.py",
        "return tuple(sorted((r for r in rollouts if r.judged), key=lambda r: r.member))",
        "return tuple(sorted(rollouts, key=lambda r: r.member))",
        "tests/unit/rollout/test_assemble.py::test_errors_leave_and_nothing_else_does",
    ),
    *METHODS,
)
