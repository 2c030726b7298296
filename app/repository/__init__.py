"""A folder of models and versions, here or elsewhere, and what of it is served."""
