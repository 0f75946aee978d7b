"""Names of methods and bundles, and how a configured list becomes a chain's members.

Built-in methods are imported by name on first use; others come from the entry-point group ``trimtab.methods``
(``name = "package.module:Class"``), so a method of your own is configured like a built-in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points

from pydantic import BaseModel, ConfigDict, ValidationError

from trimtab.methods.protocol import Method
from trimtab.records import Json, TrimtabError

BUILTIN = {
    "none": "trimtab.methods.none:Uncorrected",
    "seq_tis": "trimtab.methods.seq_tis:SequenceTIS",
    "tok_tis": "trimtab.methods.tok_tis:TokenTIS",
    "seq_mis": "trimtab.methods.seq_mis:SequenceMIS",
    "tok_mis": "trimtab.methods.tok_mis:TokenMIS",
    "geo_tis": "trimtab.methods.geo_tis:GeometricTIS",
    "geo_mis": "trimtab.methods.geo_mis:GeometricMIS",
    "icepop": "trimtab.methods.icepop:IcePop",
    "dis": "trimtab.methods.dis:DIS",
    "token_veto": "trimtab.methods.token_veto:TokenVeto",
    "k3_reject": "trimtab.methods.k3_reject:K3Reject",
    "decoupled": "trimtab.methods.decoupled:Decoupled",
    "m2po_mask": "trimtab.methods.m2po_mask:M2POMask",
    "batch_norm_weights": "trimtab.methods.batch_norm_weights:BatchNormWeights",
    "dynamic_sampling": "trimtab.methods.dynamic_sampling:DynamicSampling",
    "overlong": "trimtab.methods.overlong:Overlong",
    "min_ess": "trimtab.methods.min_ess:MinESS",
    "grpo": "trimtab.methods.grpo:GRPO",
    "dr_grpo": "trimtab.methods.dr_grpo:DrGRPO",
    "rloo": "trimtab.methods.rloo:RLOO",
    "reinforce": "trimtab.methods.reinforce:Reinforce",
    "b0": "trimtab.methods.b0:NoBaseline",
    "group_min": "trimtab.methods.group_min:GroupMin",
    "reinforce_pp": "trimtab.methods.reinforce_pp:ReinforcePP",
    "opo": "trimtab.methods.opo:OPO",
    "otb": "trimtab.methods.otb:OTB",
    "opob": "trimtab.methods.opob:OPOB",
    "gae": "trimtab.methods.gae:GAE",
    "vtrace": "trimtab.methods.vtrace:VTrace",
    "copc_mask": "trimtab.methods.copc:CopcMask",
    "copc_credit": "trimtab.methods.copc:CopcCredit",
    "linear": "trimtab.methods.linear:Linear",
    "ppo_clip": "trimtab.methods.ppo_clip:PPOClip",
    "ppo_decoupled": "trimtab.methods.ppo_decoupled:PPODecoupled",
    "gspo": "trimtab.methods.gspo:GSPO",
    "cispo": "trimtab.methods.cispo:CISPO",
    "m2po": "trimtab.methods.m2po:M2PO",
    "bapo": "trimtab.methods.bapo:BAPO",
    "sapo": "trimtab.methods.sapo:SAPO",
    "dppo": "trimtab.methods.dppo:DPPO",
    "topr": "trimtab.methods.topr:TOPR",
    "opmd": "trimtab.methods.opmd:OPMD",
    "kimi": "trimtab.methods.kimi:Kimi",
    "opsm": "trimtab.methods.opsm:OPSM",
    "kl_term": "trimtab.methods.kl_term:KLTerm",
    "kl_reward": "trimtab.methods.kl_reward:KLReward",
    "entropy_term": "trimtab.methods.entropy_term:EntropyTerm",
    "gac": "trimtab.methods.gac:GAC",
    "random_skip": "trimtab.methods.random_skip:RandomSkip",
    "norm_clip": "trimtab.methods.norm_clip:NormClip",
    "median_clip": "trimtab.methods.median_clip:MedianClip",
    "zclip": "trimtab.methods.zclip:ZClip",
    "update_cap": "trimtab.methods.update_cap:UpdateCap",
    "ess": "trimtab.methods.ess:ESSStep",
    "pace": "trimtab.methods.pace:Pace",
    "freshest": "trimtab.methods.freshest:Freshest",
    "max_age": "trimtab.methods.max_age:MaxAge",
    "random_reject": "trimtab.methods.random_reject:RandomReject",
}
# A bundle is a name for a list. Its members give way to what the user writes beside it.
BUNDLES: dict[str, tuple[dict[str, Json], ...]] = {
    "vcpo": ({"name": "seq_tis", "c": 8.0}, {"name": "opob"}, {"name": "linear"}, {"name": "norm_clip", "max_norm": 1.0}, {"name": "ess"}),
    "async_ppo": ({"name": "gae"}, {"name": "ppo_clip"}, {"name": "norm_clip", "max_norm": 1.0}),
    "copc": ({"name": "copc_mask"}, {"name": "copc_credit"}, {"name": "linear"}, {"name": "norm_clip", "max_norm": 1.0}),
    "decoupled_ppo": ({"name": "decoupled"}, {"name": "grpo"}, {"name": "ppo_decoupled"}, {"name": "norm_clip", "max_norm": 1.0}),
    "a3po": (
        {"name": "decoupled", "anchor": "a3po"},
        {"name": "grpo"},
        {"name": "ppo_decoupled", "anchor": "a3po"},
        {"name": "norm_clip", "max_norm": 1.0},
    ),
    "dapo": (
        {"name": "dynamic_sampling"},
        {"name": "overlong"},
        {"name": "grpo"},
        {"name": "ppo_clip", "low": 0.2, "high": 0.28},
        {"name": "norm_clip", "max_norm": 1.0},
    ),
    "impala": ({"name": "tok_tis", "c": 1.0}, {"name": "vtrace"}, {"name": "linear"}, {"name": "norm_clip", "max_norm": 1.0}),
}


class Entry(BaseModel):
    """One item of ``methods``: a name, or a table with ``name`` and that method's own options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @property
    def options(self) -> dict[str, Json]:
        return dict(self.model_extra or {})


@dataclass(frozen=True, slots=True)
class Member:
    """A method with its options, and the bundle it came from ("" where the user wrote it, "default" where Trimtab added it)."""

    method: Method
    origin: str


def _plugins() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group="trimtab.methods")}


def names() -> list[str]:
    """All method names, built-in and registered, without importing any."""
    return sorted({*BUILTIN, *_plugins()})


def method_class(name: str) -> type[Method]:
    """The class registered under ``name``; unknown names are refused with the known ones."""
    target = BUILTIN.get(name) or _plugins().get(name)
    if target is None:
        known = ", ".join([*names(), *sorted(BUNDLES)])
        raise TrimtabError.field("methods", name, f"unknown method; use one of {known}")
    module, _, attribute = target.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise TrimtabError.field("methods", name, f"its entry point {target} does not load ({error}); repair or uninstall it") from error
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise TrimtabError.field("methods", name, f"{target} is not a subclass of trimtab.methods.protocol.Method")
    return found


def build(name: str, options: dict[str, Json]) -> Method:
    """A method from its name and options; a bad option is one sentence that names it."""
    cls = method_class(name)
    try:
        return cls(cls.Options.model_validate(options))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "options"
        allowed = ", ".join(cls.Options.model_fields) or "none"
        said = "unknown option" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
        raise TrimtabError.field(f"methods.{name}.{where}", first["input"], f"{said}; options of {name}: {allowed}") from None


def expand(entries: Sequence[Entry]) -> list[tuple[str, dict[str, Json], str]]:
    """Bundles replaced by their members: (name, options, origin). Options written beside a bundle's name are refused."""
    out: list[tuple[str, dict[str, Json], str]] = []
    for entry in entries:
        bundle = BUNDLES.get(entry.name)
        if bundle is None:
            out.append((entry.name, entry.options, ""))
            continue
        if entry.options:
            key = next(iter(entry.options))
            parts = ", ".join(str(item["name"]) for item in bundle)
            raise TrimtabError.field(
                f"methods.{entry.name}.{key}", entry.options[key], f"a bundle takes no options; write the member beside it ({parts})"
            )
        for item in bundle:
            out.append((str(item["name"]), {k: v for k, v in item.items() if k != "name"}, entry.name))
    return out
