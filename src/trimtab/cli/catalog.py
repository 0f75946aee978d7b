"""``methods``: what there is at each control point, and one method in full."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Iterator
from typing import Literal, get_args, get_origin

from trimtab.control.protocol import Method, Need, NormCreditMethod, Point, Ratio, SelectMethod
from trimtab.control.registry import build, method_class, names, written
from trimtab.methods.catalogue import BUNDLES
from trimtab.records import Json

# The question asked at each point (docs/architecture.md).
ASKS = {
    Point.ACCEPT: "may this finished group stay?",
    Point.SELECT: "which waiting groups form this batch?",
    Point.SHAPE: "what is added to the verifiable score?",
    Point.WEIGH: "how much does each token or sequence count?",
    Point.CREDIT: "was this better than expected? one owner",
    Point.OBJECTIVE: "which function of the current log-prob is minimized? one owner, others add terms",
    Point.GRADIENT: "how much of the finished gradient is safe?",
    Point.STEP: "how far do we move?",
}
NEEDS = {
    Need.SCORE: "current log-probs before credit (a scoring forward where credit is not of the same pass)",
    Need.PROXIMAL: "log-probs at the start of the batch",
    Need.VALUES: "a critic",
    Need.REFERENCE: "a frozen reference model",
    Need.VOCAB: "entropy and sum of squared probabilities",
}
CORRECTS = {
    Ratio.CURRENT_BEHAVIOR: "current/behavior: all of the staleness",
    Ratio.PROXIMAL_BEHAVIOR: "proximal/behavior: up to the start of the batch",
    Ratio.CURRENT_PROXIMAL: "current/proximal: within the batch",
}
WIDTH = 100


def methods(name: str | None, as_json: bool) -> None:
    """All methods, or one in full; a bundle's name stands for its members."""
    bundle = BUNDLES.get(name or "", ())
    chosen = names() if name is None else [str(item["name"]) for item in bundle] or [name]
    if as_json:
        listed = BUNDLES if name is None else {name: bundle} if bundle else {}
        bundles = [{"name": n, "methods": [dict(item) for item in listed[n]]} for n in sorted(listed)]
        print(json.dumps({"methods": [row(n) for n in chosen], "bundles": bundles}, indent=1))
    elif name is None:
        _list(chosen)
    else:
        if bundle:
            print(f"{name} is a bundle: {_bundle(name)}\n")
        print("\n\n".join("\n".join(_explained(n)) for n in chosen))


def row(name: str) -> dict[str, Json]:
    """What ``methods --json`` says of one."""
    cls = method_class(name)
    options: list[Json] = [
        {"name": field, "default": default, "choices": list(choices), "description": description}
        for field, default, choices, description in _options(name)
    ]
    method = build(name, {})  # needs and corrections may follow from switches: these are the defaults'
    points: list[Json] = [p.value for p in cls.points()]
    needs: list[Json] = [name for name, _ in _needs(method)]
    corrects: list[Json] = [ratio.value for ratio in sorted(method.corrects)]
    return {
        "name": name,
        "points": points,
        "summary": cls.summary,
        "formula": cls.formula,
        "source": cls.source,
        "status": cls.status.value,
        "needs": needs,
        "corrects": corrects,
        "cost": cls.cost,
        "fails": cls.fails,
        "docs": cls.docs,
        "code": cls.__module__,
        "defaults": method.options.model_dump(mode="json"),
        "options": options,
    }


def _list(chosen: list[str]) -> None:
    by_point: dict[Point, list[tuple[str, type[Method]]]] = {point: [] for point in Point}
    for name in chosen:
        cls = method_class(name)
        by_point[cls.points()[0]].append((name, cls))
    wide = max(map(len, [*chosen, *BUNDLES]))
    for point, found in by_point.items():
        print(f"{point.value}: {ASKS[point]}")
        for name, cls in found:
            also = "".join(f" (also {p.value})" for p in cls.points()[1:])
            print(f"  {name:<{wide}}  {cls.status.value:<11}  {cls.summary}{also}")
        if not found:
            print("  (methods of your own)")
        print()
    print("bundles")
    for name in sorted(BUNDLES):
        print(f"  {name:<{wide}}  {_bundle(name)}")
    print("\ntrimtab methods NAME: formula, switches, source, cost and when it fails")


def _bundle(name: str) -> str:
    return ", ".join(written(str(item["name"]), {k: v for k, v in item.items() if k != "name"}) for item in BUNDLES[name])


def _explained(name: str) -> Iterator[str]:
    cls, method = method_class(name), build(name, {})
    yield f"{name}: {cls.summary}"
    yield from _line("acts at", ", ".join(cls.points()))
    yield from _line("formula", cls.formula)
    yield from _line("source", f"{cls.source} [{cls.status.value}]")
    yield from _line("needs", "; ".join(text for _, text in _needs(method)) or "nothing that is not computed anyway")
    if method.corrects:
        yield from _line("corrects", "; ".join(CORRECTS[ratio] for ratio in sorted(method.corrects)))
    yield from _line("cost", cls.cost)
    yield from _line("fails", cls.fails)
    options = list(_options(name))
    wide = max((len(_setting(field, default)) for field, default, _, _ in options), default=0)
    for i, (field, default, choices, description) in enumerate(options):
        told = "; ".join(part for part in (" | ".join(choices), description) if part)
        yield from _line("switches" if i == 0 else "", f"{_setting(field, default):<{wide}}  {told}".rstrip(), hang=wide + 2)
    yield from _line("docs", cls.docs)
    yield from _line("code", cls.__module__)
    yield ""
    yield textwrap.indent(inspect.getdoc(cls) or "", "  ")


def _needs(method: Method) -> Iterator[tuple[str, str]]:
    """Name and description of each thing that must be computed for a method."""
    yield from ((str(need.name), text) for need, text in NEEDS.items() if need in method.needs)
    if isinstance(method, NormCreditMethod) and method.norms is not None:
        yield "SEQ_NORMS", "gradient norms of each rollout"
    if isinstance(method, SelectMethod) and method.rescoring is not None:
        yield "FORGETTING", "forgetting scores of swapped rollouts"


def _line(head: str, text: str, hang: int = 0) -> Iterator[str]:
    """One heading and its text, folded under itself; nothing where there is no text."""
    if text:
        margin = " " * 12
        lines = textwrap.wrap(
            text, WIDTH, subsequent_indent=" " * hang, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
        )
        yield f"  {head:<10}{lines[0]}"
        yield from (f"{margin}{line}" for line in lines[1:])


def _options(name: str) -> Iterator[tuple[str, Json, tuple[str, ...], str]]:
    """Name, default, choices ("" where they are not listed) and description of each switch."""
    defaults: dict[str, Json] = build(name, {}).options.model_dump(mode="json")
    for field, info in method_class(name).Options.model_fields.items():
        choices = tuple(map(str, get_args(info.annotation))) if get_origin(info.annotation) is Literal else ()
        yield field, defaults[field], choices, info.description or ""


def _setting(field: str, default: Json) -> str:
    return f"{field} = {json.dumps(default)}"
