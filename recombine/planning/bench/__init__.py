"""`recombine bench`: how fast this machine trains, against its own ceiling and against a plain loop."""
