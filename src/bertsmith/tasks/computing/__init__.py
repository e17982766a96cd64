"""Many examples through a model that learns nothing by it."""
