"""Coverage-guided fuzzing of everything that reads untrusted bytes: `python -m fuzz [--seconds N] [TARGET …]`.

Each module of `targets` is one target: `check` states its invariant, `seeds` gives its first inputs, made from the
vectors and traces. `engine` is the process in which atheris runs one. `corpus/` keeps inputs that reach code which the
seeds do not, `crashes/` every input that ever broke an invariant.
"""
