"""`recombine bench`: how fast this machine trains, compared with its peak and with a plain loop."""
