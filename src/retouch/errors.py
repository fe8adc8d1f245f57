"""What a user can put right: every such error says the value, what is wrong and what to do."""


class UserError(ValueError):
    """A mistake in what was asked for. The command line prints it without a traceback."""


class Diverged(UserError):
    """Training ran into a loss that is not a number. What was learned before stays on disk."""
