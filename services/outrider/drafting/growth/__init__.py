"""How draft trees grow: shapes, confidences, budgets."""
