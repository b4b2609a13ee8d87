"""Coverage of every printed interval, and level of every printed test, in the regimes where they are hardest.

A module here simulates the intervals of one subject. A simulation is a function of the number of repetitions that
yields a `Regime` for each population it draws from; the functions of the package are called as users call them.
"""
