"""A fake engine with planted acceptance, cost, capacity and failures."""
