"""Small Llamas that learn the instruction language from random weights, many at once.

One network of this size does not keep a GPU busy. The students of one cell differ only in seed and
train tasks, so their weights are stacked and trained as one program (`torch.func`). AdamW updates
every weight on its own, so that each student learns as it would alone. The loss is the
cross-entropy of the letters of the answer. After training, each is an ordinary `LlamaForCausalLM`.
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
NUM_EAGER_STEPS = 3  # before a CUDA graph is captured: they set up what the graph needs
FRAC_WARM_UP = 0.05  # of the steps
MAX_SENTENCES = 2048  # per student that are answered at once


@dataclass(frozen=True)
class Size:
    """The width and depth of a student, and its training."""

    width: int = 128
    depth: int = 4
    num_steps: int = 4000
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 0.01


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch with one thread on the CPU, which is faster for small networks."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


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
        initializer_range=size.width**-0.5,  # the default, .02, is for wide networks
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="eager",  # fused attention cannot be stacked, and sentences are short
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transformers.LlamaForCausalLM(config)


def tokenizer(language: Language) -> Any:
    """A tokenizer with one token per word, which is saved with a student."""
    tokenizers: Any = importlib.import_module("tokenizers")
    transformers: Any = importlib.import_module("transformers")
    words = {word: number for number, word in enumerate(language.words)}
    word_level = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token=AND))
    word_level.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=word_level)


def save(model: Any, language: Language, folder: Path) -> Path:
    """Save a student and its tokenizer in a folder, in the format of transformers."""
    model.save_pretrained(folder)
    tokenizer(language).save_pretrained(folder)
    return folder


class Sentences:
    """Instructions of all tasks with random lists, as tokens on the device."""

    def __init__(self, language: Language, device: str, seed: int):
        tasks = language.tasks()
        sources, letter_maps = language.functions(tasks)
        self.language = language
        self.sources = torch.as_tensor(sources, device=device)
        self.letter_maps = torch.as_tensor(letter_maps, device=device)
        self.instructions = torch.as_tensor(language.instructions(tasks), device=device)
        self.equals = language.words.index("=")
        self.rng = torch.Generator(device).manual_seed(seed)

    def draw(self, tasks: Tensor) -> tuple[Tensor, Tensor]:
        """A prompt and its correct answer for each task.

        A prompt ends with the equals sign. Its operations are in random order.
        """
        letters = torch.randint(
            self.language.num_letters,
            (*tasks.shape, self.language.length),
            generator=self.rng,
            device=tasks.device,
        )
        num_orders = self.instructions.shape[1]
        order = torch.randint(num_orders, tasks.shape, generator=self.rng, device=tasks.device)
        moved = letters.gather(-1, self.sources[tasks])
        answer = self.letter_maps[tasks].gather(-1, moved[..., None])[..., 0]
        equals = torch.full_like(letters[..., :1], self.equals)
        return torch.cat([self.instructions[tasks, order], letters, equals], dim=-1), answer

    def all(self, num_students: int, num: int) -> tuple[Tensor, Tensor]:
        """For each student `num` prompts of every task, task by task, and the correct answers."""
        tasks = torch.arange(len(self.sources), device=self.sources.device)
        return self.draw(tasks.repeat_interleave(num).expand(num_students, -1))

    def choose(self, train: Tensor, num: int) -> Tensor:
        """Train tasks for a batch of every student. The rows of `train` are padded with -1."""
        sizes = (train >= 0).sum(dim=1, keepdim=True)
        uniform = torch.rand((len(train), num), generator=self.rng, device=train.device)
        return train.gather(1, (uniform * sizes).long())


class Students:
    """Students of one size that are trained together, each with its own train tasks and seed."""

    def __init__(
        self, language: Language, size: Size, seeds: Sequence[int], train: Sequence[np.ndarray]
    ):
        self.language = language
        self.size = size
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.models = [untrained(language, size, seed).to(self.device) for seed in seeds]
        self.skeleton = copy.deepcopy(self.models[0]).to("meta")
        self.weights, self.buffers = stack_module_state(self.models)
        longest = max(map(len, train))
        rows = [np.pad(tasks, (0, longest - len(tasks)), constant_values=-1) for tasks in train]
        self.train = torch.as_tensor(np.stack(rows), device=self.device)

    def logits(self, tokens: Tensor, num: int) -> Tensor:
        """Logits after the last `num` tokens: students x sentences x num x words."""
        length = tokens.shape[-1]
        mask = torch.full((length, length), -1e9, device=self.device).triu(1)
        options = {
            "attention_mask": mask[None, None],  # a mask of four dimensions is used unchanged
            "position_ids": torch.arange(length, device=self.device)[None],
            "use_cache": False,
            "logits_to_keep": num,
        }

        def logits_of_one(weights: Any, buffers: Any, own_tokens: Tensor) -> Tensor:
            inputs = {"input_ids": own_tokens} | options
            return functional_call(self.skeleton, (weights, buffers), (), inputs).logits

        is_cuda = self.device == "cuda"
        with torch.autocast(self.device, torch.bfloat16, enabled=is_cuda, cache_enabled=False):
            return vmap(logits_of_one)(self.weights, self.buffers, tokens).float()

    def learn(self, seed: int) -> None:
        """Train all students."""
        size = self.size
        length = self.language.length
        sentences = Sentences(self.language, self.device, seed)
        rate = torch.tensor(0.0, device=self.device)
        fast: Any = {"fused": True, "capturable": True} if self.device == "cuda" else {}
        optimizer = torch.optim.AdamW(
            self.weights.values(), rate, BETAS, weight_decay=size.weight_decay, **fast
        )

        def step(tokens: Tensor) -> None:
            logits = self.logits(tokens[..., :-1], length)
            answer = tokens[..., -length:]
            losses = torch.nn.functional.cross_entropy(
                logits.flatten(0, -2), answer.flatten(), reduction="none"
            )
            optimizer.zero_grad()
            (losses.sum() / answer[0].numel()).backward()  # the sum over students of their means
            optimizer.step()

        take_step = step
        label = f"training {len(self.models)} students of width {size.width}, steps"
        with Meter(label, size.num_steps) as meter, _own_stream(self.device):
            for number in range(size.num_steps):
                tasks = sentences.choose(self.train, size.batch_size)
                tokens = torch.cat(sentences.draw(tasks), dim=-1)
                rate.fill_(size.learning_rate * self._rate(number))
                if number == NUM_EAGER_STEPS and self.device == "cuda":
                    take_step = _captured(step, tokens)
                take_step(tokens)
                meter.advance()
        with torch.no_grad():
            for number, model in enumerate(self.models):
                for name, weight in model.named_parameters():
                    weight.copy_(self.weights[name][number])

    def _rate(self, step: int) -> float:
        """The factor of the learning rate: linear warm-up, then cosine decay."""
        num_warm_up = max(1, round(FRAC_WARM_UP * self.size.num_steps))
        if step < num_warm_up:
            return (step + 1) / num_warm_up
        progress = (step - num_warm_up) / max(1, self.size.num_steps - num_warm_up)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))

    @torch.no_grad()
    def answer(self, prompts: Tensor) -> tuple[Tensor, Tensor]:
        """Answers by greedy decoding, and the mean -log p per letter of each answer.

        Prompts are students x sentences x tokens.
        """
        length = self.language.length
        answers = []
        doubts = []
        for part in prompts.split(MAX_SENTENCES, dim=1):
            tokens = part
            doubt = torch.zeros(part.shape[:2], device=part.device)
            for _ in range(length):
                log_p, token = self.logits(tokens, 1).log_softmax(dim=-1).max(dim=-1)
                tokens = torch.cat([tokens, token], dim=-1)
                doubt = doubt - log_p[..., 0] / length
            answers.append(tokens[..., part.shape[-1] :])
            doubts.append(doubt)
        return torch.cat(answers, dim=1), torch.cat(doubts, dim=1)


@contextlib.contextmanager
def _own_stream(device: str) -> Iterator[None]:
    """Use a separate CUDA stream, which the capture of a CUDA graph requires."""
    if device == "cpu":
        yield
        return
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        yield
    torch.cuda.synchronize()


def _captured(step: Callable[[Tensor], None], example: Tensor) -> Callable[[Tensor], None]:
    """The step as one CUDA graph, because launching its kernels takes longer than running them.

    Gives the step itself if this version of transformers cannot be captured.
    """
    graph_input = example.clone()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            step(graph_input)
    except RuntimeError:
        torch.cuda.synchronize()
        return step

    def replay(tokens: Tensor) -> None:
        graph_input.copy_(tokens)
        graph.replay()

    return replay
