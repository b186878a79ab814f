"""`antiphon inspect`: what a server keeps of a turn, in a terminal or a pipe."""
