import signal


def hears_ctrl_c() -> None:
    """For `preexec_fn`: tests that run in the background have Ctrl-C ignored, and so would the processes they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
