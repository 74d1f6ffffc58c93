"""Chaos: many cartridges that misbehave under a seed, and a check that nothing of it is left."""
