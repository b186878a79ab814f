"""An acceptor of Responses streams. It shares no code with the state machine, so each can catch faults of the other."""
