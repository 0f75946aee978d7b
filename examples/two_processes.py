"""Asynchronous RL of a language model with VCPO: a rollout process and a trainer, side by side.

    python examples/two_processes.py MODEL_FOLDER [--lag 4] [--batches 200] ...

Read examples/one_process.py first: it has the mathematics (what staleness does, and VCPO's three answers), and everything that this
file imports from it is unchanged. What is new here is what a queue cannot show:

    rollout process                            shared memory                        trainer (this process)
    one token for every live rollout  ◀──  weights, version  ◀── copy ──  step  ◀──  VCPO update  ◀──  batch n
                                      ──────────────  finished groups, through a pipe  ─────────────▶

**Nobody waits for the other's work.** The rollout process has a model of its own and samples all the time; the trainer trains all the
time. Who is faster decides which version samples which token, so two runs differ. What holds in all of them is below.

**Weights are swapped in flight.** The trainer copies new weights into shared memory and rings. The rollout process looks between two
tokens, copies them into its model, and goes on with the rollouts it is in the middle of. So a rollout may have tokens of several
versions. Nothing is lost: mu of a rollout is the product of what its tokens were really drawn from, each recorded when it was drawn,
and w = pi / mu stays the exact importance ratio. (With a KV cache one would also have to decide what becomes of keys and values of
older weights. There is none here: every token reads the whole prefix again.)

**The lag is bounded, whatever the timing.** Prompts are numbered, and batch n is made of prompts nP to (n + 1)P - 1, whoever finished
first. Version v is the weights after v batches, so batch n is trained at version n. A rollout process that holds version v starts
prompts of batches up to v + lag only. It never goes back to an older version; so each token of batch n has a version of at least
n - lag, and is at most ``lag`` versions old when it is trained on. Lag 0 is the synchronous loop. The price of this simple rule is
that one long rollout holds its batch back; Trimtab's pool forms batches of what is there (docs/pool-theorem.md).

**Nobody waits for the dead.** Each holds one end of two pipes. Where the other process is gone the pipe ends, and so does the wait.

tests/e2e/test_two_processes.py scores each token again under the version that it claims, and replays the recorded batches through the
library's learner: in float64 both end in the same weights to 1e-12.
"""

import argparse
import copy
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized

import one_process
import torch
from one_process import Batch, chained_sum, draw, encode, last_total_is_right, start, uniform, update
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2ForCausalLM

Reward = Callable[[str, str], float]  # of prompt and response; the rollout process imports it, so it is a function of a module


@dataclass
class Args(one_process.Args):
    lag: int = 4  # no token is trained on more than so many versions after the one that sampled it
    live: int = 12  # groups that are being sampled at a time
    patience: float = 120.0  # seconds without a finished group after which the trainer gives up


# ------------------------------------------------------------------------------------------------------------ rollout process


@dataclass
class Rollout:
    prompt: int  # its number in the run
    text: str
    stream: int
    tokens: list[int]  # prompt and response
    begin: int  # tokens of the prompt
    behavior: list[float] = field(default_factory=list)  # log mu of every response token, when it was drawn
    versions: list[int] = field(default_factory=list)  # of the weights that drew it
    done: bool = False
    reward: float = 0.0


class Sampler:
    """Samples groups of rollouts, a token at a time. Weights may change between any two calls of :meth:`step`."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: list[str], reward: Reward, args: Args) -> None:
        self.model, self.tokenizer, self.prompts, self.reward, self.args = model, tokenizer, prompts, reward, args
        self.version = 0
        self.groups: list[list[Rollout]] = []  # that are being sampled
        self.prompt = 0  # the next one to start

    def swap(self, weights: PreTrainedModel, version: int) -> None:
        self.model.load_state_dict(weights.state_dict())
        self.version = version

    @property
    def may_start(self) -> bool:
        """The bound: with version v in hand, prompts of batches up to v + lag."""
        batches = min(self.version + self.args.lag + 1, self.args.batches)
        return len(self.groups) < self.args.live and self.prompt < batches * self.args.prompts

    @property
    def idle(self) -> bool:
        return not self.groups and not self.may_start

    def step(self) -> list[list[Rollout]]:
        """One more token for each live rollout, under the weights there are now. Returns the groups that are finished."""
        while self.may_start:
            text, streams = start(self.prompt, self.prompts, self.args)
            ids = encode(self.tokenizer, text)
            self.groups.append([Rollout(self.prompt, text, stream, list(ids), len(ids)) for stream in streams])
            self.prompt += 1
        live = [r for group in self.groups for r in group if not r.done]
        end = torch.tensor([len(r.tokens) for r in live])
        tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(r.tokens) for r in live], batch_first=True)
        token, logp = draw(self.model, tokens, end, [uniform(r.stream, len(r.versions)) for r in live])
        for r, t, lp in zip(live, token.tolist(), logp.tolist(), strict=True):
            r.tokens.append(t)
            r.behavior.append(lp)
            r.versions.append(self.version)
            r.done = t == self.tokenizer.eos_token_id or len(r.versions) == self.args.new_tokens
            if r.done:
                r.reward = self.reward(r.text, self.tokenizer.decode(r.tokens[r.begin :], skip_special_tokens=True))
        finished = [group for group in self.groups if all(r.done for r in group)]
        self.groups = [group for group in self.groups if not all(r.done for r in group)]
        return finished


def roll_out(
    shared: PreTrainedModel,
    version: "Synchronized[int]",
    rung: Connection,
    deliver: Connection,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[str],
    reward: Reward,
    args: Args,
) -> None:
    """The rollout process: samples until the trainer's ends of the pipes are gone."""
    torch.set_num_threads(1)
    sampler = Sampler(copy.deepcopy(shared), tokenizer, prompts, reward, args)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            # Between two tokens: a glance. With nothing to sample before newer weights are there: until somebody rings.
            while rung.poll(None if sampler.idle else 0):
                rung.recv_bytes()
                with version.get_lock():
                    sampler.swap(shared, version.value)
            for group in sampler.step():
                deliver.send(group)


# -------------------------------------------------------------------------------------------------------------------- trainer


@dataclass
class AsyncBatch(Batch):
    versions: Tensor  # [R, T] version that sampled the token; -1 elsewhere


def collate(rollouts: list[Rollout]) -> AsyncBatch:
    end = torch.tensor([len(r.tokens) for r in rollouts])
    R, T = len(rollouts), int(end.max())
    tokens, versions, behavior = torch.zeros(R, T, dtype=torch.int64), torch.full((R, T), -1), torch.zeros(R, T)
    for i, r in enumerate(rollouts):
        tokens[i, : end[i]] = torch.tensor(r.tokens)
        versions[i, r.begin : end[i]], behavior[i, r.begin : end[i]] = torch.tensor(r.versions), torch.tensor(r.behavior)
    reward = torch.tensor([r.reward for r in rollouts], dtype=torch.float64)
    return AsyncBatch(tokens, versions >= 0, behavior, end, reward, versions)


def train(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: list[str], reward: Reward, args: Args
) -> Iterator[tuple[dict[str, float], AsyncBatch]]:
    """Train ``model`` in place, beside a rollout process; yields each batch, and what happened at it.

    :class:`RuntimeError` where the rollout process died, :class:`TimeoutError` where it has nothing to show for ``args.patience`` s.
    """
    model.eval()  # no dropout: what is scored must be the distribution that was sampled from
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, betas=(args.beta1, args.beta2), eps=args.eps, weight_decay=args.weight_decay
    )
    processes = torch.multiprocessing.get_context("spawn")
    shared, version = copy.deepcopy(model).share_memory(), processes.Value("q", 0)
    (rung, ring), (arrived, deliver) = processes.Pipe(duplex=False), processes.Pipe(duplex=False)
    child = processes.Process(target=roll_out, args=(shared, version, rung, deliver, tokenizer, prompts, reward, args), daemon=True)
    child.start()
    rung.close()  # the child has its own; a pipe ends when the last one who could use it is gone
    deliver.close()
    waiting: dict[int, list[Rollout]] = {}  # finished groups by number of their prompt
    try:
        for n in range(args.batches):
            wanted = range(n * args.prompts, (n + 1) * args.prompts)
            while not waiting.keys() >= set(wanted):
                if not arrived.poll(args.patience):
                    raise TimeoutError(f"the rollout process has finished no group in {args.patience:g} s")
                group = arrived.recv()
                waiting[group[0].prompt] = group
            batch = collate([r for prompt in wanted for r in waiting.pop(prompt)])
            age = n - batch.versions[batch.action]
            assert 0 <= age.min() <= age.max() <= args.lag, "the bound is a theorem"
            first = batch.versions.where(batch.action, n).amin(1)
            stats = {"batch": n, "age": float(age.double().mean()), "oldest": float(age.max())}
            stats["swapped"] = float((first < batch.versions.amax(1)).double().mean())  # share of rollouts of several versions
            stats |= update(model, optimizer, batch, args)
            with version.get_lock():  # the rollout process reads all of a version or nothing of it
                shared.load_state_dict(model.state_dict())
                version.value = n + 1
            ring.send_bytes(b"new weights")
            yield stats, batch
    except (EOFError, BrokenPipeError, ConnectionResetError) as error:
        child.join(5)
        raise RuntimeError(f"the rollout process died with exit code {child.exitcode}") from error
    finally:
        ring.close()  # the rollout process finds its pipes ended, and ends
        arrived.close()
        child.join(5)
        child.kill()
        child.join()


def main() -> None:
    parser = argparse.ArgumentParser(description="Asynchronous RL with VCPO on chained sums, in two processes.")
    parser.add_argument("model", help="a Qwen2 folder whose tokenizer knows 0-9 + - = and the comma")
    for f in fields(Args):
        parser.add_argument(f"--{f.name}", type=type(f.default), default=f.default)
    options = vars(parser.parse_args())
    torch.set_num_threads(1)
    folder = options.pop("model")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    args, rng = Args(**options), random.Random(0)
    prompts = [chained_sum(rng) for _ in range(10_000)]
    for s, _ in train(model, tokenizer, prompts, last_total_is_right, args):
        print(" ".join(f"{name} {value:.3g}" for name, value in s.items()), flush=True)


if __name__ == "__main__":
    main()
