"""Many trainings and audits at once: tasks, and the executors that run them on one machine, Ray or Slurm."""
