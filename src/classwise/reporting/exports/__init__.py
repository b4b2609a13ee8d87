"""Results as files for other programs: tables and figures, build servers, RobustBench."""
