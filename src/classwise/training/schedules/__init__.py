"""Class schedules: what changes per class from epoch to epoch, one file a family."""
