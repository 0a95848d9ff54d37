"""The network of a policy as data: which layers run, in which order, on what shapes, and where their inputs come from.

Nothing is declared by the modules: an observation of zeros is passed through a copy of the policy, and every layer it
meets is recorded. So trunks, encoders and heads of plug-ins are described like the built-in ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from detent.models.heads.base import Head
from detent.models.heads.gaussian import DiagonalGaussian
from detent.models.policy import Policy

Shape = tuple[int, ...]
Part = Literal["observation", "actor", "critic"]

_ACTIVATIONS = {
    "elu": "ELU",
    "gelu": "GELU",
    "leaky_relu": "LeakyReLU",
    "relu": "ReLU",
    "sigmoid": "Sigmoid",
    "silu": "SiLU",
    "softmax": "Softmax",
    "softplus": "Softplus",
    "tanh": "Tanh",
}
"""Functions that are layers although no module performs them."""
_JOINS = {"add": "+", "cat": "concatenate", "mul": "×", "sub": "-"}
"""Names of functions that combine the outputs of two layers; others keep their own."""


@dataclass(frozen=True)
class Layer:
    """One step of the computation: an observation, a layer, a function between layers, the action or the value."""

    name: str
    """Name of the module in the policy, such as `actor.0.projection`; empty if it is not a module."""
    kind: str
    """Class of the module, or name of the function."""
    inputs: Shape
    outputs: Shape
    """Shapes of one sample."""
    parameters: int
    sources: tuple[int, ...]
    """Indices of the layers whose outputs this one takes."""
    part: Part
    """What the layer belongs to; normalizer and encoder are the observation's."""
    detail: str = ""
    """Settings that the shapes do not show."""


@dataclass(frozen=True)
class Group:
    """A module that consists of layers: those from index `first` up to, but without, `end`."""

    name: str
    kind: str
    parameters: int
    first: int
    end: int


@dataclass(frozen=True)
class Architecture:
    layers: tuple[Layer, ...]
    """In the order in which they run: observation and encoder, actor, critic."""
    groups: tuple[Group, ...]
    """Outer before inner."""
    parameters: dict[str, int]
    """Number of parameters of encoder, actor (without head), head and critic, and the total."""


def describe(policy: Policy) -> Architecture:
    """Describe the network of a policy."""
    # A copy: hooks, and whatever a forward pass changes in a plug-in, stay out of the policy.
    policy = deepcopy(policy).eval()
    recorder = _Recorder(policy)
    observation = {
        key: torch.zeros(1, *shape, dtype=getattr(torch, dtype), device=policy.device)
        for key, (shape, dtype) in policy.spec.observation.parts.items()
    }
    for key, tensor in observation.items():
        recorder.add("", key, [], [tensor])
    with torch.no_grad(), recorder:
        features = policy.features(policy.normalize(observation))
        recorder.part = "actor"
        params = policy.head(policy.actor(features))
        action = torch.empty(1, policy.spec.action.size)
        recorder.add("", "action", [params], [action])
        recorder.part = "critic"
        outputs, value = policy.critic(features), torch.empty(1)
        # It is not called as a module.
        head = policy.critic_head
        recorder.add("critic_head", type(head).__name__, [outputs], [value], _size(head))
        recorder.add("", "value", [value], [])
    parameters = {
        "encoder": _size(policy.encoder),
        "actor": _size(policy.actor),
        "head": _size(policy.head),
        "critic": _size(policy.critic) + _size(policy.critic_head),
        "total": _size(policy),
    }
    # An inner module returns before its outer one.
    groups = sorted(reversed(recorder.groups), key=lambda group: (group.first, -group.end))
    return Architecture(tuple(recorder.layers), tuple(groups), parameters)


class _Recorder(TorchFunctionMode):
    """Records the modules of a policy by hooks and the functions between them by intercepting torch.

    A module without children is a layer, and so are normalizer and head; functions inside a layer are not recorded.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.layers: list[Layer] = []
        self.groups: list[Group] = []
        self.part: Part = "observation"
        self._whole = (policy.normalizer, policy.head)
        self._running: list[tuple[nn.Module, int]] = []
        """Modules whose `forward` is running, outermost first, and the number of layers when each began."""
        self._origins: dict[int, tuple[Tensor, int]] = {}
        """The layer that every tensor comes from, by the tensor's id, which is unique as long as the tensor is kept."""
        self._counted: set[nn.Module] = set()
        for name, module in policy.named_modules():
            if module is not policy:
                module.register_forward_pre_hook(self._begin)
                module.register_forward_hook(partial(self._end, name), with_kwargs=True)

    def add(
        self,
        name: str,
        kind: str,
        taken: Sequence[Tensor],
        given: Sequence[Tensor],
        parameters: int = 0,
        detail: str = "",
    ) -> None:
        """Add a layer that takes and gives these tensors."""
        sources = self._sources(taken)
        if taken and not sources:
            # Tensors of unknown origin: from the layer before, as in a chain.
            sources = (len(self.layers) - 1,)
        self.layers.append(Layer(name, kind, _shape(taken), _shape(given), parameters, sources, self.part, detail))
        self._note(given, len(self.layers) - 1)

    def _sources(self, tensors: Sequence[Tensor]) -> tuple[int, ...]:
        """Return the layers that tensors come from."""
        return tuple(dict.fromkeys(self._origins[id(tensor)][1] for tensor in tensors if id(tensor) in self._origins))

    def _note(self, tensors: Sequence[Tensor], layer: int) -> None:
        self._origins |= {id(tensor): (tensor, layer) for tensor in tensors}

    def _inside_layer(self) -> bool:
        return any(module in self._whole or not any(module.children()) for module, _ in self._running)

    def _begin(self, module: nn.Module, args: Any) -> None:
        self._running.append((module, len(self.layers)))

    def _end(self, name: str, module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        _, first = self._running.pop()
        taken, given = list(_tensors([args, kwargs])), list(_tensors(result))
        if self._inside_layer() or not given or all(any(one is other for other in taken) for one in given):
            # The last is a module that does nothing, such as Identity.
            return
        size = 0 if module in self._counted else _size(module)
        self._counted.add(module)
        kind = type(module).__name__
        if first < len(self.layers):
            self.groups.append(Group(name, kind, size, first, len(self.layers)))
            return
        self.add(name, kind, taken, given, size, _detail(module))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = list(_tensors(result))
        if not given or self._inside_layer():
            return result
        taken = list(_tensors([args, kwargs or {}]))
        sources = self._sources(taken)
        name = func.__name__.strip("_")
        if len(sources) > 1 or (sources and name in _ACTIVATIONS):
            kind = _JOINS.get(name, name) if len(sources) > 1 else _ACTIVATIONS[name]
            self.add("", kind, taken, given)
        elif sources:
            self._note(given, sources[0])
        return result


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


def _shape(tensors: Sequence[Tensor]) -> Shape:
    """Return the shape of one sample of the first tensor."""
    return tuple(tensors[0].shape[1:]) if tensors else ()


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _detail(module: nn.Module) -> str:
    """Return a convolution's kernel and stride, or what a head's distribution has for each action dimension."""
    if isinstance(module, nn.Conv2d):
        (height, width), (down, right) = module.kernel_size, module.stride
        return f"{height}×{width} / {down}" if down == right else f"{height}×{width} / {down}×{right}"
    bins = getattr(module, "bins", None)
    if isinstance(module, Head) and isinstance(bins, Tensor):
        return f"{bins.shape[-1]} bins"
    if isinstance(module, DiagonalGaussian):
        return "mean and std"
    return "distribution" if isinstance(module, Head) else ""
