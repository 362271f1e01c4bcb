"""Small Llamas of transformers that learn the instruction language from random weights, many at once.

One network of this size keeps no GPU busy. So those of one cell, which differ in seed and train tasks only, are stacked
and trained as one program (`torch.func`): AdamW acts on each number by itself, so that each learns as it would alone.
The loss is the cross-entropy of the answer's letters. Afterwards each is an ordinary `LlamaForCausalLM`.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from recombine.basics.console import Meter
from recombine.experiments.instrument._instructions.grammar import AND, Language

BETAS = (0.9, 0.98)
EAGER = 3  # steps that are taken one kernel after the other, which sets everything up that a CUDA graph needs
WARM_UP = 0.05  # of the steps
MOST_ANSWERED = 2048  # sentences of every student at once


@dataclass(frozen=True)
class Size:
    """A student's width and depth, and how it is trained."""

    width: int = 128
    depth: int = 4
    num_steps: int = 4000
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 0.01


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch with one thread on the CPU: those of a small network wait for each other longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def untrained(language: Language, size: Size, seed: int) -> Any:
    """A Llama with random weights, the same for the same seed."""
    transformers: Any = importlib.import_module("transformers")
    config = transformers.LlamaConfig(
        vocab_size=len(language.words),
        hidden_size=size.width,
        intermediate_size=4 * size.width,
        num_hidden_layers=size.depth,
        num_attention_heads=max(1, size.width // 32),
        max_position_embeddings=language.num_asked + 2 * language.length + 1,
        initializer_range=size.width**-0.5,  # the usual .02 is meant for wide networks
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",  # fused attention cannot be stacked, and sentences are short
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transformers.LlamaForCausalLM(config)


def tokenizer(language: Language) -> Any:
    """Words as tokens, for whoever loads a saved student."""
    tokenizers, transformers = (
        importlib.import_module(name) for name in ("tokenizers", "transformers")
    )
    words = {word: number for number, word in enumerate(language.words)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token=AND))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made)


def save(model: Any, language: Language, folder: Path) -> Path:
    """A student in a folder, as transformers keeps them, with its tokeniser."""
    model.save_pretrained(folder)
    tokenizer(language).save_pretrained(folder)
    return folder


class Sentences:
    """Instructions of all tasks with random lists, as tokens on the device."""

    def __init__(self, language: Language, device: str, seed: int):
        self.language, tasks = language, language.tasks()
        where, becomes = language.functions(tasks)
        self.where, self.becomes, self.instructions = (
            torch.as_tensor(np.ascontiguousarray(table), device=device)
            for table in (where, becomes, language.instructions(tasks))
        )
        self.equals = language.words.index("=")
        self.rng = torch.Generator(device).manual_seed(seed)

    def draw(self, tasks: Tensor) -> tuple[Tensor, Tensor]:
        """For each task a sentence up to its equals sign, words in any order, and the right answer."""
        n, shape = self.language.length, tasks.shape
        given = torch.randint(
            self.language.num_letters, (*shape, n), generator=self.rng, device=tasks.device
        )
        order = torch.randint(
            self.instructions.shape[1], shape, generator=self.rng, device=tasks.device
        )
        told = self.instructions[tasks, order]
        taken = given.gather(-1, self.where[tasks])
        answer = self.becomes[tasks].gather(-1, taken[..., None])[..., 0]
        sign = torch.full_like(given[..., :1], self.equals)
        return torch.cat([told, given, sign], dim=-1), answer

    def all(self, num_students: int, num: int) -> tuple[Tensor, Tensor]:
        """For each student so many sentences of every task, task by task, and the right answers."""
        tasks = torch.arange(len(self.where), device=self.where.device).repeat_interleave(num)
        return self.draw(tasks.expand(num_students, -1))

    def choose(self, train: Tensor, num: int) -> Tensor:
        """Train tasks for a batch of every student: the rows of `train` are padded with -1 behind."""
        sizes = (train >= 0).sum(dim=1, keepdim=True)
        drawn = torch.rand((len(train), num), generator=self.rng, device=train.device)
        return train.gather(1, (drawn * sizes).long())


class Students:
    """Students of one size that are trained at once, each on its own train tasks and from its own seed."""

    def __init__(
        self, language: Language, size: Size, seeds: Sequence[int], train: Sequence[np.ndarray]
    ):
        self.language, self.size = language, size
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.models = [untrained(language, size, seed).to(self.device) for seed in seeds]
        self.skeleton = copy.deepcopy(self.models[0]).to("meta")
        self.weights, self.buffers = stack_module_state(self.models)
        longest = max(map(len, train))
        rows = [np.pad(one, (0, longest - len(one)), constant_values=-1) for one in train]
        self.train = torch.as_tensor(np.stack(rows), device=self.device)

    def logits(self, tokens: Tensor, num: int) -> Tensor:
        """What each student says after the last `num` tokens: students x sentences x num x words."""
        length = tokens.shape[-1]
        hidden = torch.full((length, length), -1e9, device=self.device).triu(1)[
            None, None
        ]  # a 4d mask is taken as is
        places = torch.arange(length, device=self.device)[None]
        common = {"use_cache": False, "logits_to_keep": num}

        def one(weights: Any, buffers: Any, mine: Tensor) -> Tensor:
            told = {"input_ids": mine, "attention_mask": hidden, "position_ids": places}
            return functional_call(self.skeleton, (weights, buffers), (), told | common).logits

        with torch.autocast(
            self.device, torch.bfloat16, enabled=self.device == "cuda", cache_enabled=False
        ):
            return vmap(one)(self.weights, self.buffers, tokens).float()

    def learn(self, seed: int) -> None:
        """Train all of them."""
        size, sentences, length = (
            self.size,
            Sentences(self.language, self.device, seed),
            self.language.length,
        )
        rate = torch.tensor(0.0, device=self.device)
        fast: Any = {"fused": True, "capturable": True} if self.device == "cuda" else {}
        optimiser = torch.optim.AdamW(
            self.weights.values(), rate, BETAS, weight_decay=size.weight_decay, **fast
        )

        def step(tokens: Tensor) -> None:
            logits, answer = self.logits(tokens[..., :-1], length), tokens[..., -length:]
            losses = torch.nn.functional.cross_entropy(
                logits.flatten(0, -2), answer.flatten(), reduction="none"
            )
            optimiser.zero_grad()
            (losses.sum() / answer[0].numel()).backward()  # the sum over students of their means
            optimiser.step()

        taken = step
        told = f"training {len(self.models)} students of width {size.width}, steps"
        with Meter(told, size.num_steps) as meter, _aside(self.device):
            for number in range(size.num_steps):
                tokens = torch.cat(
                    sentences.draw(sentences.choose(self.train, size.batch_size)), dim=-1
                )
                rate.fill_(size.learning_rate * self._rate(number))
                if number == EAGER and self.device == "cuda":
                    taken = _captured(step, tokens)
                taken(tokens)
                meter.advance()
        with torch.no_grad():
            for number, model in enumerate(self.models):
                for name, weight in model.named_parameters():
                    weight.copy_(self.weights[name][number])

    def _rate(self, step: int) -> float:
        """The learning rate's course: a straight rise, then half a cosine."""
        start = max(1, round(WARM_UP * self.size.num_steps))
        rest = (step - start) / max(1, self.size.num_steps - start)
        return (
            (step + 1) / start if step < start else 0.5 * (1 + math.cos(math.pi * min(1.0, rest)))
        )

    @torch.no_grad()
    def answer(self, asked: Tensor) -> tuple[Tensor, Tensor]:
        """What each student writes after these sentences (students x sentences x tokens), the likeliest letter each
        time, with nothing but its own letters before it; and how unlikely it holds its answer, -log p a letter."""
        written, doubts = [], []
        for part in asked.split(MOST_ANSWERED, dim=1):
            tokens, doubt = part, torch.zeros(part.shape[:2], device=part.device)
            for _ in range(self.language.length):
                best, token = self.logits(tokens, 1).log_softmax(dim=-1).max(dim=-1)
                tokens, doubt = (
                    torch.cat([tokens, token], dim=-1),
                    doubt - best[..., 0] / self.language.length,
                )
            written.append(tokens[..., part.shape[-1] :])
            doubts.append(doubt)
        return torch.cat(written, dim=1), torch.cat(doubts, dim=1)


@contextlib.contextmanager
def _aside(device: str) -> Iterator[None]:
    """On a stream of its own, the only place where a CUDA graph can be captured."""
    if device == "cpu":
        yield
        return
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        yield
    torch.cuda.synchronize()


def _captured(step: Callable[[Tensor], None], example: Tensor) -> Callable[[Tensor], None]:
    """The step as one CUDA graph, since launching its thousand kernels takes longer than running them; itself where
    this version of transformers cannot be captured."""
    held, graph = example.clone(), torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            step(held)
    except RuntimeError:
        torch.cuda.synchronize()
        return step

    def replayed(tokens: Tensor) -> None:
        held.copy_(tokens)
        graph.replay()

    return replayed
