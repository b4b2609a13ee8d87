"""The class settings that schedules set, and the signals by class that they read."""
