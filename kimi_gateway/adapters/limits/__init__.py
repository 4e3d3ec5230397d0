"""Where keys' limits are counted: `opening.open_limiter` gives what an address of the state stands for."""
