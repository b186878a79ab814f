"""Client-given grammars, checked in a process of its own, where a crash or a hang ends nothing else."""
