"""Where to cut a driver: the planner, the plan's file, and the judge of a plan.

The planner (constraints, cut, curve) and the judge (check) look at the same subject and share no
algorithm: the planner closes a set of functions under rules or cuts a network, the judge walks
states through the calls.
"""

from ring3_split.plan.file import Placed, Plan, Side, Totals, load, save

__all__ = ["Placed", "Plan", "Side", "Totals", "load", "save"]
