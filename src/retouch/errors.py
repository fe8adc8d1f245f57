"""What a user can put right: every such error says the value, what is wrong and what to do."""


class UserError(ValueError):
    """A mistake in what was asked for. The command line prints it without a traceback."""


class NotFinite(UserError):
    """Weights or features are infinite or NaN; its text says which, as the end of a sentence."""


class Diverged(UserError):
    """Training ran into a loss, weights or features that are infinite or NaN.

    What was learned before stays on disk.
    """
