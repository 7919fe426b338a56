"""Aggregation rules: how the replicas' gradients are combined into one.

A rule is a function of the Gram matrix of the gradients; see `AggregationRule`.
"""

from tf_adasum.aggregation.rules.adacons import AdaCons
from tf_adasum.aggregation.rules.adasum import Adasum
from tf_adasum.aggregation.rules.base import AggregationRule
from tf_adasum.aggregation.rules.linear import Mean, Sum

__all__ = ["AdaCons", "Adasum", "AggregationRule", "Mean", "Sum", "get"]

_BUILT_IN: tuple[type[AggregationRule], ...] = (AdaCons, Adasum, Mean, Sum)
_BY_NAME = {rule.__name__.lower(): rule for rule in _BUILT_IN}


def get(rule: str | AggregationRule) -> AggregationRule:
    """Return the rule with this name; if `rule` is a rule, return it unchanged.

    Args:
        rule: ``"adacons"``, ``"adasum"``, ``"mean"``, ``"sum"`` or an `AggregationRule`.

    Raises:
        ValueError: if the name is unknown or the object is not a rule.

    Example:
        >>> tf_adasum.rules.get("adacons").get_config()["momentum"]
        0.99
    """
    if isinstance(rule, AggregationRule):
        return rule
    if isinstance(rule, str) and rule.lower() in _BY_NAME:
        return _BY_NAME[rule.lower()]()
    hint = ""
    if isinstance(rule, type) and issubclass(rule, AggregationRule):
        hint = f" Pass an instance: {rule.__name__}()."
    raise ValueError(
        f"`aggregation` must be one of {sorted(_BY_NAME)} or an instance of "
        f"tf_adasum.rules.AggregationRule.{hint} Received: aggregation={rule!r}"
    )
