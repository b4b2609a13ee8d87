"""Figures as drawings: pure functions of counts, matrices and tables."""
