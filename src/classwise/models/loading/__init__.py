"""From a name, a path, a checkpoint or a module to a model that is ready to be evaluated."""
