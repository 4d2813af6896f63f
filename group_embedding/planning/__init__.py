"""How many bytes a model's tables take, computed before it is trained."""

from group_embedding.planning.choose_placements import PlacedTable, TablePlacements, place_tables
from group_embedding.planning.make_plan import Plan, TablePlan, plan

__all__ = ["PlacedTable", "Plan", "TablePlacements", "TablePlan", "place_tables", "plan"]
