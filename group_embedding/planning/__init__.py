"""How many bytes a model's tables take, computed before it is trained."""

from group_embedding.planning.make_plan import Plan, TablePlan, plan

__all__ = ["Plan", "TablePlan", "plan"]
