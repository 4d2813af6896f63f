"""How many bytes a model's tables take, computed before it is trained."""

from group_embedding.planning.make_plan import Plan, TablePlan, plan
from group_embedding.planning.table_placements import PlacedTable, TablePlacements, place_tables

__all__ = ["PlacedTable", "Plan", "TablePlacements", "TablePlan", "place_tables", "plan"]
