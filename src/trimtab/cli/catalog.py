"""``methods``."""

from __future__ import annotations

import inspect
import json

from trimtab.methods.chain import written
from trimtab.methods.registry import BUNDLES, build, method_class, names
from trimtab.records import Json


def _bundle(name: str) -> str:
    return ", ".join(written(str(item["name"]), {k: v for k, v in item.items() if k != "name"}) for item in BUNDLES[name])


def methods(name: str | None, as_json: bool) -> None:
    """All methods, or one in full."""
    bundle = BUNDLES.get(name or "", ())
    chosen = names() if name is None else [str(item["name"]) for item in bundle] or [name]
    if as_json:
        print(json.dumps({"methods": [_row(n) for n in chosen]}, indent=1))
        return
    if name is not None:
        if bundle:
            print(f"{name} is a bundle: {_bundle(name)}\n")
        for n in chosen:
            _explain(n)
        return
    for n in chosen:
        cls = method_class(n)
        print(f"{n:<10} {'+'.join(cls.points()):<12} {cls.summary}")
    print("\nbundles")
    for title in sorted(BUNDLES):
        print(f"{title:<10} {_bundle(title)}")


def _row(name: str) -> dict[str, Json]:
    cls = method_class(name)
    defaults: dict[str, Json] = build(name, {}).options.model_dump(mode="json")
    points: list[Json] = [p.value for p in cls.points()]
    return {"name": name, "points": points, "source": cls.source, "defaults": defaults, "status": cls.status.value}


def _explain(name: str) -> None:
    cls = method_class(name)
    print(f"{name}: {cls.summary}")
    print(f"  acts at   {', '.join(cls.points())}")
    print(f"  formula   {cls.formula}")
    print(f"  source    {cls.source} ({cls.status.value})")
    for field, info in cls.Options.model_fields.items():
        note = f"  {info.description}" if info.description else ""
        print(f"  option    {field} = {info.default!r}{note}")
    print(f"  {inspect.getdoc(cls)}\n")
