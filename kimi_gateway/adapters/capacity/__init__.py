"""Who may use a target now, and who waits: `opening.open_capacity` gives what the state's address stands for."""
